"""Whether verifying a tree gains from attending to its prefix without a mask: dense-masked over merged attention.

* dense: what decoding does (``grouped_sdpa`` over prefix and tree, its mask built once per pass, visible slots rounded
  up to a bucket);
* merged: all rows see all of the prefix, so it needs no mask; the rows among themselves are a second, small attention
  with a mask; log-sum-exps weigh the two (as in Hydragen and flash-decoding). Only for batches of equal lengths.

Run with ``pytest -n 0 -s tests/benchmarks/test_merged_attention.py``; that both give the same is asserted, no timing.
Both run in turn. Ratios above 1 favour merging. Of attention alone, over keys and values of several layers, the figure
in brackets is what a pass of nothing but attention and the linear layers' products would gain; whole passes of the
reference model have more around them. ``MERGED_ATTENTION_DEVICE=cuda`` runs it on a GPU (never run on one yet).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models.attention import NAME, grouped_sdpa, prepare_mask
from mtp_bench.models.base import BaseModel
from mtp_bench.models.compat import register_attention
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.packed import PackedProduct, can_pack
from mtp_bench.topology.shapes import typical_tree

DEVICE = torch.device(os.environ.get("MERGED_ATTENTION_DEVICE", "cpu"))
ROWS, CONTEXTS, BATCHES = (1, 8, 16, 64), (256, 1024, 4096), (1, 8)
CACHE_BYTES = 200_000_000  # of distinct keys and values, so that caches hold them no better than in a real pass
CELL_S, PASS_S = 0.4, 5.0
# batch, rows, context of whole passes
PASSES = ((1, 8, 1024), (1, 16, 1024), (1, 8, 4096), (1, 16, 4096), (1, 32, 4096), (1, 64, 4096), (8, 8, 1024))
MODULE = torch.nn.Identity()


@dataclass(frozen=True)
class Shape:
    """Attention of a model, and its linear layers as one matrix and how many of them a layer's weights make up (the LM
    head spread over the layers included)."""

    heads: int
    kv_heads: int
    width: int
    layers: int
    matrix: tuple[int, int]
    matrices: float


SHAPES = {
    "smollm2-135m": Shape(9, 3, 64, 30, (1536, 576), 5.06),
    "llama-3.1-8b": Shape(32, 8, 128, 32, (14336, 4096), 3.99),
}


@dataclass
class Cell:
    """Queries [B, A, R, d] and a few layers' keys and values [B, K, S, d] for one number of rows, context and batch."""

    shape: Shape
    dtype: torch.dtype
    rows: int
    context: int
    batch: int

    def __post_init__(self) -> None:
        shape, size = self.shape, (self.batch, self.shape.kv_heads, self.context + 2 * ROWS[-1], self.shape.width)
        layer_bytes = 2 * torch.empty(size, dtype=self.dtype, device="meta").nbytes
        count = max(1, min(shape.layers, CACHE_BYTES // layer_bytes))
        random = torch.randn(2, *size, dtype=self.dtype, device=DEVICE)
        self.cache = [random, *(random.clone() for _ in range(count - 1))]
        query = torch.randn(self.batch, self.rows, shape.heads, shape.width, dtype=self.dtype, device=DEVICE)
        self.query = query.transpose(1, 2)
        self.groups = shape.heads // shape.kv_heads
        self.visible = bucket(self.context + self.rows, size[2])
        self.lengths = torch.full((self.batch,), self.context, device=DEVICE)
        self.slots = self.lengths[:, None] + torch.arange(self.rows, device=DEVICE)
        self.ancestors = TreeTensors.build(typical_tree(self.rows - 1, depth=5, top_k=10), DEVICE).ancestors
        self.mask = self.dense_mask()
        self.tree_mask = prepare_mask(self.ancestors[:, None], self.groups, self.dtype)

    def dense_mask(self) -> torch.Tensor:
        mask = row_mask(self.slots, self.lengths, self.ancestors, self.visible)
        return prepare_mask(mask, self.groups, self.dtype)

    def dense(self, layer: int) -> torch.Tensor:
        keys, values = self.cache[layer][:, :, :, : self.visible]
        return grouped_sdpa(MODULE, self.query, keys, values, self.mask)[0]

    def merged(self, layer: int) -> torch.Tensor:
        keys, values = self.cache[layer]
        return merged_attention(self.query, keys, values, self.context, self.tree_mask)


def merged_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: int, tree_mask: torch.Tensor
) -> torch.Tensor:
    """Attention of queries [B, A, R, d] to ``context`` slots and, masked, to the R slots behind them: [B, R, A, d]."""
    batch, heads, rows, width = query.shape
    grouped = query.reshape(batch, keys.shape[1], -1, width)
    # A single row sees itself too: no tree is left.
    prefix, tree = slice(0, context + (rows == 1)), slice(context, context + rows)
    output, lse = attend(grouped, keys[:, :, prefix], values[:, :, prefix], None)
    if rows > 1:
        tree_output, tree_lse = attend(grouped, keys[:, :, tree], values[:, :, tree], tree_mask)
        output = torch.lerp(tree_output, output, torch.sigmoid(lse - tree_lse)[..., None].to(output.dtype))
    return output.reshape(batch, heads, rows, width).transpose(1, 2).contiguous()


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its log-sum-exps [B, K, rows]."""
    aten = torch.ops.aten
    if DEVICE.type == "cpu":
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask)
    elif mask is None and query.dtype != torch.float32:
        output, lse, *_ = aten._scaled_dot_product_flash_attention(query, key, value)
    else:
        bias = None if mask is None else aligned(mask).expand(*query.shape[:2], -1, -1)
        output, lse, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True)
        lse = lse[..., : query.shape[2]]
    return output, lse


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """The same mask with rows of a stride that the CUDA kernel takes."""
    return F.pad(mask, (0, -mask.shape[-1] % 16))[..., : mask.shape[-1]]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def times_ms(*calls: Callable[[], object], for_s: float = CELL_S) -> list[tuple[float, ...]]:
    """Times of each, run in turn for so long, at least three times."""
    for call in calls:
        seconds(call)
    times: list[tuple[float, ...]] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < for_s:
        times.append(tuple(1e3 * seconds(call) for call in calls))
    return times


def medians_ms(*calls: Callable[[], object]) -> list[float]:
    """Median time of each, run in turn."""
    return [statistics.median(column) for column in zip(*times_ms(*calls), strict=True)]


def products_ms(shape: Shape, dtype: torch.dtype, rows: int) -> float:
    """All linear layers' products with this many rows, per layer."""
    out, inner = shape.matrix
    weight = torch.randn(out, inner, dtype=dtype, device=DEVICE)
    count = max(1, 100_000_000 // weight.nbytes)
    x = torch.randn(rows, inner, dtype=dtype, device=DEVICE)
    weights = [weight, *(weight.clone() for _ in range(count - 1))]
    if DEVICE.type == "cpu" and can_pack(dtype):
        packed = [PackedProduct(one) for one in weights]
        (median,) = medians_ms(lambda: [product(x) for product in packed])
    else:
        (median,) = medians_ms(lambda: [F.linear(x, one) for one in weights])
    return shape.matrices * median / count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
@torch.inference_mode()
def test_dense_against_merged(name: str, dtype: torch.dtype) -> None:
    shape = SHAPES[name]
    print()
    for batch in BATCHES:
        for rows in ROWS[batch == 1 :]:  # one row of one sequence has no mask as it is
            linear_ms = products_ms(shape, dtype, batch * rows)
            found = []
            for context in CONTEXTS:
                cell = Cell(shape, dtype, rows, context, batch)
                assert_same(cell)
                layers = range(len(cell.cache))
                dense, merged, mask = medians_ms(
                    lambda: [cell.dense(layer) for layer in layers],  # noqa: B023
                    lambda: [cell.merged(layer) for layer in layers],  # noqa: B023
                    cell.dense_mask,
                )
                dense, merged = dense / len(layers) + mask / shape.layers, merged / len(layers)
                gain = (linear_ms + dense) / (linear_ms + merged) - 1
                found.append(f"{context}: {dense:.3f}/{merged:.3f} ms = {dense / merged:.2f}x ({gain:+.1%})")
            print(f"{name} {dtype} batch {batch}, {rows} rows; context {'; '.join(found)}")


def assert_same(cell: Cell) -> None:
    tolerance = 1e-5 if cell.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(cell.merged(0), cell.dense(0), rtol=tolerance, atol=tolerance)


class Switch:
    """Stands for ``grouped_sdpa`` in a loaded model; merges where ``context`` is set."""

    context: int | None = None

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        if self.context is None:
            return grouped_sdpa(module, query, key, value, attention_mask, **kwargs)
        return merged_attention(query, key, value, self.context, attention_mask), None


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@torch.inference_mode()
def test_whole_passes_of_the_reference_model(dtype: str) -> None:
    switch = Switch()
    register_attention(NAME, switch)
    try:
        base = load_base_model("smollm2-135m", LoadOptions(dtype=dtype, device=str(DEVICE), engine="packed"))
        print()
        for batch, rows, context in PASSES:
            time_passes(base, switch, batch, rows, context)
    finally:
        register_attention(NAME, grouped_sdpa)


def time_passes(base: BaseModel, switch: Switch, batch: int, rows: int, context: int) -> None:
    tree = TreeTensors.build(typical_tree(rows - 1, depth=5, top_k=10), base.device)
    cache = TreeCache.allocate(base, batch=batch, length=context + rows)
    cache.data.normal_()
    tokens = torch.randint(0, base.vocab_size, (batch, rows), device=base.device)
    lengths = torch.full((batch,), context, device=base.device)
    slots, positions = lengths[:, None] + torch.arange(rows, device=base.device), lengths[:, None] + tree.depths
    visible = bucket(context + rows, cache.length)

    def verify(merge: bool) -> torch.Tensor:
        switch.context = context if merge else None
        groups = base.num_attention_heads // base.num_kv_heads
        if merge:
            mask: Any = prepare_mask(tree.ancestors[:, None], groups, base.dtype)
        else:
            mask = for_layers(base, row_mask(slots, lengths, tree.ancestors, visible), slots, positions, lengths)
        cache.aim(slots, visible)
        return base.choices(tokens, positions, mask, cache)[0]

    if base.dtype == torch.float32:
        difference = float((verify(True) - verify(False)).abs().max())
        assert difference < 1e-3 * float(verify(False).abs().max())
    times = times_ms(lambda: verify(False), lambda: verify(True), for_s=PASS_S)
    low, ratio, high = statistics.quantiles([dense / merged for dense, merged in times], n=4)
    dense, merged = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"{base.name} {base.dtype} {base.engine}, batch {batch}, {rows} rows, context {context}: "
        f"{dense:.1f}/{merged:.1f} ms, paired {ratio:.3f}x (quartiles {low:.3f} to {high:.3f}, {len(times)} pairs)"
    )
