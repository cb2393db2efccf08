"""Attention for a few query rows over grouped key/value heads, without copying the keys and values.

Stock SDPA with a mask repeats every key/value head for each of its query heads, which for a small model on a CPU moves
more bytes than the attention itself. Query heads that share a key/value head are instead laid out as further *rows* of
that head: the same products, no copy. Registered with transformers as ``grouped_sdpa``; the model stays unpatched.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from mtp_bench.models.compat import register_attention

NAME = "grouped_sdpa"
# A longer prompt would make the mask groups times larger for no gain: there the copy is the smaller cost.
GROUPED_ROWS = 512


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Masked attention with grouped key/value heads.

    Args:
        query: [B, A, R, d]; key, value: [B, K, S, d] with A a multiple of K.
        attention_mask: bool (True = visible) or additive, [B or 1, 1, R, S], or laid out by ``prepare_mask``; None
            means causal over R == S, or for a single row that it sees every key.

    Returns:
        [B, R, A, d] and no attention weights.
    """
    if kwargs.get("softcap") is not None:
        raise ValueError("grouped_sdpa cannot apply attention soft-capping; load the model with eager attention")
    batch, heads, rows, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None and rows > 1:
        attention_mask = torch.ones(rows, key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    if groups > 1 and rows <= GROUPED_ROWS:
        query = query.reshape(batch, key.shape[1], groups * rows, width)
        if attention_mask is not None and attention_mask.shape[2] == rows > 1:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
        output = output.reshape(batch, heads, rows, value.shape[-1])
    else:
        if groups > 1:
            key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


def prepare_mask(mask: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """Bool mask [B, 1, R, S] -> additive, with its rows repeated as ``grouped_sdpa`` lays out the query heads.

    Done once per pass here, it is not done again in every layer: on a CPU that is a twentieth of a one-row step.
    """
    additive = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    rows = mask.shape[2]
    return additive.repeat(1, 1, groups, 1) if 1 < rows <= GROUPED_ROWS and groups > 1 else additive


register_attention(NAME, grouped_sdpa)
