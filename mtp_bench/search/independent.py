"""Medusa's own estimator: each head's accuracy over all positions, multiplied along the path as if independent.

Two errors work against each other: heads are right together, which the product misses (too low), and steps start where
the last draft failed, which an average over all positions misses (too high). Kept to compare with, since the published
trees were made with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mtp_bench.trace import RankTrace
from mtp_bench.trace.ranks import MISS


def marginal_rates(trace: RankTrace, prompt_weights: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
    """float64 [D, K]: P(depth d hits at rank r), whatever happened before; ``marginal_hit_rate`` of acceptance.csv.

    Args:
        trace: the ranks.
        prompt_weights: int64 [P], how often each prompt counts; once when None. Rates without an observation are 0.
    """
    prompts = np.ones(trace.num_prompts, dtype=np.int64) if prompt_weights is None else prompt_weights
    rows = prompts[trace.prompt_of_row]
    rates = np.zeros((trace.depth, trace.top_k))
    for d in range(trace.depth):
        hit = np.flatnonzero(trace.ranks[:, d] != MISS)
        total = int(rows[trace.tokens_left > d].sum())
        rates[d] = np.bincount(trace.ranks[hit, d], weights=rows[hit], minlength=trace.top_k) / max(total, 1)
    return rates
