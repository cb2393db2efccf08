"""How many passes a batch takes, from the steps of its requests alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def batch_passes(steps: Iterable[int], batch: int) -> int:
    """Passes over a batch that serves requests of so many steps each, in this order, a free slot refilled at once.

    Exact for our decoder, whose passes advance every busy slot by one step; at the end of the queue slots run empty.
    """
    free_at = [0] * batch
    for count in steps:
        heapq.heapreplace(free_at, free_at[0] + count)
    return max(free_at)
