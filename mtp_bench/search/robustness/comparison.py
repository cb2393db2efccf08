"""The estimators side by side: what each promises, what its tree does in replay, and what it does on other prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mtp_bench.cost import CostTable
from mtp_bench.search.robustness.held_out import HeldOut, Pool, choose_on_half, split
from mtp_bench.search.values.estimators import ESTIMATORS, fit
from mtp_bench.trace import Interval, RankTrace, paired_difference, paired_ratio, replay


@dataclass(frozen=True, slots=True)
class Compared:
    """One estimator. Its tree is chosen on all prompts; the held-out figures choose on halves.

    Args:
        estimator: its name.
        num_nodes, depth: of its tree.
        num_nodes_halves: of the trees it chose on the first and on the second half.
        tokens_per_step_estimated: what the estimator itself expects of its tree.
        tokens_per_step: what its tree replays.
        tokens_per_s: by the replay and the predicted step; None without costs.
        train_tokens_per_step, held_out_tokens_per_step, held_out_tokens_per_step_ci, optimism: see
            :class:`~mtp_bench.search.robustness.held_out.HeldOut`.
        held_out_difference: held-out tokens_per_step minus the first estimator's, paired; None for the first.
        held_out_speed_ratio: held-out predicted speed over the first estimator's, paired; None without costs.
    """

    estimator: str
    num_nodes: int
    depth: int
    num_nodes_halves: tuple[int, int]
    tokens_per_step_estimated: float
    tokens_per_step: float
    tokens_per_s: float | None
    train_tokens_per_step: float
    held_out_tokens_per_step: float
    held_out_tokens_per_step_ci: tuple[float, float] | None
    optimism: float
    held_out_difference: Interval | None
    held_out_speed_ratio: Interval | None

    @property
    def estimate_error(self) -> float:
        """The estimator's own figure over the replay's, minus 1."""
        return self.tokens_per_step_estimated / self.tokens_per_step - 1

    def document(self) -> dict[str, Any]:
        """For ``optimize.json``."""
        document = asdict(self) | {"estimate_error": self.estimate_error}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()}


def compare_estimators(
    trace: RankTrace,
    cost: CostTable | None,
    *,
    estimators: Sequence[str] = ESTIMATORS,
    seed: int = 0,
    **limits: Any,
) -> list[Compared]:
    """Choose, replay and hold out with every estimator, on the same split; ``limits`` as for :func:`exact_search`.

    Raises:
        InputError: as :func:`~mtp_bench.search.robustness.held_out.choose_on_half`.
    """
    compared: list[Compared] = []
    first: HeldOut | None = None
    for estimator in estimators:
        found = fit(estimator, trace, cost, **limits).exact
        held = choose_on_half(trace, cost, estimator=estimator, seed=seed, **limits)
        difference, ratio = (None, None) if first is None else _paired(first.pool, held.pool, seed)
        first = first or held
        best, tokens = found.best, replay(trace, found.tree).tokens_per_step
        compared.append(
            Compared(
                estimator,
                best.num_nodes,
                best.depth,
                (held.trees[0].num_nodes, held.trees[1].num_nodes),
                best.tokens_per_step,
                tokens,
                None if best.step_ms is None else 1e3 * tokens / best.step_ms,
                held.train_tokens_per_step,
                held.held_out_tokens_per_step,
                held.held_out_tokens_per_step_ci,
                held.optimism,
                difference,
                ratio,
            )
        )
    return compared


def _paired(first: Pool, other: Pool, seed: int) -> tuple[Interval | None, Interval | None]:
    """Held-out difference in tokens_per_step and ratio of speeds; the pools hold the same prompts in the same order."""
    difference = paired_difference((first.tokens, first.steps), (other.tokens, other.steps), seed=seed)
    if not (first.known_ms and other.known_ms):
        return difference, None
    return difference, paired_ratio((first.tokens, first.ms), (other.tokens, other.ms), seed=seed)


@dataclass(frozen=True, slots=True)
class OverfitPoint:
    """The trees of one size that an estimator chose on the halves: replayed there, and on the other halves, pooled."""

    estimator: str
    num_nodes: int
    train_tokens_per_step: float
    held_out_tokens_per_step: float


def overfit_curve(
    trace: RankTrace,
    cost: CostTable | None,
    *,
    estimators: Sequence[str] = ESTIMATORS,
    seed: int = 0,
    **limits: Any,
) -> list[OverfitPoint]:
    """Train and held-out tokens_per_step over N; ``limits`` as for :func:`exact_search`.

    Of the depths of one size the best by the objective is taken. A refit counts where the steps of its best tree start,
    for all sizes.

    Raises:
        InputError: as :func:`~mtp_bench.search.robustness.held_out.choose_on_half`.
    """
    points = []
    for estimator in estimators:
        pools: dict[int, tuple[Pool, Pool]] = {}
        for chosen_on, other in split(trace, seed):
            found = fit(estimator, chosen_on, cost, **limits).exact
            for point in found.curve.best_by_size(found.objective):
                if point.num_nodes in _sizes(found.max_nodes):
                    train, held_out = pools.setdefault(point.num_nodes, (Pool([], [], []), Pool([], [], [])))
                    train.add(chosen_on, found.tree_of(point), None)
                    held_out.add(other, found.tree_of(point), None)
        for num_nodes, (train, held_out) in sorted(pools.items()):
            if len(train.tokens) == trace.num_prompts:  # both halves hold a tree of this size
                points.append(OverfitPoint(estimator, num_nodes, _pooled(train), _pooled(held_out)))
    return points


def _sizes(max_nodes: int) -> set[int]:
    """1, 2, 3, 5, 7, 11, 15, 23, 31, ... and the budget: evenly spread on a logarithmic axis."""
    powers = 2 ** np.arange(1, max(max_nodes, 1).bit_length() + 1)
    sizes = {*(powers - 1).tolist(), *(3 * powers // 2 - 1).tolist(), max_nodes}
    return {size for size in sizes if 0 < size <= max_nodes}


def _pooled(pool: Pool) -> float:
    return sum(pool.tokens) / sum(pool.steps)
