"""How many passes a batch takes and over how much context, from the lengths of its requests alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np


def batch_passes(steps: Iterable[int], batch: int) -> int:
    """Passes over a batch that serves requests of so many steps each, in this order, a free slot refilled at once.

    Exact for our decoder, whose passes advance every busy slot by one step; at the end of the queue slots run empty.
    """
    free_at = [0] * batch
    for count in steps:
        heapq.heapreplace(free_at, free_at[0] + count)
    return max(free_at)


def mean_longest_context(prompts: Sequence[int], tokens: Sequence[int], batch: int) -> float:
    """Mean over the passes of a batch of its longest context: what a pass attends over, padding included.

    Plain decoding of requests of so many prompt tokens and ``tokens`` emitted in steps, in this order, as for
    :func:`batch_passes`.
    With a tree all of it happens in fewer passes, at the same contexts.
    """
    free_at = [0] * batch
    longest = np.zeros(sum(tokens))
    for prompt, count in zip(prompts, tokens, strict=True):
        start = heapq.heappop(free_at)
        heapq.heappush(free_at, start + count)
        longest[start : start + count] = np.maximum(longest[start : start + count], prompt + np.arange(count))
    return float(longest[: max(free_at)].mean())
