"""An EAGLE draft's layer in few operations, for ``--engine packed`` (see ``models.fused``)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mtp_bench.heads.eagle.draft import Attend, EagleDraft, RmsNorm, Rotary
from mtp_bench.models.fused import FusedHeads, FusedMlp, FusedNorm, rotation
from mtp_bench.models.packed import PackedProduct


def fuse_draft(draft: EagleDraft) -> None:
    """Fuse the layer's attention and MLP and all norms of ``draft``, in place."""
    layer: Any = draft.layer
    layer.self_attn, layer.mlp = FusedAttention(layer.self_attn), FusedMlp(layer.mlp)
    for owner in list(draft.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, RmsNorm):
                owner.add_module(name, FusedNorm(part.weight, float(part.eps or 0.0)))


class FusedAttention(nn.Module):
    """The draft's attention; called as the plain one is."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self._heads, self._output = FusedHeads(own), PackedProduct(own.o_proj.weight)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, R, width] -> [B, R, H]."""
        return self._output(attend(*self._heads(x, *rotation(*rotary))).flatten(2))
