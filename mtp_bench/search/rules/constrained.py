"""The best static tree that an engine can load: the exact search under rules, and where that ends, Optuna.

==============================  ==================================================================================
rule                            method
==============================  ==================================================================================
nodes, depth, ranks             best-first growth; such rules only delete subtrees
contiguous siblings             dynamic programme over subtrees (:mod:`mtp_bench.search.rules.subtrees`)
children of a node              growth under the product model, the dynamic programme on a trace
width of a level                growth under the product model; on a trace the programme over vectors of widths while
                                its tables are small, else Optuna over beams (:mod:`mtp_bench.search.rules.beams`)
uniform branching               all branchings while they are few, else Optuna (:mod:`mtp_bench.search.rules.uniform`)
multiple of rows                the sizes that keep it, filled up where values run out
==============================  ==================================================================================

Beside what was found stands the unconstrained optimum, which nothing within the rules can exceed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.curve import SPEED, Curve, CurvePoint, near_best
from mtp_bench.search.exact.growth import grow_all
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.exact.step_costs import StepCosts
from mtp_bench.search.rules import beams, uniform
from mtp_bench.search.rules.constraints import UNCONSTRAINED, Constraints
from mtp_bench.search.rules.families import BySize, ByWidths, Family, Grown
from mtp_bench.search.rules.filling import capacity, fill
from mtp_bench.search.rules.subtrees import Siblings, Subtrees, levels_of, work
from mtp_bench.search.rules.uniform import Score
from mtp_bench.search.values.estimators import Fit
from mtp_bench.search.values.sources import Children, MarginalSource, Source
from mtp_bench.topology import StaticTree

MOST_WORK = 2e9  # elementary operations of the programme over widths; some seconds
SMALLEST_GAIN = 1e-12  # in expected tokens; less is rounding

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ConstrainedResult(ExactResult):
    """What the search under rules found; ``growth`` is the family it found it in.

    Args:
        constraints: the rules.
        bound: the best of all trees, whatever the rules.
        method: how the trees were found.
        proven: whether no better tree keeps the rules.
        scored: trees or branchings scored one by one, 0 where none were.
    """

    constraints: Constraints = UNCONSTRAINED
    bound: CurvePoint | None = None
    method: str = ""
    proven: bool = True
    scored: int = 0

    @property
    def lost(self) -> float:
        """Share of the unconstrained optimum's objective that the rules cost."""
        if self.bound is None:
            return 0.0
        return max(0.0, 1 - _objective(self.best, self.objective) / _objective(self.bound, self.objective))

    def document(self) -> dict[str, Any]:
        """As of :class:`ExactResult`, with the rules and the bound."""
        return super().document() | {
            "constraints": self.constraints.document(),
            "engine": self.constraints.name or None,
            "method": self.method,
            "proven": self.proven,
            "scored": self.scored,
            "unconstrained": None if self.bound is None else asdict(self.bound),
            "lost_to_constraints": self.lost,
        }


def constrained_search(
    source: Source,
    cost: CostTable | None,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    constraints: Constraints = UNCONSTRAINED,
    trials: int = 200,
    seed: int = 0,
    **place: Any,
) -> ExactResult:
    """The best static tree within the rules; without any, :func:`exact_search` itself.

    Args:
        source, cost, max_nodes, max_depth, place: as for :func:`exact_search`.
        constraints: what the tree must keep.
        trials, seed: of Optuna, where the rules leave no exact search.

    Raises:
        InputError: as :func:`exact_search`; Optuna is needed and not installed.
    """
    bound = exact_search(source, cost, max_nodes=max_nodes, max_depth=max_depth, **place)
    if not constraints.restricts_static:
        return bound
    limits = _Limits.of(constraints, bound, source)
    steps = StepCosts.of(cost, limits.max_depth, place.get("batch", 1), place.get("context"))
    score = partial(_score, steps, bound.objective, constraints)
    family, method, scored = _family(source, constraints, limits, bound, score, trials, seed)
    trees = _Filled(family, constraints, limits)
    curve = _curve(trees, limits, steps)
    by_width = steps.wide is not None and bound.objective == SPEED
    if by_width and cost is not None:
        curve, method = _with_widths(curve, trees, cost, place), f"{method}, then real widths"
    value = curve.score(bound.objective)
    best = curve[int(np.lexsort((curve.depth, curve.num_nodes, -value))[0])]
    reached = _objective(best, bound.objective) >= _objective(bound.best, bound.objective) * (1 - SMALLEST_GAIN)
    proven = reached or not (by_width or method.startswith("optuna"))
    return ConstrainedResult(
        bound.objective, best, curve, near_best(curve, bound.objective), None, None, bound.notes, trees,
        limits.max_nodes, limits.max_depth, constraints, bound.best, method, proven, scored,
    )  # fmt: skip


