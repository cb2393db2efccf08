"""The operating range: the best topology at every batch size and context, and a schedule over batch sizes for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.operating.cells import Cell, basis_of, find_cell, known_batches
from mtp_bench.search.operating.schedule import Range, schedule
from mtp_bench.search.optimize import OptimizeOptions
from mtp_bench.trace import RankTrace


@dataclass(frozen=True, eq=False)
class OperatingRange:
    """The map.

    Attributes:
        batches, contexts: its axes.
        cells: the best of each place with costs; nothing is guessed for the others.
        schedules: context -> ranges of batch sizes, over the batch sizes with costs there.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    cells: tuple[Cell, ...]
    schedules: dict[int, list[Range]]

    def document(self) -> dict[str, Any]:
        """The body of ``operating_range.json``."""
        known = {(cell.batch, cell.context) for cell in self.cells}
        places = [(batch, context) for context in self.contexts for batch in self.batches]
        return {
            "batches": list(self.batches),
            "contexts": list(self.contexts),
            "cells": [cell.document() for cell in self.cells],
            "without_costs": [{"batch": b, "context": c} for b, c in places if (b, c) not in known],
            "schedules": [
                {"context": context, "batch_schedule": [one.document() for one in ranges]}
                for context, ranges in self.schedules.items()
            ],
        }


def operating_range(
    trace: RankTrace, cost: CostTable, options: OptimizeOptions, batches: Sequence[int], contexts: Sequence[int]
) -> OperatingRange:
    """Search every (batch, context); costs between measured places are interpolated, none are taken from beyond them.

    Raises:
        InputError: a batch size or context without costs anywhere on the map.
    """
    _check(cost, batches, contexts)
    cells: list[Cell] = []
    schedules: dict[int, list[Range]] = {}
    for context in contexts:
        here, at = known_batches(cost, batches, context), replace(options, context=context)
        if len(here) > 1:
            found = schedule(trace, cost, at, here)
            schedules[context] = found.ranges
            cells += [cell for cell in found.cells if cell.batch in here]
        else:
            cells += [find_cell(trace, cost, replace(at, batch=batch)) for batch in here]
    return OperatingRange(tuple(batches), tuple(contexts), tuple(cells), schedules)


def _check(cost: CostTable, batches: Sequence[int], contexts: Sequence[int]) -> None:
    fix = "run mtp-bench measure-cost over these batch sizes and contexts and give its cost.csv with --cost"
    for batch in batches:
        if all(basis_of(cost, batch, context) is None for context in contexts):
            known = ", ".join(map(str, cost.batches))
            raise InputError(f"no costs for batch {batch}: measured {known}", where="--batch", fix=fix)
    for context in contexts:
        if not known_batches(cost, batches, context):
            known = ", ".join(map(str, cost.contexts))
            raise InputError(f"no costs for context {context}: measured {known}", where="--context", fix=fix)
