"""Drafts computed by the native engine's kernels (see ``models.native``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mtp_bench.decode.layer import CachedAttention
from mtp_bench.heads.eagle.draft import Attend, EagleDraft, RmsNorm, Rotary
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.native.model import odd_sizes
from mtp_bench.models.native.parts import NativeLayer, NativeNorm, NativeProduct, native_linear
from mtp_bench.models.packed import shared_copy


def can_be_native(draft: EagleDraft) -> bool:
    """Whether the kernels compute a draft's layer."""
    return odd_sizes(draft.config.head_dim, draft.config.hidden_size) is None


def native_draft(draft: EagleDraft) -> EagleDraft:
    """A copy that shares the parameters, its layer, norms and products computed by the kernels."""
    copy = shared_copy(draft)
    copy.add_module("layer", NativeDecoderLayer(draft) if draft.config.variant == "eagle" else NativeEagle3Layer(draft))
    for owner in list(copy.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, RmsNorm):
                owner.add_module(name, NativeNorm(part.weight, float(part.eps or 0.0)))
    copy.fc = native_linear(copy.fc)
    copy.lm_best = NativeProduct(linear(draft.lm_rows)).best
    return copy


class NativeDecoderLayer(nn.Module):
    """EAGLE-1's layer."""

    def __init__(self, draft: EagleDraft) -> None:
        super().__init__()
        own: Any = draft.layer
        self.input_layernorm = own.input_layernorm
        self._layer = NativeLayer(own, draft.config.hidden_size, draft.config.rms_eps)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, R, H] -> [B, R, H]."""
        normed = x if self.input_layernorm is None else self.input_layernorm(x)
        return _through(self._layer, normed, x, rotary, attend)


class NativeEagle3Layer(nn.Module):
    """EAGLE-3's layer."""

    def __init__(self, draft: EagleDraft) -> None:
        super().__init__()
        own: Any = draft.layer
        self.input_layernorm, self.hidden_norm = own.input_layernorm, own.hidden_norm
        self._norm_before_residual = draft.config.norm_before_residual
        self._layer = NativeLayer(own, draft.config.hidden_size, draft.config.rms_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, R, H] twice -> [B, R, H]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self._norm_before_residual else hidden
        x = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        return _through(self._layer, x, residual, rotary, attend)


def _through(layer: NativeLayer, x: Tensor, residual: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
    assert isinstance(attend, CachedAttention)
    output: Tensor = layer(x, residual, rotary, attend.mask, attend.cache)
    return output


class NativeMedusa:
    """Medusa heads whose products the kernels compute."""

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads = heads
        self.hidden_size, self.max_depth = heads.hidden_size, heads.max_depth
        # All heads read the same state in their first block: one product.
        self._first = NativeProduct(*_blocks(heads, 0))
        self._further = [[NativeProduct(block) for block in _blocks(heads, i)] for i in range(1, heads.num_layers)]
        rows: Sequence[Tensor] = heads.lm_rows.unbind(0) if heads.lm_head == "own" else [heads.lm_rows]
        self._lm = [NativeProduct(linear(part)) for part in rows]

    def logits(self, x: Tensor, head: int) -> Tensor:
        """See ``Heads``."""
        return self._heads.logits(x, head)

    def propose(self, x: Tensor, depth: int, top_k: int) -> Tensor:
        """See ``Heads``."""
        size, x = self.hidden_size, x.to(self._heads.block_weight.dtype)
        update = self._first(x, outputs=depth * size, then="silu").view(len(x), depth, size)
        states = x[:, None] + update
        for blocks in self._further:
            parts = [block(states[:, head], then="silu") for head, block in enumerate(blocks[:depth])]
            states = states + torch.stack(parts, dim=1)
        if len(self._lm) == 1:
            best, _ = self._lm[0].best(states, top_k)
        else:
            best = torch.stack([lm.best(states[:, head], top_k)[0] for head, lm in enumerate(self._lm[:depth])], dim=1)
        return best if self._heads.token_map is None else self._heads.token_map[best]


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer around a weight [O, I] and a bias [O] that are there already."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def _blocks(heads: MedusaHeads, index: int) -> list[nn.Linear]:
    biases = [None] * heads.num_heads if heads.block_bias is None else heads.block_bias[index].unbind(0)
    return [linear(weight, bias) for weight, bias in zip(heads.block_weight[index].unbind(0), biases, strict=True)]
