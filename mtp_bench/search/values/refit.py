"""Refit by replay: count the paths where steps really start, not everywhere.

Steps start where the draft before them failed, and such positions are harder than the average. Which positions those
are depends on the tree; so the tree is replayed, the rows at which its steps start are counted alone, the best tree for
these is replayed in turn, and after a few rounds the tree with the best replay is kept. The first round is the plain
trie, so the result never replays worse than the trie's tree on the same trace.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.exact.curve import SPEED
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.values.trie import PathIndex
from mtp_bench.trace import RankTrace, replay, step_starts

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the best tree where the tree before starts its steps (everywhere, in round 0), and its replay.

    Args:
        num_nodes, depth: of the tree.
        tokens_per_step_estimated: over the positions that were counted.
        tokens_per_step: replayed.
        tokens_per_s: replayed tokens_per_step over the predicted step; None without costs.
    """

    num_nodes: int
    depth: int
    tokens_per_step_estimated: float
    tokens_per_step: float
    tokens_per_s: float | None


@dataclass(frozen=True, eq=False)
class Refit:
    """All rounds, and which of them was kept.

    Args:
        rounds: round 0 first.
        best: index of the round with the best replay, the earliest at a tie.
        starts: bool [T], the rows counted in that round; None for round 0, which counts all.
    """

    rounds: tuple[Round, ...]
    best: int
    starts: npt.NDArray[np.bool_] | None

    def document(self) -> dict[str, Any]:
        """For ``optimize.json``."""
        return {"rounds": [asdict(one) for one in self.rounds], "best": self.best}


def refit(trace: RankTrace, cost: CostTable | None, *, rounds: int = ROUNDS, **limits: Any) -> Refit:
    """Refit at most ``rounds`` times, stopping when a tree comes back; ``limits`` as for :func:`exact_search`.

    Raises:
        InputError: as :func:`exact_search`; a trace without steps.
    """
    found = exact_search(PathIndex.of(trace).counted(), cost, **limits)
    visited = PathIndex.of(trace, room=1)
    seen, done = {found.tree}, [_round(trace, found)]
    counted: list[npt.NDArray[np.bool_] | None] = [None]
    for _ in range(rounds):
        starts = step_starts(trace, found.tree)
        found = exact_search(visited.counted(starts), cost, **limits)
        done.append(_round(trace, found))
        counted.append(starts)
        if found.tree in seen:
            break
        seen.add(found.tree)
    speed = limits.get("objective", SPEED) == SPEED
    score = [one.tokens_per_s if speed and one.tokens_per_s is not None else one.tokens_per_step for one in done]
    best = int(np.argmax(score))
    return Refit(tuple(done), best, counted[best])


def _round(trace: RankTrace, found: ExactResult) -> Round:
    best = found.best
    tokens = replay(trace, found.tree).tokens_per_step
    speed = None if best.step_ms is None else 1e3 * tokens / best.step_ms
    return Round(best.num_nodes, best.depth, best.tokens_per_step, tokens, speed)
