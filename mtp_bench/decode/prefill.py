"""Causal passes over known text in chunks, writing the cache from its first slot on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.models.base import BaseModel

PREFILL_CHUNK = 512


def prefill_chunks(
    base: BaseModel,
    cache: TreeCache,
    tokens: torch.Tensor,
    *,
    aux_layers: Sequence[int] = (),
    chunk: int | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Write int64 [B, P] tokens to slots 0..P-1; yield each chunk's hidden states [B, chunk, H] and features.

    Args:
        aux_layers: see ``BaseModel.features``.
        chunk: tokens per pass.
    """
    batch, total = tokens.shape
    width = chunk or PREFILL_CHUNK
    for start in range(0, total, width):
        piece = tokens[:, start : start + width]
        slots = torch.arange(start, start + piece.shape[1], device=tokens.device).expand(batch, -1)
        lengths = torch.full((batch,), start, dtype=torch.int64, device=tokens.device)
        causal = torch.ones(piece.shape[1], piece.shape[1], dtype=torch.bool, device=tokens.device).tril()
        visible = start + piece.shape[1]
        cache.aim(slots, visible)
        mask = for_layers(base, row_mask(slots, lengths, causal, visible), slots, slots, lengths)
        yield base.features(piece, slots, mask, cache, aux_layers)


def prefill(
    base: BaseModel,
    cache: TreeCache,
    tokens: torch.Tensor,
    *,
    aux_layers: Sequence[int] = (),
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``prefill_chunks`` joined: hidden states [B, P, H] and features [B, P, F]."""
    pieces = list(prefill_chunks(base, cache, tokens, aux_layers=aux_layers, chunk=chunk))
    if len(pieces) == 1:
        return pieces[0]
    hidden, features = zip(*pieces, strict=True)
    joined = torch.cat(hidden, dim=1)
    return joined, torch.cat(features, dim=1) if aux_layers else joined
