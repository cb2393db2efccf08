"""Latency of one user against total throughput: which (batch size, topology) is beaten in both by no other.

At one batch size the total is the batch size times the speed of each user, so one topology is best in both: whatever
the costs, each batch size has at most one point on the front, its fastest tree, and the front is what the batch sizes
leave of each other. The curves of the exact searches hold the fastest tree of every batch size (for averages over all
positions, see :mod:`~mtp_bench.search.exact.search`); all trees on them are replayed, and these figures compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.optimize import OptimizeOptions
from mtp_bench.search.replays import replay_once
from mtp_bench.search.studies.optuna_search import import_optuna
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree, name_of
from mtp_bench.trace import RankTrace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ParetoPoint:
    """One topology at one batch size.

    Attributes:
        tokens_per_step: replayed.
        per_user: predicted decode tokens per second of each sequence.
        total: of the whole batch.
        speedup: over N = 0 at the same batch size.
    """

    batch: int
    tree: StaticTree
    tokens_per_step: float
    step_ms: float
    per_user: float
    total: float
    speedup: float

    def document(self) -> dict[str, Any]:
        """For ``pareto.json``."""
        return {
            "batch": self.batch,
            "name": name_of(self.tree),
            "num_nodes": self.tree.num_nodes,
            "depth": self.tree.depth,
            "tokens_per_step": self.tokens_per_step,
            "step_ms": self.step_ms,
            "tokens_per_s_per_user": self.per_user,
            "tokens_per_s_total": self.total,
            "speedup_predicted": self.speedup,
        }


@dataclass(frozen=True, eq=False)
class Pareto:
    """All points and the front.

    Attributes:
        front: those no other point beats, slowest for one user first.
        optuna: points of the unseeded study; ``optuna_front`` those of them that no other of them beats.
    """

    points: tuple[ParetoPoint, ...]
    front: tuple[ParetoPoint, ...]
    optuna: tuple[ParetoPoint, ...]
    optuna_front: tuple[ParetoPoint, ...]

    @property
    def hypervolume_share(self) -> float | None:
        """Area that Optuna's front dominates over that of the exact one, from the origin; None without a study."""
        return area(self.optuna_front) / area(self.front) if self.optuna else None

    def document(self) -> dict[str, Any]:
        """The body of ``pareto.json``."""
        places = {(one.batch, one.tree.id) for one in self.front}
        found = sum((one.batch, one.tree.id) in places for one in self.optuna_front)
        study = {"trials": len(self.optuna), "seeded": False, "hypervolume_share": self.hypervolume_share}
        paths = [[list(path) for path in one.tree.paths] for one in self.front]
        fronted = [{**one.document(), "paths": tree} for one, tree in zip(self.front, paths, strict=True)]
        return {
            "maximised": ["tokens_per_s_per_user", "tokens_per_s_total"],
            "front": fronted,
            "points": [one.document() | {"front": (one.batch, one.tree.id) in places} for one in self.points],
            "optuna": None if not self.optuna else study | {
                "on_exact_front": found, "front": [one.document() for one in self.optuna_front],
            },
        }  # fmt: skip


def pareto(trace: RankTrace, cost: CostTable, options: OptimizeOptions, batches: Sequence[int]) -> Pareto:
    """Search each batch size, replay the trees of its curve, and keep what nothing beats; Optuna beside it.

    Raises:
        InputError: no costs at a batch size.
    """
    source = TrieSource.from_trace(trace)
    searches = {
        batch: exact_search(
            source, cost, max_nodes=options.budget, max_depth=options.max_depth, context=options.context, batch=batch
        )
        for batch in batches
    }
    scorer = _Scorer(trace, cost, options.context)
    points = [
        scorer.point(batch, found.tree_of(found.curve[i])) for batch, found in searches.items()
        for i in range(len(found.curve))
    ]  # fmt: skip
    tried = _study(scorer, searches, options.trials, options.seed) if options.trials else []
    return Pareto(tuple(points), _front(points), tuple(tried), _front(tried))


def undominated(first: Floats, second: Floats) -> Ints:
    """int64: indices that no other point beats (at least as good in both, better in one), by rising ``first``.

    Of equal points the one that comes first is kept.
    """
    order = np.lexsort((np.arange(len(first)), -second, -first))
    kept, highest = [], -np.inf
    for index in order:
        if second[index] > highest:
            kept.append(int(index))
            highest = float(second[index])
    return np.array(kept[::-1], dtype=np.int64)


def area(front: Sequence[ParetoPoint]) -> float:
    """Area between the origin and the front: the hypervolume of two figures; ``front`` is undominated."""
    corners = sorted((one.per_user, one.total) for one in front)
    widths = np.diff([0.0, *(x for x, _ in corners)])
    return float(widths @ np.array([y for _, y in corners])) if corners else 0.0


def _front(points: Sequence[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    kept = undominated(np.array([one.per_user for one in points]), np.array([one.total for one in points]))
    return tuple(points[int(i)] for i in kept)


@dataclass(frozen=True, eq=False)
class _Scorer:
    trace: RankTrace
    cost: CostTable
    context: int | None

    def point(self, batch: int, tree: StaticTree) -> ParetoPoint:
        tokens = replay_once(self.trace, tree).tokens_per_step
        ms = self.cost.topology_ms(tree, batch=batch, context=self.context)
        plain_ms = self.cost.step_ms(1, batch=batch, context=self.context)
        per_user = 1e3 * tokens / ms
        return ParetoPoint(batch, tree, tokens, ms, per_user, batch * per_user, tokens * plain_ms / ms)


def _study(scorer: _Scorer, searches: dict[int, ExactResult], trials: int, seed: int) -> list[ParetoPoint]:
    """Optuna's two-objective search over batch size, N and depth, told nothing."""
    optuna = import_optuna()
    study = optuna.create_study(directions=["maximize"] * 2, sampler=optuna.samplers.TPESampler(seed=seed))
    most = max(found.max_nodes for found in searches.values())
    deepest = max(found.max_depth for found in searches.values())
    points: list[ParetoPoint] = []

    def objective(trial: Any) -> tuple[float, float]:
        batch = trial.suggest_categorical("batch", sorted(searches))
        nodes = trial.suggest_int("num_nodes", 1, max(most, 1), log=True)
        depth = trial.suggest_int("depth", 0, deepest)
        found = searches[batch]
        tree = found.growth.tree(min(nodes, found.max_nodes), min(depth, found.max_depth))
        points.append(scorer.point(batch, tree))
        return points[-1].per_user, points[-1].total

    study.optimize(objective, n_trials=trials)
    return points
