"""Costs of steps as arrays, for scoring whole curves at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.cost.widths import drafts_ms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepCosts:
    """Costs as arrays: verify ms by rows - 1, draft ms by depth; empty without a cost table.

    ``wide`` is there where drafts cost by the widths of levels too (see :mod:`mtp_bench.cost.widths`); ``draft`` is
    then the least that a draft so deep takes.
    """

    verify: Floats
    draft: Floats
    wide: Floats | None = None

    @classmethod
    def of(cls, cost: CostTable | None, max_depth: int, batch: int, context: int | None) -> StepCosts:
        """The costs of one batch and context, for trees no deeper than ``max_depth``."""
        if cost is None:
            return cls(np.zeros(0), np.zeros(0))
        limit = cost.depth_limit(batch=batch)
        deepest = max_depth if limit is None else min(max_depth, limit)
        draft = cost.draft_curve(deepest, batch=batch, context=context)
        wide = cost.draft_widths(deepest, batch=batch, context=context) if cost.has_widths else None
        return cls(cost.verify_curve(batch=batch, context=context), draft, wide)

    def ms(self, num_nodes: Ints, depth: Ints, widths: Ints | None = None) -> Floats:
        """float64: cost of steps; NaN where unknown.

        Args:
            widths: int64 [n, L], nodes expanded at depths 1..L; needed where ``wide`` is there and whole costs are
                asked for, not their lower bounds.
        """
        if not len(self.verify):
            return np.full(len(num_nodes), np.nan)
        known = (num_nodes < len(self.verify)) & (depth < len(self.draft))
        verify = self.verify[np.minimum(num_nodes, len(self.verify) - 1)]
        within = np.minimum(depth, len(self.draft) - 1)
        draft = self.draft[within] if self.wide is None or widths is None else drafts_ms(self.wide, within, widths)
        return np.where(known, verify + draft, np.nan)

    def one(self, num_nodes: int, depth: int) -> float | None:
        """Cost of one step, as of :meth:`ms`; None where unknown."""
        ms = float(self.ms(np.array([num_nodes]), np.array([depth]))[0])
        return None if np.isnan(ms) else ms
