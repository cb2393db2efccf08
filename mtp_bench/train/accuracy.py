"""Held-out accuracy of heads: how often the true token is among the k first, per head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.train.features import PAST_END, Features

TOP_KS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class HeadAccuracy:
    """Accuracy of one head.

    Attributes:
        head: 0-based; head i guesses i + 1 tokens past the root.
        top: share of positions whose true token is among the first k, by k.
        n: positions that have such a token.
    """

    head: int
    top: dict[int, float]
    n: int


@torch.inference_mode()
def accuracy(heads: MedusaHeads, features: Features, *, rows_per_pass: int = 2048) -> list[HeadAccuracy]:
    """Top-k accuracy over all positions (not only those where steps start)."""
    hits = torch.zeros(heads.num_heads, max(TOP_KS) + 1, dtype=torch.int64)
    device, dtype = heads.block_weight.device, heads.block_weight.dtype
    for start in range(0, len(features), rows_per_pass):
        states = features.states[start : start + rows_per_pass].to(device, dtype)
        for head in range(heads.num_heads):
            targets = features.targets[start : start + rows_per_pass, head].to(device)
            known = targets != PAST_END
            ranks = heads.ranks(states[known], head, targets[known], max(TOP_KS)).long().cpu()
            # Rank -1 (a miss) lands in the last cell.
            hits[head] += torch.bincount(torch.where(ranks < 0, max(TOP_KS), ranks), minlength=max(TOP_KS) + 1)
    totals = hits.sum(1)
    return [
        HeadAccuracy(
            head, {k: float(hits[head, :k].sum() / totals[head].clamp(min=1)) for k in TOP_KS}, int(totals[head])
        )
        for head in range(heads.num_heads)
    ]
