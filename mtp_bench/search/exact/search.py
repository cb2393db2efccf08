"""Exact search: the fastest static tree over all sizes and depths.

For each depth limit the best trees of every size are known (`growth`), and a step's cost depends
on size and depth alone, so trying every (N, depth) finds the best ratio of tokens to time - whatever the shape of the
cost curve in N, as long as deeper drafts are not cheaper. "Do not speculate" (N = 0) competes like any other size.

Where drafts cost by the widths of levels too, trees that expand less are tried as well, and a bound on all trees says
how far from the best of them the answer may be (:mod:`mtp_bench.search.exact.widths`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.curve import SPEED, TOKENS, Band, Curve, CurvePoint, NodeMargin, near_best
from mtp_bench.search.exact.growth import Growth, grow_all
from mtp_bench.search.exact.step_costs import StepCosts
from mtp_bench.search.exact.widths import REACH, expanded_along, search_widths
from mtp_bench.search.values.sources import Source
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Trees(Protocol):
    """The best trees of all sizes, however they were found."""

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """The best tree of ``num_nodes`` nodes no deeper than ``max_depth``."""


@dataclass(frozen=True, eq=False)
class ExactResult:
    """What the search found.

    Args:
        objective: ``speed`` or ``tokens``.
        best: the winner; at a tie the smaller, then shallower tree.
        curve: all points.
        band: sizes within 1% of the best (in the objective).
        last_kept: the winner's least valuable node; None for N = 0.
        first_out: the most valuable node outside; None when there is none.
        notes: limits that the search ran into.
        growth: from which any point's tree can be had.
        max_nodes, max_depth: the limits searched, after cutting them to what the costs cover.
        bound_tokens_per_s: no tree within the limits is faster. None where ``best`` is that tree, as it always is
            unless drafts cost by the widths of levels.
    """

    objective: str
    best: CurvePoint
    curve: Curve
    band: Band
    last_kept: NodeMargin | None
    first_out: NodeMargin | None
    notes: tuple[str, ...]
    growth: Trees
    max_nodes: int
    max_depth: int
    bound_tokens_per_s: float | None = field(default=None, kw_only=True)

    @property
    def gap(self) -> float:
        """At most this share of the best tree's speed is missed."""
        if self.bound_tokens_per_s is None or self.best.tokens_per_s is None:
            return 0.0
        return max(0.0, 1 - self.best.tokens_per_s / self.bound_tokens_per_s)

    @property
    def limits(self) -> dict[str, int]:
        """The limits searched, for the topology's file."""
        return {"max_nodes": self.max_nodes, "max_depth": self.max_depth}

    @property
    def do_not_speculate(self) -> bool:
        """Whether plain decoding is the answer."""
        return self.best.num_nodes == 0

    @cached_property
    def tree(self) -> StaticTree:
        """The winner."""
        return self.tree_of(self.best)

    def tree_of(self, point: CurvePoint) -> StaticTree:
        """The tree behind a point of the curve."""
        return self.growth.tree(point.num_nodes, point.depth)

    def drafting(self) -> ExactResult:
        """The same search with N = 0 ruled out; the curve must have a point with a node."""
        score = np.where(self.curve.num_nodes > 0, self.curve.score(self.objective), -np.inf)
        winner = int(np.lexsort((self.curve.depth, self.curve.num_nodes, -score))[0])
        return replace(self, best=self.curve[winner])

    def document(self) -> dict[str, Any]:
        """The ``exact`` object of the ``--json`` documents."""
        bound = {"bound_tokens_per_s": self.bound_tokens_per_s, "gap": self.gap}
        return ({} if self.bound_tokens_per_s is None else bound) | {
            "objective": self.objective,
            "best": asdict(self.best),
            "tree_id": self.tree.id,
            "do_not_speculate": self.do_not_speculate,
            "searched": {"max_nodes": self.max_nodes, "max_depth": self.max_depth, "points": len(self.curve)},
            "band": {"sizes": list(self.band.sizes), "smallest": asdict(self.band.smallest)},
            "last_kept": self.last_kept.document() if self.last_kept else None,
            "first_out": self.first_out.document() if self.first_out else None,
            "notes": list(self.notes),
        }


def exact_search(
    source: Source,
    cost: CostTable | None,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
    objective: str = SPEED,
) -> ExactResult:
    """The best static tree of at most ``max_nodes`` nodes and ``max_depth`` depth.

    Args:
        source: values of nodes.
        cost: costs of steps; may be None for the objective ``tokens``.
        max_nodes: the budget. Cut to what the cost table covers, with a note, when searching for speed.
        max_depth: as deep as the source by default; cut to the measured draft depth likewise.
        context, batch: which costs; see :meth:`CostTable.step_ms`.
        objective: ``speed`` maximises tokens per second, ``tokens`` the expected tokens of a step.

    Raises:
        InputError: an unknown objective, speed without costs, or a negative budget.
    """
    depth = source.max_depth if max_depth is None else min(max_depth, source.max_depth)
    _check(cost, max_nodes, depth, objective)
    notes: list[str] = []
    if cost is not None:
        notes += cost.notes(batch=batch, context=context)
        if objective == SPEED:
            max_nodes, depth = _clamp(cost, max_nodes, depth, batch, context, notes)
    steps = StepCosts.of(cost, depth, batch, context)
    if steps.wide is not None and objective == SPEED:
        return _wide_search(source, steps, max_nodes, depth, tuple(notes))
    # One node more than the budget, so that the first node left out is known there too.
    growth = grow_all(source, max_nodes=max_nodes + 1, max_depth=depth)
    curve = _curve(growth, max_nodes, steps)
    score = curve.score(objective)
    winner = int(np.lexsort((curve.depth, curve.num_nodes, -score))[0])
    best = curve[winner]
    return ExactResult(
        objective=objective,
        best=best,
        curve=curve,
        band=near_best(curve, objective),
        # What a node adds to a step is not a matter of size and depth where levels cost by width.
        last_kept=_last_kept(growth, best, steps) if steps.wide is None else None,
        first_out=_first_out(growth, best, depth, steps) if steps.wide is None else None,
        notes=tuple(notes),
        growth=growth,
        max_nodes=max_nodes,
        max_depth=depth,
    )


