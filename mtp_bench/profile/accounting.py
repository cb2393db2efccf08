"""Bytes and operations of a step, and what this device can move and compute at best, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from mtp_bench.cost.work import DeviceLimits, StepWork
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import DynamicTree, Topology

COPIED_BYTES = 1 << 28  # far larger than any cache
PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}
REPEATS = 7


@torch.inference_mode()
def measure_limits(device: torch.device, dtype: torch.dtype) -> DeviceLimits:
    """Time a large copy and a large square product; a second on a CPU."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    size = PRODUCT_SIZE.get(device.type, PRODUCT_SIZE["cpu"])
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    product_s = _best_s(lambda: left @ right, device)
    return DeviceLimits(2 * COPIED_BYTES / copy_s, 2 * size**3 / product_s)


def _best_s(call: Callable[[], object], device: torch.device) -> float:
    """Least seconds of a call, the first two uncounted: a limit is what the device can do undisturbed."""
    seconds = []
    for _ in range(REPEATS + 2):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[2:])


def step_work(base: BaseModel, heads: AnyHeads | None, topology: Topology, *, batch: int, context: float) -> StepWork:
    """The least that a step of ``batch`` sequences with ``context`` cached tokens each reads and computes.

    Activations, masks and the draft's own cache are left out: they are small beside the weights.
    """
    verify = verify_work(base, topology.rows, batch=batch, context=context)
    return verify if heads is None else verify + draft_work(base, heads, topology, batch=batch)


def verify_work(base: BaseModel, rows: int, *, batch: int, context: float) -> StepWork:
    """The base model's part of a step over ``rows`` rows per sequence; see ``step_work``."""
    weight_bytes, parameters = _base_weights(base)
    width = base.num_attention_heads * base.head_dim
    attention = 4 * base.num_layers * width * (context + rows)
    cache_bytes = batch * context * base.kv_bytes_per_token
    return StepWork(weight_bytes, cache_bytes, (2 * parameters + attention) * rows * batch)


def draft_work(base: BaseModel, heads: AnyHeads, topology: Topology, *, batch: int) -> StepWork:
    """The heads' part of a step; see ``step_work``."""
    passes = _draft_passes(heads, topology)
    return StepWork(
        weight_bytes=sum(parameters * base.dtype.itemsize for _, parameters in passes),
        cache_bytes=0,
        flops=sum(2 * parameters * rows * batch for rows, parameters in passes),
    )


def _base_weights(base: BaseModel) -> tuple[int, int]:
    """Bytes and number of the weights that a pass reads: all but an input embedding that is not the LM head too."""
    embedding = base.embedding_weight
    apart = 0 if embedding.data_ptr() == base.lm_head_weight.data_ptr() else embedding.numel()
    return base.weight_bytes - apart * embedding.element_size(), base.num_parameters - apart


def _draft_passes(heads: AnyHeads, topology: Topology) -> list[tuple[int, int]]:
    """(rows per sequence, weights) of each product of the draft."""
    depth = topology.depth
    if depth == 0:
        return []
    if isinstance(heads, MedusaHeads):
        own = heads.lm_head == "own"
        blocks, rows = (
            count * depth // heads.num_heads for count in (heads.block_weight.numel(), heads.lm_rows.numel())
        )
        return [(1, blocks), (1, rows) if own else (depth, heads.lm_rows.numel())]
    if isinstance(heads, EagleDraft):
        layer, fuse = _numel(heads.layer), _numel(heads.fc)
        # EAGLE-1 joins embedding and feature in every pass, EAGLE-3 fuses features only where they are the base's.
        later = 0 if heads.config.variant == "eagle3" else fuse
        passes = [(expanded, layer + heads.lm_rows.numel() + later) for expanded in _expanded(topology)]
        return [(1, fuse - later), *passes]
    assert isinstance(heads, HydraHeads)
    passes = [(rows, heads.head_parameters(head)) for head, rows in enumerate(_expanded(topology))]
    return passes if heads.prefix is None else [(1, _numel(heads.prefix)), *passes]


def _numel(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _expanded(topology: Topology) -> list[int]:
    """Rows of each pass of a draft layer: the root's slot, then the nodes of each level but the last that expand."""
    if isinstance(topology, DynamicTree):
        return [1] + [topology.top_k] * (topology.depth - 1)
    return [1, *topology.expanded_widths]
