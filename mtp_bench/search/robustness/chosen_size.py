"""How firm is the chosen size? Prompts are resampled and the exact search is run again on each resample.

The speedup curve is flat around its top, so another sample of prompts may well choose another N. That is harmless where
the sizes chosen are all within 1% of the best, and worth knowing where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.estimators import Fit
from mtp_bench.trace import RankTrace, resample_weights

RESAMPLES = 500
WIDE_RESAMPLES = 100  # where drafts cost by the widths of levels, a search takes ten times as long

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ChosenSizes:
    """What each resample chose.

    Args:
        best: the size chosen on all prompts.
        band: sizes within 1% of it.
        num_nodes, depth: int64 [resamples], of the resamples' best trees.
        loss: float64 [resamples]: share of the best objective, on all prompts, that the resample's size gives up.
        seed: of the resampling.
    """

    best: int
    band: tuple[int, ...]
    num_nodes: Ints
    depth: Ints
    loss: npt.NDArray[np.float64]
    seed: int

    @property
    def resamples(self) -> int:
        """How many resamples were searched."""
        return len(self.num_nodes)

    @property
    def same_size(self) -> float:
        """Share of resamples that chose the same N."""
        return float(np.mean(self.num_nodes == self.best))

    @property
    def within_band(self) -> float:
        """Share of resamples that chose an N within 1% of the best."""
        return float(np.mean(np.isin(self.num_nodes, self.band)))

    @property
    def num_nodes_ci(self) -> tuple[int, int]:
        """The middle 95% of the chosen sizes."""
        low, high = np.quantile(self.num_nodes, [0.025, 0.975], method="inverted_cdf")
        return int(low), int(high)

    @property
    def loss_95(self) -> float:
        """The loss that 95% of the resamples' sizes do not exceed."""
        return float(np.quantile(self.loss, 0.95))

    def document(self) -> dict[str, Any]:
        """The ``chosen_size`` object of ``optimize.json``."""
        return {
            "resamples": self.resamples,
            "seed": self.seed,
            "best": self.best,
            "band": list(self.band),
            "num_nodes": _counts(self.num_nodes, "num_nodes"),
            "depth": _counts(self.depth, "depth"),
            "num_nodes_ci": list(self.num_nodes_ci),
            "share_same_size": self.same_size,
            "share_within_band": self.within_band,
            "loss_95": self.loss_95,
        }


def chosen_sizes(
    found: Fit,
    trace: RankTrace,
    cost: CostTable | None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    **limits: Any,
) -> ChosenSizes | None:
    """Search again on resampled prompts; ``limits`` as for :func:`exact_search`. None with fewer than two prompts.

    The paths of the trace are indexed once; a resample only counts them anew, each prompt as often as it was drawn.
    Resamples without a single step (all prompts drawn are empty) are left out.
    """
    if trace.num_prompts < 2:
        return None
    if cost is not None and cost.has_widths:
        resamples = min(resamples, WIDE_RESAMPLES)
    steps_of = np.maximum(trace.prompt_lengths - 1, 0)
    draws = [w for w in resample_weights(trace.num_prompts, resamples=resamples, seed=seed) if w @ steps_of]
    points = [exact_search(found.weigh(weights), cost, **limits).best for weights in draws]
    sizes = np.array([point.num_nodes for point in points], dtype=np.int64)
    depths = np.array([point.depth for point in points], dtype=np.int64)
    exact = found.exact
    by_size = exact.curve.best_by_size(exact.objective)
    score = np.array([p.tokens_per_step if p.tokens_per_s is None else p.tokens_per_s for p in by_size])
    # A size without a point (its trees are wider than costs are known) is judged by the next smaller one.
    place = np.searchsorted([p.num_nodes for p in by_size], sizes, side="right") - 1
    return ChosenSizes(exact.best.num_nodes, exact.band.sizes, sizes, depths, 1 - score[place] / score.max(), seed)


def _counts(values: Ints, name: str) -> list[dict[str, int]]:
    found, times = np.unique(values, return_counts=True)
    return [{name: value, "times": count} for value, count in zip(found.tolist(), times.tolist(), strict=True)]
