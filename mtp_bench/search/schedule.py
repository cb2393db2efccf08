"""The best topology for every batch size, and the schedule an engine would follow: one topology per range of sizes.

At a larger batch the same rows cost more, so fewer nodes pay, and at last none. A schedule changes its topology only
where the paired interval says that the one in use is really slower than the best there: what is a tie on these prompts
is no reason to switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import Evaluation, evaluate, evaluate_all
from mtp_bench.search.optimize import OptimizeOptions, best_of_kinds
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace

NO_TREE = StaticTree(())


@dataclass(frozen=True, eq=False)
class Cell:
    """The best topology at one batch size; ``evaluation`` is its replay, per sequence."""

    batch: int
    topology: Topology
    evaluation: Evaluation
    measured: bool

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted."""
        return self.topology.num_nodes > 0

    def document(self) -> dict[str, Any]:
        """For ``schedule.json``."""
        figures = self.evaluation.document()
        return {"batch": self.batch, "name": name_of(self.topology), "measured": self.measured, **figures}


@dataclass(frozen=True, eq=False)
class Range:
    """Batch sizes ``first`` to ``last``, served with one topology.

    Attributes:
        speed_lost: the largest share of the best topology's predicted speed that is given up within the range.
    """

    first: int
    last: int
    topology: Topology
    speed_lost: float

    def document(self) -> dict[str, Any]:
        """For ``schedule.json``."""
        tree = self.topology
        paths = [list(path) for path in tree.paths] if isinstance(tree, StaticTree) else None
        return {
            "min_batch_size": self.first,
            "max_batch_size": self.last,
            "name": name_of(tree),
            "topology_id": tree.id,
            "num_nodes": tree.num_nodes,
            "depth": tree.depth,
            "paths": paths,
            "speed_lost": self.speed_lost,
        }


@dataclass(frozen=True, eq=False)
class Schedule:
    """Cells of every batch size up to the largest, and the ranges made of them."""

    cells: list[Cell]
    ranges: list[Range]

    def document(self) -> dict[str, Any]:
        """The body of ``schedule.json``."""
        return {
            "cells": [cell.document() for cell in self.cells],
            "batch_schedule": [one.document() for one in self.ranges],
        }


def schedule(trace: RankTrace, cost: CostTable, options: OptimizeOptions, batches: Sequence[int]) -> Schedule:
    """Search every batch size from the smallest to the largest of ``batches``, and join them to ranges.

    Sizes between measured ones take costs between theirs.

    Raises:
        InputError: the costs do not reach to these batch sizes.
    """
    known = cost.batches
    outside = [batch for batch in batches if not known[0] <= batch <= known[-1]]
    if outside:
        raise InputError(
            f"no costs for batch {outside[0]}: measured from {known[0]} to {known[-1]}",
            where="--batch",
            fix=f"run mtp-bench measure-cost with --batch 1,{max(batches)} and give its cost.csv with --cost",
        )
    every = range(min(batches), max(batches) + 1)
    cells = [_cell(trace, cost, replace(options, batch=batch, trials=0)) for batch in every]
    return Schedule(cells, _ranges(trace, cost, options, cells))


def _cell(trace: RankTrace, cost: CostTable, options: OptimizeOptions) -> Cell:
    best = best_of_kinds(trace, cost, options)
    topology, evaluation = best.topology, best.evaluation
    if evaluation.speedup_predicted is None or evaluation.speedup_predicted <= 1:
        # The best chain or dynamic tree may still be slower than drafting nothing.
        topology = NO_TREE
        evaluation = evaluate(NO_TREE, trace, cost, context=options.context, batch=options.batch, seed=options.seed)
    return Cell(options.batch, topology, evaluation, options.batch in cost.batches)


def _ranges(trace: RankTrace, cost: CostTable, options: OptimizeOptions, cells: Sequence[Cell]) -> list[Range]:
    ranges = [Range(cells[0].batch, cells[0].batch, cells[0].topology, 0.0)]
    for cell in cells[1:]:
        current = ranges[-1]
        lost = _lost(trace, cost, options, cell, current.topology)
        if lost is None:
            ranges.append(Range(cell.batch, cell.batch, cell.topology, 0.0))
        else:
            ranges[-1] = replace(current, last=cell.batch, speed_lost=max(current.speed_lost, lost))
    return ranges


def _lost(trace: RankTrace, cost: CostTable, options: OptimizeOptions, cell: Cell, current: Topology) -> float | None:
    """Share of the best speed that ``current`` gives up at the cell's batch; None where it is really slower."""
    if current.id == cell.topology.id:
        return 0.0
    place: dict[str, Any] = {"context": options.context, "batch": cell.batch, "seed": options.seed}
    ratio = evaluate_all([cell.topology, current], trace, cost, **place)[1].speed_ratio
    if ratio is None or ratio.high < 1:
        return None
    return max(0.0, 1 - ratio.value)
