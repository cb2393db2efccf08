"""The fastest tree where a level costs by how many of its nodes are expanded, and a bound on all trees.

Best trees by (N, depth) alone no longer do: a tree of the same size that expands fewer nodes is cheaper to draft. With
T the tree, e_l the nodes it expands at depth l, and a draft's cost as in :mod:`mtp_bench.cost.widths`, the question at
a speed of s tokens per ms is whether any tree has

``tokens(T) - s * (verify(N) + mean over l of wide[d, e_l]) > 0``.

Give every node a price and every expanded node of depth l another. The most valuable tree after prices is then found
exactly, from the leaves up (``g(u) = value - price + max(0, sum of max(0, g(child)) - expansion price)``), and prices
serve twice:

* what they leave expanded is a good choice of nodes to expand. The best tree of each N that expands nothing else is
  found by growth, and scored with its real widths; the best of all prices (and of levels limited to a few expanded
  nodes) is the answer.
* for *any* prices, the most valuable tree after prices plus the most that ``price * N - s * verify(N)`` and
  ``price * e_l - s * wide[d, e_l] / (d - 1)`` can be, each by itself, is at least what any tree has (Lagrangian
  relaxation). Where it is not above 0, no tree is faster than s. This is the bound reported beside the answer.

Nodes outside the growth are worth no more than its last one: at a price of that much or more they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mtp_bench.search.exact.curve import Curve
from mtp_bench.search.exact.growth import Growth
from mtp_bench.search.exact.step_costs import StepCosts
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REACH = 4  # times the budget: how many nodes are offered
NODE_PRICES = 40
ROUNDS = 4
CAPS = (1, 2, 3, 4, 6, 8, 12)  # most nodes expanded at every level, for the trees tried beside those of prices
ENOUGH = 1e-4  # relative gain in speed below which another round is not worth it


@dataclass(eq=False)
class WideTrees:
    """The fastest tree found of every size and depth.

    Attributes:
        growth: the nodes on offer.
        max_nodes: largest size.
        steps: costs, with those of widths.
    """

    growth: Growth
    max_nodes: int
    steps: StepCosts
    _orders: list[Ints] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        shape = (self.max_nodes + 1, len(self.growth.orders) + 1)
        self._speed, self._which = np.full(shape, -np.inf), np.full(shape, -1)
        self._figures = np.full((*shape, 2), np.nan)  # tokens, ms

    def offer(self, order: Ints) -> None:
        """Score the trees of the first 1, 2, ... nodes of ``order``, which holds parents before children."""
        order = order[: self.max_nodes]
        if not len(order):
            return
        sizes, depth = np.arange(1, len(order) + 1), np.maximum.accumulate(self.growth.depth[order])
        tokens = 1.0 + np.cumsum(self.growth.value[order])
        ms = self.steps.ms(sizes, depth, expanded_along(self.growth, order))
        speed = np.where(np.isnan(ms), -np.inf, tokens / ms)
        better = speed > self._speed[sizes, depth]
        if better.any():
            at = (sizes[better], depth[better])
            self._speed[at], self._which[at] = speed[better], len(self._orders)
            self._figures[at] = np.stack([tokens[better], ms[better]], axis=1)
            self._orders.append(order)

    def nodes(self, num_nodes: int, max_depth: int) -> Ints:
        """int64: the tree's nodes, as indices into ``growth``."""
        depth = min(max_depth, self._which.shape[1] - 1)
        which = self._which[num_nodes, depth] if num_nodes <= self.max_nodes else -1
        return (self._orders[which] if which >= 0 else self.growth.order(max_depth))[:num_nodes]

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """The fastest tree found of this size and depth; where none is so deep, the most valuable no deeper."""
        return StaticTree.from_paths([self.growth.path(int(node)) for node in self.nodes(num_nodes, max_depth)])

    def fastest(self, depth: int) -> tuple[float, Ints]:
        """(tokens per ms, nodes) of the fastest tree of this depth."""
        size = int(self._speed[:, depth].argmax())
        return float(self._speed[size, depth]), self.nodes(size, depth)

    def curve(self) -> Curve:
        """Every (N, depth) for which a tree with a known cost was found."""
        depth, num_nodes = np.nonzero(np.isfinite(self._speed.T))
        tokens, ms = self._figures[num_nodes, depth].T
        none = np.zeros(1, dtype=np.int64)
        num_nodes, depth = np.concatenate([none, num_nodes]), np.concatenate([none, depth])
        tokens, ms = np.concatenate([np.ones(1), tokens]), np.concatenate([self.steps.ms(none, none), ms])
        return Curve(num_nodes, depth, tokens, ms, 1e3 * tokens / ms, tokens * (ms[0] / ms))


