"""The best topology at one batch size and context, and what the best that drafts at all would do there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from mtp_bench.cost import VERIFY, CostTable
from mtp_bench.search.evaluate import Evaluation, evaluate
from mtp_bench.search.optimize import OptimizeOptions, best_of_kinds
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace

NO_TREE = StaticTree(())

Basis = Literal["measured", "interpolated", "nearest"]


@dataclass(frozen=True, eq=False)
class Cell:
    """The best topology at one batch size and context, with its replay per sequence.

    Attributes:
        context: cached tokens at which costs were taken; None = the smallest measured.
        topology, evaluation: the winner; N = 0 where nothing that drafts is faster.
        draft, draft_evaluation: the fastest topology of at least one node, which may be slower than none; None where
            the costs know no second row.
        basis: whether its costs were measured at just this batch size and context, lie between measured ones, or are
            those of the nearest measured context.
    """

    batch: int
    context: int | None
    topology: Topology
    evaluation: Evaluation
    draft: Topology | None
    draft_evaluation: Evaluation | None
    basis: Basis

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.topology.num_nodes > 0

    @property
    def measured(self) -> bool:
        """Whether the costs were measured just here."""
        return self.basis == "measured"

    def document(self) -> dict[str, Any]:
        """For ``schedule.json`` and ``operating_range.json``."""
        place = {"batch": self.batch, "context": self.context, "name": name_of(self.topology)}
        figures = self.evaluation.document()
        return {**place, "basis": self.basis, "measured": self.measured, **figures, "best_that_drafts": self._drafted()}

    def _drafted(self) -> dict[str, Any] | None:
        if self.draft is None or self.draft_evaluation is None:
            return None
        figures = self.draft_evaluation.document()
        names = ("num_nodes", "depth", "tokens_per_step", "step_ms", "speedup_predicted", "speedup_predicted_ci")
        return {"name": name_of(self.draft), **{name: figures[name] for name in names}}


def find_cell(trace: RankTrace, cost: CostTable, options: OptimizeOptions) -> Cell:
    """Search one batch size and context (those of ``options``).

    Raises:
        InputError: no costs there.
    """
    place: dict[str, Any] = {"context": options.context, "batch": options.batch, "seed": options.seed}
    basis = basis_of(cost, options.batch, options.context) or "nearest"
    # Where rules leave it to Optuna, it is needed; beside an exact search it would say nothing new.
    trials = options.trials if options.constraints.restricts_static else 0
    draft = best_of_kinds(trace, cost, replace(options, trials=trials), drafting=True)
    if draft is not None and draft.evaluation.speedup_predicted and draft.evaluation.speedup_predicted > 1:
        best, figures = draft.topology, draft.evaluation
    else:
        best, figures = NO_TREE, evaluate(NO_TREE, trace, cost, **place)
    return Cell(
        options.batch, options.context, best, figures, draft.topology if draft else None,
        draft.evaluation if draft else None, basis,
    )  # fmt: skip


def basis_of(cost: CostTable, batch: int, context: int | None) -> Literal["measured", "interpolated"] | None:
    """What costs at this batch size and context rest on; None outside the measured ones."""
    known = cost.batches
    if batch not in known:
        if not known[0] < batch < known[-1]:
            return None
        sides = (max(b for b in known if b < batch), min(b for b in known if b > batch))
        return None if any(basis_of(cost, side, context) is None for side in sides) else "interpolated"
    contexts = _contexts(cost, batch)
    if context is None or context in contexts:
        return "measured"
    return "interpolated" if min(contexts) < context < max(contexts) else None


def _contexts(cost: CostTable, batch: int) -> set[int]:
    return {p.context for p in cost.points if p.ok and p.component == VERIFY and p.batch == batch}


def known_batches(cost: CostTable, batches: Iterable[int], context: int | None) -> list[int]:
    """Those of ``batches`` with costs at ``context``."""
    return [batch for batch in batches if basis_of(cost, batch, context) is not None]
