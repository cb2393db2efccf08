"""One order of draft tokens everywhere: higher logit first, equal logits by lower draft id.

`torch.topk` leaves the order of equal values open, and bf16 logits are often equal. A trace recorded in one batched
pass would then disagree with live decoding. Both therefore rank by this order, which depends on the logits alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ordered_topk(logits: Tensor, top_k: int) -> Tensor:
    """Ids int64 [..., top_k] of the largest logits [..., V], ties by lower id; no host synchronisation.

    A float's bits, read as an integer with the magnitude of negatives inverted, sort as the float does; the inverted
    id below them makes every key unique, so one integer top-k gives the whole order.
    """
    vocabulary = logits.shape[-1]
    # Half-width floats leave room for the id in 32 bits: half the traffic.
    narrow = logits.element_size() == 2 and vocabulary <= 1 << 16
    values, integer, wide, shift = (
        (logits, torch.int16, torch.int32, 16) if narrow else (logits.float(), torch.int32, torch.int64, 32)
    )
    low = (1 << shift) - 1
    keys = _sortable(values, integer).to(wide)
    keys <<= shift  # in place: these are the largest arrays of a draft
    keys |= torch.arange(low, low - vocabulary, -1, device=logits.device, dtype=torch.int64).to(wide)
    return low - (torch.topk(keys, top_k, dim=-1).values & low).to(torch.int64)


def best_of(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Ids int64 and log-probabilities float32 [..., top_k] of the largest logits [..., V], in this order."""
    best, wide = ordered_topk(logits, top_k), logits.float()
    return best, wide.gather(-1, best) - wide.logsumexp(-1, keepdim=True)


def ranks_of(logits: Tensor, ids: Tensor, top_k: int) -> Tensor:
    """Rank int16 [T] of each id [T] in its row of logits [T, V] under the same order.

    -1 for an id below 0 (not in the draft vocabulary), for a rank of `top_k` or more, and for a logit that is NaN.
    """
    known = ids >= 0
    column = ids.clamp(min=0).unsqueeze(-1)
    value = logits.gather(-1, column)
    earlier = torch.arange(logits.shape[-1], device=logits.device) < column
    rank = ((logits > value) | ((logits == value) & earlier)).sum(-1)
    hit = known & (rank < top_k) & ~value.squeeze(-1).isnan()
    return torch.where(hit, rank, -1).to(torch.int16)


def _sortable(values: Tensor, integer: torch.dtype) -> Tensor:
    bits: Tensor = (values + 0.0).view(integer)  # adding zero turns -0.0 into 0.0, which must tie with it
    shift = 8 * values.element_size() - 1
    negative = bits >> shift
    negative &= 2**shift - 1
    bits ^= negative
    return bits
