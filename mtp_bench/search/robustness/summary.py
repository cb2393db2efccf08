"""How far the chosen static tree and its figures hang on the sample of prompts and on the estimator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mtp_bench.cost import CostTable
from mtp_bench.search.robustness.chosen_size import ChosenSizes, chosen_sizes
from mtp_bench.search.robustness.comparison import Compared, OverfitPoint, compare_estimators, overfit_curve
from mtp_bench.search.values.estimators import Fit
from mtp_bench.search.values.refit import Refit
from mtp_bench.trace import RankTrace


@dataclass(frozen=True, eq=False)
class Robustness:
    """What stands beside the choice.

    Attributes:
        estimators: all of them side by side.
        overfit: their train and held-out figures over N.
        sizes: what resamples of the prompts would have chosen.
        refit: the rounds, when the estimator asked for was the refit.
    """

    estimators: list[Compared]
    overfit: list[OverfitPoint]
    sizes: ChosenSizes | None
    refit: Refit | None

    @classmethod
    def of(cls, found: Fit, trace: RankTrace, cost: CostTable | None, *, seed: int = 0, **limits: Any) -> Robustness:
        """Work it out for the estimator that was asked for; ``limits`` as for :func:`exact_search`.

        Raises:
            InputError: fewer than two prompts with steps in them.
        """
        return cls(
            compare_estimators(trace, cost, seed=seed, **limits),
            overfit_curve(trace, cost, seed=seed, **limits),
            chosen_sizes(found, trace, cost, seed=seed, **limits),
            found.refit,
        )

    def document(self) -> dict[str, Any]:
        """Its parts of ``optimize.json``."""
        return {
            "estimators": [one.document() for one in self.estimators],
            "overfit": [asdict(point) for point in self.overfit],
            "chosen_size": None if self.sizes is None else self.sizes.document(),
            "refit": None if self.refit is None else self.refit.document(),
        }
