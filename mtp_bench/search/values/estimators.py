"""How node values are estimated from a trace: four ways, each searched exactly, all judged by the same replay.

* ``trie``: true-rank paths counted over all positions; no assumption (:mod:`mtp_bench.search.values.trie`);
* ``shrunk``: the trie pulled towards each depth's rank law, for small samples (:mod:`mtp_bench.search.values.shrunk`);
* ``refit``: paths counted where steps really start (:mod:`mtp_bench.search.values.refit`);
* ``independent``: per-head accuracies multiplied, as Medusa's script does (:mod:`mtp_bench.search.values.independent`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.values.independent import MarginalHits
from mtp_bench.search.values.refit import Refit, refit
from mtp_bench.search.values.shrunk import ShrunkSource
from mtp_bench.search.values.sources import MarginalSource, Source
from mtp_bench.search.values.trie import PathIndex, TrieSource
from mtp_bench.trace import RankTrace

TRIE, SHRUNK, REFIT, INDEPENDENT = "trie", "shrunk", "refit", "independent"
ESTIMATORS = (TRIE, SHRUNK, REFIT, INDEPENDENT)

PromptWeights = npt.NDArray[np.int64]
Weigh = Callable[[PromptWeights | None], Source]


@dataclass(frozen=True, eq=False)
class Fit:
    """An estimator on a trace, with the best tree by its values.

    Args:
        estimator: one of :data:`ESTIMATORS`.
        source: its node values.
        exact: the search on them; the tokens_per_step in there are the estimator's own.
        weigh: the source again with each prompt counted so many times (int64 [P]), for resampling. A refit keeps the
            positions at which the steps of its tree start.
        refit: the rounds of a refit.
    """

    estimator: str
    source: Source
    exact: ExactResult
    weigh: Weigh
    refit: Refit | None = None


def fit(estimator: str, trace: RankTrace, cost: CostTable | None, **limits: Any) -> Fit:
    """Estimate node values on ``trace`` and search them; ``limits`` as for :func:`exact_search`.

    Raises:
        InputError: an unknown estimator, a trace without steps, or as :func:`exact_search`.
    """
    check_estimator(estimator)
    rounds = refit(trace, cost, **limits) if estimator == REFIT else None
    weigh = _weigher(estimator, trace, rounds)
    source = weigh(None)
    return Fit(estimator, source, exact_search(source, cost, **limits), weigh, rounds)


def check_estimator(estimator: str) -> None:
    """Refuse unknown names.

    Raises:
        InputError: not one of :data:`ESTIMATORS`.
    """
    if estimator not in ESTIMATORS:
        names = ", ".join(ESTIMATORS[:-1]) + f" or {ESTIMATORS[-1]}"
        raise InputError(f"unknown estimator {estimator!r}", where="--estimator", fix=f"use {names}")


def check_table_estimator(estimator: str) -> None:
    """Refuse what rates by rank cannot give: they know nothing of paths or prompts, so only their product is left.

    Raises:
        InputError: an unknown estimator, or one that needs a trace.
    """
    check_estimator(estimator)
    if estimator not in (TRIE, INDEPENDENT):
        raise InputError(
            f"acceptance rates alone cannot be {estimator}", where="--estimator", fix="search on a profiled run"
        )


def _weigher(estimator: str, trace: RankTrace, rounds: Refit | None) -> Weigh:
    if estimator == INDEPENDENT:
        hits = MarginalHits.of(trace)
        return lambda weights: MarginalSource(hits.rates(weights))
    starts = None if rounds is None else rounds.starts
    index = PathIndex.of(trace, room=0 if starts is None else 1)

    @cache
    def by_prompt() -> PathIndex:
        return index.by_prompt(trace, starts)

    def counted(weights: PromptWeights | None) -> TrieSource:
        return index.counted(starts) if weights is None else by_prompt().counted(weights)

    return (lambda weights: ShrunkSource(counted(weights))) if estimator == SHRUNK else counted
