"""Replays remembered: a tree's run does not depend on batch size or context, so one replay serves a whole map.

Nothing is kept longer than the trace itself.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from mtp_bench.topology import Topology
from mtp_bench.trace import RankTrace, Replay, ratio_draws, replay

Floats = npt.NDArray[np.float64]

_replays: WeakKeyDictionary[RankTrace, dict[Topology, Replay]] = WeakKeyDictionary()
_draws: WeakKeyDictionary[RankTrace, dict[tuple[Topology, int, int], Floats | None]] = WeakKeyDictionary()


def replay_once(trace: RankTrace, topology: Topology) -> Replay:
    """:func:`~mtp_bench.trace.replay`, looked up when this tree was replayed on this trace before."""
    known = _replays.setdefault(trace, {})
    if topology not in known:
        known[topology] = replay(trace, topology)
    return known[topology]


def token_draws(trace: RankTrace, topology: Topology, *, resamples: int, seed: int) -> Floats | None:
    """float64 [resamples]: tokens per step with prompts drawn anew; None with fewer than two prompts."""
    known, key = _draws.setdefault(trace, {}), (topology, resamples, seed)
    if key not in known:
        known[key] = ratio_draws(*replay_once(trace, topology).counted, resamples=resamples, seed=seed)
    return known[key]