def within_rules(fitted: Fit, cost: CostTable | None, *, constraints: Constraints, **search: Any) -> ExactResult:
    """The best static tree within the rules by the values of ``fitted``, whose own search knows none.

    Raises:
        InputError: as :func:`constrained_search`, whose arguments ``search`` holds.
    """
    if not constraints.restricts_static:
        return fitted.exact
    return constrained_search(fitted.source, cost, constraints=constraints, **search)


@dataclass(frozen=True, slots=True)
class _Limits:
    """The numbers of the rules, as far as they bind.

    Args:
        ranks: ranks below it may be used.
        children: most children of a node.
        max_width: None where no level can be wider.
    """

    max_nodes: int
    max_depth: int
    ranks: int
    children: int
    max_width: int | None

    @classmethod
    def of(cls, rules: Constraints, bound: ExactResult, source: Source) -> _Limits:
        nodes = min(bound.max_nodes, bound.max_nodes if rules.max_nodes is None else rules.max_nodes)
        depth = min(bound.max_depth, bound.max_depth if rules.max_depth is None else rules.max_depth)
        ranks = min(source.max_rank + 1, source.max_rank + 1 if rules.top_k is None else rules.top_k)
        children = min(ranks, ranks if rules.max_children is None else rules.max_children)
        if rules.chain:
            children = min(children, 1)
        if rules.contiguous or rules.uniform or rules.chain:
            ranks = children
        width = rules.max_width if rules.max_width is not None and rules.max_width < nodes else None
        return cls(nodes, depth, ranks, children, width)

    def capacity(self, max_depth: int) -> int:
        """Most nodes of a tree of this depth."""
        return capacity(max_depth, children=self.children, max_width=self.max_width)


def _family(
    source: Source, rules: Constraints, limits: _Limits, bound: ExactResult, score: Score, trials: int, seed: int
) -> tuple[Family, str, int]:
    """(the best trees by size and depth, the method's name, trees scored one by one)."""
    if rules.uniform:
        return _uniform(source, limits, bound, score, trials, seed)
    own_law = isinstance(source, MarginalSource)
    few = limits.children if limits.children < limits.ranks else None
    siblings = Siblings(rules.contiguous, None if rules.contiguous else few)
    levels = levels_of(source, max_depth=limits.max_depth, top_k=limits.ranks) if limits.max_nodes else []
    if not levels or (not rules.contiguous and (own_law or (few is None and limits.max_width is None))):
        caps = None if few is None else [few] * limits.max_depth
        growth = grow_all(
            _below_rank(source, limits.ranks), max_nodes=limits.max_nodes, max_depth=limits.max_depth,
            max_children=caps, max_width=limits.max_width,
        )  # fmt: skip
        return Grown(growth), "best-first growth", 0
    if limits.max_width is None:
        return BySize(source, siblings, limits.max_nodes, limits.ranks), "dynamic programme", 0
    widths = [min(limits.max_width, limits.children**depth) for depth in range(1, len(levels) + 1)]
    if work(levels, widths) * (1 if few is None else few) <= MOST_WORK:
        programme = Subtrees(levels, siblings, limits.max_nodes, widths)
        return ByWidths(programme, limits.max_nodes), "dynamic programme over level widths", 0
    family, scored = beams.studied(
        beams.Beams(levels, siblings, limits.max_nodes, limits.max_width), score, trials=trials, seed=seed,
        start=[bound.tree.level_widths, widths],
    )  # fmt: skip
    return family, "optuna over beams", scored


def _uniform(
    source: Source, limits: _Limits, bound: ExactResult, score: Score, trials: int, seed: int
) -> tuple[Family, str, int]:
    space = uniform.UniformSpace(limits.max_nodes, limits.max_depth, limits.children, limits.max_width)
    family = uniform.exhaustive(space, source)
    if family is not None:
        return family, "all branchings", sum(1 for _ in space.vectors())
    start = [uniform.branching_of(bound.tree), (1,) * limits.max_depth]
    found, scored = uniform.studied(space, source, score, trials=trials, seed=seed, start=start)
    return found, "optuna over branchings", scored


