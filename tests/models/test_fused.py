"""Fused layers: what the stock layers compute, for every kind of model they are taken for, and for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, WINDOW, random_eagle, tiny_base
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.drafters import engine_heads
from mtp_bench.decode.fused import FusedAttention
from mtp_bench.decode.layer import cached_attention, layer_cache
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.models.base import BaseModel
from mtp_bench.models.fused import FusedDecoder, FusedLayer, FusedNorm, can_fuse, packed_model
from mtp_bench.models.packed import can_pack

FUSED = ("llama", "llama-tied", "qwen2", "qwen3", "mistral-window", "mistral-narrow")
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip
pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="this torch or CPU has no packed fp32 products")


def unusual(base: BaseModel) -> BaseModel:
    """The same with gains and biases that are not the ones and zeros of a fresh model."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in base.model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return base


def outcome(base: BaseModel, batch: int, rows: int) -> list[torch.Tensor]:
    """Hidden states, tapped features, and the cache after two passes: a prompt, then tree rows behind it."""
    generator = torch.Generator().manual_seed(2)
    cache = TreeCache.allocate(base, batch=batch, length=64)
    starts = torch.zeros(batch, dtype=torch.int64)
    results = []
    for width, visible in ((WINDOW + 3, torch.ones(WINDOW + 3, WINDOW + 3).tril().bool()), (rows, tree_rows(rows))):
        tokens = torch.randint(0, base.vocab_size, (batch, width), generator=generator)
        positions = starts[:, None] + visible.sum(-1) - 1
        slots = starts[:, None] + torch.arange(width)
        cache.aim(slots, 64)
        mask = for_layers(base, row_mask(slots, starts, visible, 64), slots, positions, starts)
        results += base.features(tokens, positions, mask, cache, (0, 2))
        starts = starts + width
    return [*results, cache.data[..., : int(starts[0]), :]]


def tree_rows(rows: int) -> torch.Tensor:
    """Each row sees itself and every second one before it."""
    index = torch.arange(rows)
    return (index[:, None] >= index) & ((index[:, None] - index) % 2 == 0)


@pytest.mark.parametrize("architecture", FUSED)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (1, 9), (3, 5)])
def test_passes_are_those_of_the_stock_layers(architecture: str, batch: int, rows: int) -> None:
    base = unusual(tiny_base(architecture))
    fast = replace(base, model=packed_model(base.model))
    assert isinstance(fast.decoder, FusedDecoder)
    with torch.inference_mode():
        for mine, stock in zip(outcome(fast, batch, rows), outcome(base, batch, rows), strict=True):
            # Random weights make large values of little differences in rounding.
            torch.testing.assert_close(mine, stock, rtol=5e-4, atol=2e-4)


@pytest.mark.parametrize("rope", ROPES)
def test_rotary_embeddings_of_every_kind(rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ARCHITECTURES, "turned", {"model_type": "llama", "rope_parameters": {"rope_theta": 1e4, **ROPES[rope]}}
    )
    test_passes_are_those_of_the_stock_layers("turned", 1, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_norm(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    stock = LlamaRMSNorm(576, eps=1e-5)
    stock.weight.data = torch.randn(576)
    x = scale * (torch.randn(2, 7, 576) + 0.5)
    stock = stock.to(dtype)
    mine = FusedNorm(stock.weight, 1e-5)(x.to(dtype))
    assert mine.dtype == dtype
    assert mine.is_contiguous()
    exact = stock.double()(x.to(dtype).double())
    torch.testing.assert_close(mine.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


class Adapted(nn.Linear):
    """Stands for a layer with an adapter."""


def test_others_are_left_alone() -> None:
    gelu, sdpa, adapted = tiny_base(), tiny_base("llama", "sdpa"), tiny_base()
    gelu.decoder.config.hidden_act = "gelu"  # type: ignore[union-attr]
    adapted.decoder.layers[1].mlp.up_proj.__class__ = Adapted  # type: ignore[index, union-attr]
    for base in (gelu, sdpa, adapted, tiny_base("gemma3")):
        assert not can_fuse(base.decoder)
        assert not any(isinstance(part, FusedLayer) for part in packed_model(base.model).modules())
    assert all(can_fuse(tiny_base(name).decoder) for name in FUSED)
    assert isinstance(tiny_base().decoder.layers[0].mlp.up_proj, nn.Linear)  # type: ignore[index, union-attr]


def test_the_stock_model_stays_as_it_is() -> None:
    base = tiny_base()
    before = {name: parameter.data_ptr() for name, parameter in base.model.named_parameters()}
    packed_model(base.model)
    assert {name: parameter.data_ptr() for name, parameter in base.model.named_parameters()} == before
    assert not any(isinstance(part, FusedLayer) for part in base.model.modules())


@pytest.mark.parametrize(
    ("variant", "switches"),
    [
        ("eagle", {}),
        ("eagle", {"qkv_bias": True, "input_norm": True, "embed_norm": True, "feature_norm": True}),
        ("eagle3", {}),
        ("eagle3", {"norm_before_residual": True, "norm_output": True, "norm_before_fc": True}),
        ("eagle3", {"fc_norm": True, "qkv_bias": True}),
    ],
)
@pytest.mark.parametrize("rows", [1, 7])
def test_a_draft_pass_is_that_of_the_stock_layer(variant: str, switches: dict[str, Any], rows: int) -> None:
    draft = random_eagle(tiny_base(), variant, **switches)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 24, (2, rows), generator=generator)
    features = torch.randn(2, rows, draft.config.feature_size, generator=generator)
    results = []
    for one in (draft, engine_heads(draft, "packed")):
        assert isinstance(one, EagleDraft)
        assert isinstance(one.layer.self_attn, FusedAttention) == (one is not draft)
        cosine, sine = one.rotary(40)
        positions = torch.arange(3, 3 + rows).expand(2, -1)
        cache = layer_cache(one.config, 2, 40, one.fc.weight)
        mask = row_mask(positions, torch.zeros(2, dtype=torch.int64), tree_rows(rows), 40)
        with torch.inference_mode():
            attend = cached_attention(cache, positions, mask)
            output = one(tokens, one.fuse(features), (cosine[positions], sine[positions]), attend)
            results.append((output, one.feedback(output), one.logits(output), cache.data))
    for stock, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, stock, rtol=5e-4, atol=2e-4)
    assert not any(isinstance(part, FusedNorm) for part in draft.modules()), "the stock draft stays as it is"