def expanded_along(growth: Growth, order: Ints) -> Ints:
    """int64 [n, L]: nodes expanded at depths 1..L in the trees of the first 1, 2, ... n nodes of ``order``."""
    parents, first = np.unique(growth.parent[order], return_index=True)
    inner = parents >= 0
    widths = np.zeros((len(order), max(len(growth.orders) - 1, 1)), dtype=np.int64)
    widths[first[inner], growth.depth[parents[inner]] - 1] = 1
    return widths.cumsum(axis=0)


def search_widths(growth: Growth, max_nodes: int, steps: StepCosts) -> tuple[WideTrees, float]:
    """(the trees, a bound: no tree with a known cost makes more tokens per ms).

    Args:
        growth: nodes on offer; :data:`REACH` times the budget are enough.
        max_nodes: the budget.
        steps: costs, with those of widths.
    """
    trees = WideTrees(growth, max_nodes, steps)
    plain = 1.0 / steps.verify[0]
    depths = range(1, len(growth.orders) + 1)
    programmes = {depth: _Prices(growth, depth, max_nodes, steps) for depth in depths if depth > 1}
    for limit in depths:
        trees.offer(growth.order(limit))
        if limit > 1:
            for order in programmes[limit].capped():
                trees.offer(order)
    bounds = dict.fromkeys(depths, np.inf)
    speed = max([plain, *(trees.fastest(depth)[0] for depth in depths)])
    for _ in range(ROUNDS):
        for depth, programme in programmes.items():
            for prices in programme.slopes(trees):
                solved = programme.solve(speed * prices)
                bounds[depth] = min(bounds[depth], programme.bound(solved, speed, speed * prices))
                for order in programme.narrowed(solved):
                    trees.offer(order)
        before, speed = speed, max([plain, *(trees.fastest(depth)[0] for depth in depths)])
        if speed <= before * (1 + ENOUGH):
            break
    if depths:
        bounds[1] = trees.fastest(1)[0]  # nothing is expanded: best-first is exact
    return trees, max([speed, *bounds.values()])


class _Level(NamedTuple):
    """The nodes of one depth on offer: their values, and which node above is their parent, ascending."""

    node: Ints
    value: Floats
    parent: Ints


class _Solved(NamedTuple):
    """For each node price: what the best tree is worth after prices, and by level what it expands [n, prices]."""

    worth: Floats
    expanded: list[Bools]