@dataclass(frozen=True, eq=False)
class _BelowRank:
    """A source without the ranks from ``ranks`` on; only what growth asks of it."""

    source: Source
    ranks: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        found = self.source.expand(depth, nodes, values, max_children)
        return found.take(np.flatnonzero(found.rank < self.ranks))


def _below_rank(source: Source, ranks: int) -> Source:
    if ranks > source.max_rank:
        return source
    if isinstance(source, MarginalSource):
        return MarginalSource(source.per_rank[:, :ranks])
    return _BelowRank(source, ranks)


@dataclass(frozen=True, eq=False)
class _Filled:
    """A family cut to the sizes that the rules allow, filled up where its values run out before such a size."""

    family: Family
    rules: Constraints
    limits: _Limits

    @property
    def fills(self) -> bool:
        """Uniform trees cannot be filled node by node; elsewhere it serves only to reach a prescribed size."""
        return self.rules.rows_multiple > 1 and not self.rules.uniform

    def tokens(self, max_depth: int) -> Floats:
        """Expected tokens of the best tree of each allowed size; -inf for the others."""
        exact = self.family.tokens(max_depth)[: self.limits.max_nodes + 1]
        tokens = np.full(self.limits.max_nodes + 1, -np.inf)
        tokens[: len(exact)] = exact
        sizes = np.arange(len(tokens))
        if self.fills:
            tokens = np.maximum.accumulate(tokens)
            tokens[sizes > self.limits.capacity(max_depth)] = -np.inf
        tokens[((sizes + 1) % self.rules.rows_multiple != 0) & (sizes > 0)] = -np.inf
        return tokens

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """The best tree of ``num_nodes`` nodes no deeper than ``max_depth``."""
        if not self.fills:
            return self.family.tree(num_nodes, max_depth)
        exact = self.family.tokens(max_depth)[: num_nodes + 1]
        own = self.family.tree(int(exact.argmax()), max_depth)
        return fill(own, num_nodes, max_depth=max_depth, children=self.limits.children, max_width=self.limits.max_width)


def _curve(trees: _Filled, limits: _Limits, steps: StepCosts) -> Curve:
    """The points that no smaller and no shallower tree equals: costs fall with neither size nor depth."""
    points: list[tuple[int, int, float]] = [(0, 0, 1.0)]
    shallower = np.full(limits.max_nodes + 1, -np.inf)
    shallower[0] = 1.0
    for limit in range(1, limits.max_depth + 1):
        tokens = trees.tokens(limit)
        best = np.maximum.accumulate(np.maximum(tokens, shallower))
        before = np.concatenate([[-np.inf], best[:-1]])
        gains = tokens > np.maximum(before, shallower) + SMALLEST_GAIN
        points += [(int(n), limit, float(tokens[n])) for n in np.flatnonzero(gains) if n > 0]
        shallower = best
    num_nodes, depths, tau = (np.array(column) for column in zip(*points, strict=True))
    ms = steps.ms(num_nodes, depths)
    return Curve(num_nodes, depths, tau, ms, 1e3 * tau / ms, tau * (ms[0] / ms))


def _with_widths(curve: Curve, trees: _Filled, cost: CostTable, place: dict[str, Any]) -> Curve:
    """The curve with the draft costs of its trees' real widths, which the choice of trees did not know."""

    def step_ms(num_nodes: int, depth: int) -> float:
        try:
            known = {name: place[name] for name in ("batch", "context") if name in place}
            return cost.topology_ms(trees.tree(num_nodes, depth), **known)
        except InputError:
            return np.nan  # wider than measured

    pairs = zip(curve.num_nodes.tolist(), curve.depth.tolist(), strict=True)
    ms, tau = np.array([step_ms(n, d) for n, d in pairs]), curve.tokens_per_step
    return Curve(curve.num_nodes, curve.depth, tau, ms, 1e3 * tau / ms, tau * (ms[0] / ms))


def _score(steps: StepCosts, objective: str, rules: Constraints, tokens: float, num_nodes: int, depth: int) -> float:
    """What Optuna maximises; a size that breaks a rule scores nothing."""
    if num_nodes and (num_nodes + 1) % rules.rows_multiple:
        return 0.0
    if objective != SPEED:
        return tokens
    ms = steps.one(num_nodes, depth)
    return 0.0 if ms is None else 1e3 * tokens / ms


def _objective(point: CurvePoint, objective: str) -> float:
    return float((point.tokens_per_s if objective == SPEED else point.tokens_per_step) or 0.0)
