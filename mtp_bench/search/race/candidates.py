"""Which topologies are worth decoding for real: few, unlike each other, and within reach of the predicted best.

* N = 0 always, as the baseline.
* The best of every kind that was searched, best first.
* Static trees, each the best of its size: the smallest within 1% of the best, then the others by predicted speed, as
  far as they are within reach of the best: at most 3% slower, or not told from it by the prediction's paired interval.
* None whose rows (N + 1) are within a quarter of those of a static tree already chosen: on any machine the two would
  cost nearly the same, and their difference is below what decoding can show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mtp_bench.cost import CostTable
from mtp_bench.search.evaluate import Evaluation, evaluate, evaluate_all
from mtp_bench.search.optimize import Optimization
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace

REACH = 0.03
LEAST_RATIO_OF_ROWS = 1.25
BASELINE = "none"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A topology to decode.

    Attributes:
        name: as a user would type it; unique among the candidates.
        why: what it takes part for.
        predicted: its figures on the whole trace.
    """

    name: str
    topology: Topology
    why: str
    predicted: Evaluation


def race_candidates(found: Optimization, trace: RankTrace, cost: CostTable, limit: int) -> list[Candidate]:
    """The baseline, then at most ``limit`` candidates, the predicted best first; see the module's rule."""
    options = found.options
    baseline = evaluate(
        StaticTree(()), trace, cost, context=options.context, batch=options.batch, seed=options.seed
    )  # fmt: skip
    chosen = [Candidate(BASELINE, StaticTree(()), "baseline", baseline)]
    for one in _best_of_kinds(found):
        if one.topology.id not in {other.topology.id for other in chosen}:
            chosen.append(one)
    rows = [found.tree.rows]
    for one in _static_trees(found, trace, cost):
        known = one.topology.id in {other.topology.id for other in chosen}
        if not known and not any(_alike(one.topology.rows, other) for other in rows):
            chosen.append(one)
            rows.append(one.topology.rows)
    return chosen[: 1 + limit]


def _best_of_kinds(found: Optimization) -> Iterator[Candidate]:
    for one in found.kinds:
        yield Candidate(name_of(one.topology), one.topology, f"best {one.kind}", one.evaluation)


def _static_trees(found: Optimization, trace: RankTrace, cost: CostTable) -> Iterator[Candidate]:
    """The smallest tree within 1%, then those within reach, fastest first."""
    if all(one.kind != "static" for one in found.kinds):
        return
    trees = [found.exact.tree_of(point) for point, _ in found.curve if point.num_nodes]
    _, *figures = evaluate_all(
        [found.topology, *trees], trace, cost, context=found.options.context, batch=found.options.batch,
        seed=found.options.seed,
    )  # fmt: skip
    within = [one for one in zip(trees, figures, strict=True) if _within_reach(one[1])]
    smallest = found.smallest_tree
    order = sorted(within, key=lambda one: (one[0].num_nodes != smallest.num_nodes, -(one[1].tokens_per_s or 0.0)))
    for tree, figure in order:
        why = "smallest within 1%" if tree.num_nodes == smallest.num_nodes else "within reach"
        yield Candidate(name_of(tree), tree, why, figure)


def _within_reach(one: Evaluation) -> bool:
    ratio = one.speed_ratio
    return ratio is not None and (ratio.value >= 1 - REACH or ratio.high >= 1)


def _alike(rows: int, other: int) -> bool:
    return max(rows, other) < LEAST_RATIO_OF_ROWS * min(rows, other)
