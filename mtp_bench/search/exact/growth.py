"""The best tree of every size and depth at once.

A node's value never exceeds its parent's (accepting a child implies accepting its parent), so the N most valuable
nodes, ties going to the shallower node, always form a tree - and no N nodes can have a larger sum. The best trees are
therefore nested, and one sorted list of nodes per depth limit holds all of them. No assumption is made that lower
ranks are worth more.

Depth by depth, only nodes that can still be among the N best are kept: fewer than N nodes may come before any node of
the answer, and its ancestors come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtp_bench.search.values.sources import CERTAIN, ROOT, Children, Source
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Growth:
    """Candidate nodes as flat arrays, and for each depth limit the order in which the best trees take them.

    Args:
        parent: int64 [M], index of the parent node, -1 below the root.
        rank: int64 [M].
        depth: int64 [M].
        value: float64 [M].
        orders: ``orders[d - 1]`` = int64 [at most max_nodes], node indices best first, for trees of depth <= d.
            There may be fewer depths than asked for, when deeper nodes never enter.
    """

    parent: Ints
    rank: Ints
    depth: Ints
    value: Floats
    orders: tuple[Ints, ...]

    def order(self, max_depth: int) -> Ints:
        """Node indices best first, for trees no deeper than ``max_depth``."""
        if max_depth < 1 or not self.orders:
            return np.zeros(0, dtype=np.int64)
        return self.orders[min(max_depth, len(self.orders)) - 1]

    def path(self, index: int) -> Path:
        """Path of a node."""
        ranks: list[int] = []
        while index >= 0:
            ranks.append(int(self.rank[index]))
            index = int(self.parent[index])
        return tuple(reversed(ranks))

    def nodes(self, num_nodes: int, max_depth: int) -> Ints:
        """int64: the nodes of :meth:`tree`."""
        return self.order(max_depth)[:num_nodes]

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """The best tree of ``num_nodes`` nodes no deeper than ``max_depth``; smaller if values run out."""
        return StaticTree.from_paths([self.path(int(i)) for i in self.nodes(num_nodes, max_depth)])


def grow_all(
    source: Source,
    *,
    max_nodes: int,
    max_depth: int,
    max_children: Sequence[int | None] | None = None,
    max_width: int | None = None,
) -> Growth:
    """Best trees of up to ``max_nodes`` nodes for every depth limit up to ``max_depth``.

    Args:
        source: values of nodes; nodes of value 0 are never taken.
        max_nodes: largest size.
        max_depth: deepest limit, cut to what the source knows.
        max_children: most children of a node, by depth of the children (1 first); None = no limit. The most valuable
            children are kept, which is optimal where all nodes of a depth share one law of children (the product
            model); otherwise a child of less value may have the richer subtree.
        max_width: most nodes of a level, the most valuable ones, with the same reservation.
    """
    kept: list[Children] = []
    orders: list[Ints] = []
    nodes, values = ROOT, CERTAIN
    order, order_values = np.zeros(0, dtype=np.int64), np.zeros(0)
    total = 0
    for depth in range(1, min(max_depth, source.max_depth) + 1 if max_nodes > 0 else 1):
        floor = float(order_values[-1]) if len(order) == max_nodes else 0.0
        cap = max_children[depth - 1] if max_children is not None else None
        widest = max_nodes if max_width is None else min(max_nodes, max_width)
        level = _best(source.expand(depth, nodes, values, cap), widest, floor)
        if not len(level.rank):
            break
        order, order_values = _merge(order, order_values, total + np.arange(len(level.rank)), level.value, max_nodes)
        total += len(level.rank)
        kept.append(level)
        orders.append(order)
        nodes, values = level.node, level.value
    return _flatten(kept, orders)


def grow(source: Source, max_nodes: int, max_depth: int) -> list[tuple[Path, float]]:
    """(path, value) of the best tree's nodes, best first: the first N are the best tree of N nodes.

    Ties go to the shallower, then the lexicographically smaller path. Nodes of value 0 are left out, so the list may
    be shorter than ``max_nodes``.
    """
    growth = grow_all(source, max_nodes=max_nodes, max_depth=max_depth)
    return [(growth.path(int(i)), float(growth.value[i])) for i in growth.order(max_depth)]


def _best(level: Children, max_nodes: int, floor: float) -> Children:
    """The ``max_nodes`` most valuable nodes of a depth not below ``floor``, still in lexicographic order."""
    candidates = np.flatnonzero((level.value >= floor) & (level.value > 0))
    if len(candidates) > max_nodes:
        by_value = np.argsort(-level.value[candidates], kind="stable")
        candidates = np.sort(candidates[by_value[:max_nodes]])
    return level.take(candidates)


def _merge(
    order: Ints, order_values: Floats, deeper: Ints, deeper_values: Floats, max_nodes: int
) -> tuple[Ints, Floats]:
    """Merge a deeper level into the order; the stable sort lets the shallower node go first at a tie."""
    indices, values = np.concatenate([order, deeper]), np.concatenate([order_values, deeper_values])
    first = np.argsort(-values, kind="stable")[:max_nodes]
    return indices[first], values[first]


def _flatten(kept: Sequence[Children], orders: Sequence[Ints]) -> Growth:
    if not kept:
        none = np.zeros(0, dtype=np.int64)
        return Growth(none, none, none, np.zeros(0), ())
    widths = [len(level.rank) for level in kept]
    offsets = np.concatenate([[0], np.cumsum(widths)])
    parents = [np.full(widths[0], -1, dtype=np.int64)]
    parents += [offsets[d - 1] + level.parent for d, level in enumerate(kept) if d > 0]
    return Growth(
        parent=np.concatenate(parents),
        rank=np.concatenate([level.rank for level in kept]),
        depth=np.repeat(np.arange(1, len(kept) + 1), widths),
        value=np.concatenate([level.value for level in kept]),
        orders=tuple(orders),
    )
