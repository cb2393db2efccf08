"""The best topology for every batch size, and the schedule an engine would follow: one topology per range of sizes.

At a larger batch the same rows cost more, so fewer nodes pay, and at last none. A topology may serve a size unless the
paired interval says that it is really slower than the best one there: what is a tie on these prompts is no reason to
switch. Of all ways to cut the sizes into ranges the schedule is the one with the fewest ranges, then the least speed
given up, then the fewest nodes. That is a property of the sizes together, not of a walk over them, so there is no
direction in which it could lag behind (no hysteresis).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import evaluate_all
from mtp_bench.search.operating.cells import Cell, find_cell, known_batches
from mtp_bench.search.optimize import OptimizeOptions
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace

Floats = npt.NDArray[np.float64]


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
    span = range(min(batches), max(batches) + 1)
    every = known_batches(cost, span, options.context) or span
    cells = [find_cell(trace, cost, replace(options, batch=batch)) for batch in every]
    candidates = list({cell.topology.id: cell.topology for cell in cells}.values())
    lost = np.array([_lost(trace, cost, options.seed, cell, candidates) for cell in cells]).T
    nodes = [tree.num_nodes for tree in candidates]
    ranges = [
        Range(cells[first].batch, cells[last].batch, candidates[chosen], float(lost[chosen, first : last + 1].max()))
        for first, last, chosen in join(lost, nodes)
    ]
    return Schedule(cells, ranges)


class Span(NamedTuple):
    """Cells ``first`` to ``last`` (indices), served by one candidate."""

    first: int
    last: int
    candidate: int


def join(lost: Floats, num_nodes: Sequence[int]) -> list[Span]:
    """Cut the cells into spans of one candidate each: fewest spans, then least loss in sum, then fewest nodes in sum.

    Args:
        lost: float64 [candidates, cells], share of the best speed given up; inf where a candidate may not serve.
            Every cell must have a candidate that may.
        num_nodes: of each candidate.
    """
    cells = lost.shape[1]
    best: list[tuple[int, float, int]] = [(0, 0.0, 0)]  # for the cells before each one: spans, loss, nodes
    came: list[Span] = []
    for end in range(1, cells + 1):
        options = []
        for candidate in np.flatnonzero(np.isfinite(lost[:, end - 1])).tolist():
            for first in range(end - 1, -1, -1):
                if not math.isfinite(lost[candidate, first]):
                    break
                loss = float(lost[candidate, first:end].sum())
                spans, before, nodes = best[first]
                score = (spans + 1, round(before + loss, 12), nodes + num_nodes[candidate] * (end - first))
                options.append((score, Span(first, end - 1, candidate)))
        score, span = min(options)
        best.append(score)
        came.append(span)
    found = [came[-1]]
    while found[-1].first > 0:
        found.append(came[found[-1].first - 1])
    return found[::-1]


def _lost(trace: RankTrace, cost: CostTable, seed: int, cell: Cell, candidates: Sequence[Topology]) -> list[float]:
    """Share of the best speed at the cell that each candidate gives up there; inf where it is really slower."""
    place: dict[str, Any] = {"context": cell.context, "batch": cell.batch, "seed": seed}
    others = evaluate_all([cell.topology, *candidates], trace, cost, **place)[1:]
    lost = []
    for tree, one in zip(candidates, others, strict=True):
        if tree.id == cell.topology.id:
            lost.append(0.0)
        elif one.speed_ratio is None or one.speed_ratio.high < 1:
            lost.append(math.inf)
        else:
            lost.append(max(0.0, 1 - one.speed_ratio.value))
    return lost
