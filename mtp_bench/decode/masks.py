"""Attention masks for tree rows behind a cached prefix, one per attention type of the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mtp_bench.models import attention, flex
from mtp_bench.models.base import BaseModel, LayerMask

Mask = LayerMask | dict[str, LayerMask]


def row_mask(slots: torch.Tensor, lengths: torch.Tensor, ancestors: torch.Tensor, visible: int) -> torch.Tensor:
    """Which slots each row sees: the whole prefix, and its ancestors among the rows.

    Args:
        slots: int64 [B, A] slot of each row, and of rows before them that are not computed now.
        lengths: int64 [B] cached tokens before the first row.
        ancestors: bool [R, A] or [B, R, A], ``ancestors[r, a]`` = row a is row r or an ancestor of it.
        visible: number of slots S that attention sees.

    Returns:
        bool [B, 1, R, S], True = visible.
    """
    batch, known = slots.shape
    rows = ancestors.shape[-2]
    every_slot = torch.arange(visible, device=slots.device)
    prefix = (every_slot < lengths[:, None])[:, None, :].expand(batch, rows, visible)
    mask = prefix.scatter(2, slots[:, None, :].expand(batch, rows, known), ancestors.expand(batch, rows, known))
    return mask[:, None]


def for_layers(
    base: BaseModel,
    mask: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    lengths: torch.Tensor,
    *,
    plain: bool = False,
) -> Mask:
    """Hand the mask over as the architecture wants it: windowed for sliding layers, additive for eager and
    grouped SDPA, in blocks for FlexAttention.

    Args:
        mask: bool [B, 1, R, S] from ``row_mask``.
        slots, positions: int64 [B, R]; lengths: int64 [B].
        plain: leave them bool, as the native engine's kernels read them.
    """
    kinds = set(base.layer_types)
    masks = dict.fromkeys(kinds, mask)
    if base.sliding_window is not None and "sliding_attention" in kinds:
        masks["sliding_attention"] = mask & _within_window(base.sliding_window, mask, slots, positions)
    laid_out = {kind: part if plain else _laid_out(base, part) for kind, part in masks.items()}
    return _single(laid_out) if len(kinds) == 1 and not getattr(base.config, "layer_types", None) else laid_out


def _laid_out(base: BaseModel, mask: torch.Tensor) -> LayerMask:
    if base.attention == "sdpa":
        return mask
    if base.attention == flex.NAME:
        return flex.block_mask(mask)
    groups = base.num_attention_heads // base.num_kv_heads if base.attention == attention.NAME else 1
    return attention.prepare_mask(mask, groups, base.dtype)


def _within_window(width: int, mask: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    # A prefix slot's position is its index; a tree row's is its depth behind the prefix, whatever its slot.
    batch, _, _, visible = mask.shape
    key_positions = torch.arange(visible, device=mask.device).expand(batch, visible).scatter(1, slots, positions)
    return (positions[:, None, :, None] - key_positions[:, None, None, :]) < width


def _single(masks: Mapping[str, LayerMask]) -> LayerMask:
    return next(iter(masks.values()))
