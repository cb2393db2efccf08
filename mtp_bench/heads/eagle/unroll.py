"""Drafting from every position of known texts at once: what training and the recording of traces share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mtp_bench.heads.eagle.draft import EagleDraft


def unroll(draft: EagleDraft, tokens: Tensor, features: Tensor, depth: int) -> Iterator[Tensor]:
    """Draft ``depth`` tokens from every slot of known texts at once, along the texts themselves.

    Pass 0 is what decoding computes from the base model's features. In pass j the slot s reads token s + 1 + j and its
    own output of pass j - 1, and attends to the slots up to s of pass 0 and to its own passes 1 .. j: just what live
    decoding sees on the true path.

    Args:
        tokens: int64 [B, L], the token one past each slot (the text without its first token).
        features: [B, L, F] of the base model.

    Yields:
        [B, L, H] outputs of pass 0, 1, ...: in pass j slot s says token s + 2 + j. Rows past the end of a text are
        computed from token 0 and mean nothing.
    """
    length = tokens.shape[1]
    cosine, sine = draft.rotary(length + depth)
    attention = _UnrolledAttention(length, tokens.device)
    hidden = draft.fuse(features)
    for step in range(depth):
        shifted = F.pad(tokens[:, step:], (0, step)) if step else tokens
        rotary = cosine[step : step + length], sine[step : step + length]
        output = draft(shifted, hidden, rotary, attention)
        yield output
        hidden = draft.feedback(output)


class _UnrolledAttention:
    """Causal over pass 0, and for later passes also over the slot's own later keys."""

    def __init__(self, length: int, device: torch.device) -> None:
        self._hidden = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._keys.append(key)
        self._values.append(value)
        batch, heads, length, width = query.shape
        grouped = query.reshape(batch, key.shape[1], -1, length, width) * width**-0.5
        scores = torch.matmul(grouped, self._keys[0].unsqueeze(2).transpose(-1, -2)).float()
        scores = scores.masked_fill(self._hidden, float("-inf"))
        own = [(grouped * later.unsqueeze(2)).sum(-1, keepdim=True).float() for later in self._keys[1:]]
        shares = torch.cat([scores, *own], dim=-1).softmax(-1).to(value.dtype)
        output = torch.matmul(shares[..., :length], self._values[0].unsqueeze(2))
        for place, later in enumerate(self._values[1:]):
            output = output + shares[..., length + place, None] * later.unsqueeze(2)
        return output.reshape(batch, heads, length, width).transpose(1, 2)