def _wide_search(
    source: Source, steps: StepCosts, max_nodes: int, max_depth: int, notes: tuple[str, ...]
) -> ExactResult:
    """The search for speed where drafts cost by the widths of levels."""
    growth = grow_all(source, max_nodes=REACH * max_nodes, max_depth=max_depth)
    trees, bound = search_widths(growth, max_nodes, steps)
    curve = trees.curve()
    best = curve[int(np.lexsort((curve.depth, curve.num_nodes, -curve.score(SPEED)))[0])]
    return ExactResult(
        SPEED, best, curve, near_best(curve, SPEED), None, None, notes, trees, max_nodes, max_depth,
        bound_tokens_per_s=1e3 * bound,
    )  # fmt: skip


def _check(cost: CostTable | None, max_nodes: int, max_depth: int, objective: str) -> None:
    if objective not in (SPEED, TOKENS):
        raise InputError(f"objective '{objective}'", where="--objective", fix="choose speed or tokens")
    if objective == SPEED and cost is None:
        raise InputError("no costs to search for speed with", fix="give --cost FILE or use --objective tokens")
    if max_nodes < 0 or max_depth < 0:
        raise InputError(f"a budget of {max_nodes} nodes and depth {max_depth}", fix="give numbers of at least 0")


def _clamp(
    cost: CostTable, max_nodes: int, depth: int, batch: int, context: int | None, notes: list[str]
) -> tuple[int, int]:
    """Cut the budget to what the cost table covers, saying so in ``notes``."""
    rows = cost.rows_limit(batch=batch, context=context)
    if max_nodes + 1 > rows:
        notes.append(f"costs are known to {rows} rows: sizes above {rows - 1} nodes (of {max_nodes}) were not searched")
        max_nodes = rows - 1
    deepest = cost.depth_limit(batch=batch)
    if deepest is not None and depth > deepest:
        notes.append(f"draft costs are known to depth {deepest}: deeper trees (to {depth}) were not searched")
        depth = deepest
    return max_nodes, depth


def _curve(growth: Growth, max_nodes: int, steps: StepCosts) -> Curve:
    sizes, depths, tokens = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)], [np.ones(1)]
    widths = [np.zeros((1, max(len(growth.orders) - 1, 1)), dtype=np.int64)]
    for limit, full in enumerate(growth.orders, start=1):
        order = full[:max_nodes]
        depth = np.maximum.accumulate(growth.depth[order])
        new = depth == limit  # until a node of this depth enters, the trees are those of the limit before
        sizes.append((1 + np.arange(len(order)))[new])
        depths.append(depth[new])
        tokens.append((1.0 + np.cumsum(growth.value[order]))[new])
        if steps.wide is not None:
            widths.append(expanded_along(growth, order)[new])
    num_nodes, depth, tau = np.concatenate(sizes), np.concatenate(depths), np.concatenate(tokens)
    ms = steps.ms(num_nodes, depth, None if steps.wide is None else np.concatenate(widths))
    return Curve(num_nodes, depth, tau, ms, 1e3 * tau / ms, tau * (ms[0] / ms))


def _last_kept(growth: Growth, best: CurvePoint, steps: StepCosts) -> NodeMargin | None:
    if best.num_nodes == 0:
        return None
    order = growth.order(best.depth)[: best.num_nodes]
    depth_without = int(growth.depth[order[:-1]].max(initial=0))
    return _margin(growth, int(order[-1]), best, steps.one(best.num_nodes - 1, depth_without), sign=-1)


def _first_out(growth: Growth, best: CurvePoint, max_depth: int, steps: StepCosts) -> NodeMargin | None:
    kept = set(growth.order(best.depth)[: best.num_nodes].tolist())
    outside = next((int(i) for i in growth.order(max_depth) if int(i) not in kept), None)
    if outside is None:
        return None
    depth_with = max(best.depth, int(growth.depth[outside]))
    return _margin(growth, outside, best, steps.one(best.num_nodes + 1, depth_with), sign=1)


def _margin(growth: Growth, node: int, best: CurvePoint, other_ms: float | None, *, sign: int) -> NodeMargin:
    """``other_ms`` is the step's cost with the node (sign 1) or without it (sign -1)."""
    path, value = growth.path(node), float(growth.value[node])
    if other_ms is None or best.step_ms is None:
        return NodeMargin(path, value, None, None)
    delta = other_ms - best.step_ms if sign > 0 else best.step_ms - other_ms
    return NodeMargin(path, value, delta, delta * best.tokens_per_step / best.step_ms)
