"""Medusa's own estimator: each head's accuracy over all positions, multiplied along the path as if independent.

Two errors work against each other: heads are right together, which the product misses (too low), and steps start where
the last draft failed, which an average over all positions misses (too high). Kept to compare with, since the published
trees were made with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtp_bench.trace import RankTrace
from mtp_bench.trace.ranks import MISS

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MarginalHits:
    """Hits by depth and rank, whatever happened at the depths before.

    Args:
        hits: float64 [P, D, K], by prompt, counted by its weight.
        rows: float64 [P, D], rows whose text goes on for so many tokens, likewise.
    """

    hits: Floats
    rows: Floats

    @classmethod
    def of(cls, trace: RankTrace) -> MarginalHits:
        """Count a trace."""
        shape = trace.num_prompts, trace.depth, trace.top_k
        row, depth = np.nonzero(trace.ranks != MISS)
        cells = np.ravel_multi_index((trace.prompt_of_row[row], depth, trace.ranks[row, depth]), shape)
        hits = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)
        rows = np.maximum(trace.prompt_lengths[:, None] - np.arange(1, trace.depth + 1), 0)
        often = np.ones(trace.num_prompts) if trace.weights is None else trace.weights
        return cls(hits * often[:, None, None], rows * often[:, None])

    def rates(self, prompt_weights: npt.NDArray[np.int64] | None = None) -> Floats:
        """float64 [D, K]: hits / rows, the ``marginal_hit_rate`` of acceptance.csv; 0 without an observation.

        Args:
            prompt_weights: int64 [P], how often each prompt counts; once when None.
        """
        weights = np.ones(len(self.hits)) if prompt_weights is None else prompt_weights.astype(np.float64)
        rows = weights @ self.rows
        return np.asarray(np.tensordot(weights, self.hits, axes=1) / np.where(rows > 0, rows, 1.0)[:, None])