@dataclass(frozen=True, eq=False)
class _Prices:
    """Trees no deeper than ``depth`` under prices."""

    growth: Growth
    depth: int
    max_nodes: int
    steps: StepCosts

    @cached_property
    def order(self) -> Ints:
        """Nodes on offer, best first."""
        return self.growth.order(self.depth)

    @cached_property
    def wide(self) -> Floats:
        """float64 [W + 1]: ms of a draft so deep by width, as far as known and as a tree of the budget can be wide."""
        assert self.steps.wide is not None
        wide = self.steps.wide[self.depth]
        return np.asarray(wide[np.isfinite(wide)][: max(self.max_nodes // 2, 1) + 1])

    @cached_property
    def levels(self) -> list[_Level]:
        levels, above = [], np.zeros(0, dtype=np.int64)
        for depth in range(1, self.depth + 1):
            node = np.sort(self.order[self.growth.depth[self.order] == depth])
            parent = np.searchsorted(above, self.growth.parent[node]) if depth > 1 else np.zeros(len(node), np.int64)
            levels.append(_Level(node, self.growth.value[node], parent))
            above = node
        return levels

    @cached_property
    def node_prices(self) -> Floats:
        """From the value of nodes not on offer (0 when there are none) to more than any node is worth."""
        values = self.growth.value[self.order]
        least = float(values[-1])
        every = np.geomspace(least, 1.0, NODE_PRICES)
        complete = len(self.order) < REACH * self.max_nodes
        return np.concatenate([[0.0], every]) if complete else every

    def slopes(self, trees: WideTrees) -> Floats:
        """float64 [few, depth - 1]: ms of one more expanded node by level, around the fastest tree's widths.

        Any would do. These are the slopes at these widths, and of the lines from there to both ends.
        """
        _, nodes = trees.fastest(self.depth)
        last = len(self.wide) - 1
        at = np.ones(self.depth - 1, dtype=np.int64)
        if len(nodes):
            at = np.clip(expanded_along(self.growth, nodes)[-1, : self.depth - 1], 1, last)
        low = np.clip([at - 1, np.ones_like(at), at], 1, last)
        high = np.clip([at + 1, at, np.full_like(at, last)], 1, last)
        slopes = (self.wide[high] - self.wide[low]) / np.maximum(high - low, 1) / (self.depth - 1)
        return np.unique(slopes, axis=0)

    def solve(self, prices: Floats) -> _Solved:
        """The most valuable trees at every node price, with ``prices`` float64 [depth - 1] per expanded node."""
        gains, under, worth = self._gains(prices)
        taken = np.ones((1, len(self.node_prices)), dtype=bool)
        chosen: list[Bools] = []
        for level, gain, below, price in zip(self.levels, gains, under, [*prices, np.inf], strict=True):
            taken = (below > price) & (gain > 0) & taken[level.parent]
            chosen.append(taken)
        return _Solved(worth, chosen[:-1])

    def capped(self) -> Iterator[Ints]:
        """As :meth:`narrowed`, from the root down: at each level the few nodes are expanded below which most is to be
        had, for every number of :data:`CAPS` and some node prices.

        Prices alone miss trees in which the one node that a level must expand would not pay for itself.
        """
        _, under, worth = self._gains(np.zeros(self.depth - 1))
        for cap in CAPS:
            taken = np.ones((1, len(worth)), dtype=bool)
            chosen: list[Bools] = []
            for level, some in zip(self.levels[:-1], under, strict=False):
                score = np.where(taken[level.parent], some, 0.0)
                rank = np.argsort(np.argsort(-score, axis=0, kind="stable"), axis=0)
                taken = (score > 0) & (rank < cap)
                chosen.append(taken)
            yield from self.narrowed(_Solved(worth, chosen), every=4)

    def _gains(self, prices: Floats) -> tuple[list[Floats], list[Floats], Floats]:
        """By level [n, node prices]: what nodes are worth after prices, and what lies below them; the whole tree's."""
        gains: list[Floats] = []
        under: list[Floats] = []
        below = np.zeros((len(self.levels[-1].node), len(self.node_prices)))
        for level, price in zip(self.levels[::-1], [np.inf, *prices[::-1]], strict=True):
            under.append(below)
            gains.append(level.value[:, None] - self.node_prices + np.maximum(below - price, 0.0))
            above = self.levels[len(self.levels) - len(gains) - 1].node if len(gains) < len(self.levels) else [0]
            below = _sums(np.maximum(gains[-1], 0.0), level.parent, len(above))
        return gains[::-1], under[::-1], below[0]

    def narrowed(self, solved: _Solved, every: int = 1) -> Iterator[Ints]:
        """For each distinct choice of expanded nodes, all nodes that it makes available, best first."""
        seen: set[bytes] = set()
        for price in range(0, len(self.node_prices), every):
            inner = np.zeros(len(self.growth.depth) + 1, dtype=bool)
            inner[-1] = True  # the root, which is the parent -1
            for level, expanded in zip(self.levels, solved.expanded, strict=False):
                inner[level.node] = expanded[:, price]
            key = np.packbits(inner).tobytes()
            if key not in seen:
                seen.add(key)
                yield self.order[inner[self.growth.parent[self.order]]]

    def bound(self, solved: _Solved, speed: float, prices: Floats) -> float:
        """No tree just so deep has more tokens per ms; see the module."""
        sizes = np.arange(self.depth, min(self.max_nodes, len(self.steps.verify) - 1) + 1)
        if not len(sizes):
            return 0.0
        widths = np.arange(1, len(self.wide))
        per_level = prices[:, None] * widths - speed * self.wide[widths] / (self.depth - 1)
        by_size = (solved.worth[:, None] + self.node_prices[:, None] * sizes).min(axis=0)
        excess = 1.0 + by_size - speed * self.steps.verify[sizes] + per_level.max(axis=1).sum()
        least_ms = self.steps.verify[sizes] + self.wide[1]
        return float((speed + np.maximum(excess, 0.0) / least_ms).max())


def _sums(values: Floats, group: Ints, groups: int) -> Floats:
    """float64 [groups, P]: rows of ``values`` [n, P] summed by ``group`` [n], which ascends."""
    sums = np.zeros((groups, values.shape[1]))
    if len(group):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sums[group[starts]] = np.add.reduceat(values, starts, axis=0)
    return sums
