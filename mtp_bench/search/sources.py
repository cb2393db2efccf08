"""Where node values come from: a table of rates multiplied along the path, or the trace's own paths counted.

The value of a node is P(its whole path is accepted), averaged over positions. The expected tokens of a step are then
``1 + sum of the values of the tree's nodes``. Two sources stand behind one interface:

* :class:`MarginalSource`: the product model, for published tables; it assumes that depths are independent;
* :class:`TrieSource`: how often each path of ranks was the true one in a trace; it assumes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree
from mtp_bench.trace import AcceptanceTable, RankTrace
from mtp_bench.trace.ranks import MISS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Path = tuple[int, ...]


class Children(NamedTuple):
    """Children of several nodes of one depth, ordered by parent, then rank.

    Args:
        parent: int64 [M], index into the given nodes.
        rank: int64 [M].
        node: int64 [M], the source's own name of the child, to be handed back for the next depth.
        value: float64 [M], P(path accepted), above 0.
    """

    parent: Ints
    rank: Ints
    node: Ints
    value: Floats

    def take(self, indices: Ints) -> Children:
        """The children at ``indices``."""
        return Children(self.parent[indices], self.rank[indices], self.node[indices], self.value[indices])


class Source(Protocol):
    """What the search needs to know about acceptance."""

    @property
    def max_depth(self) -> int:
        """Deepest node with a known value."""

    @property
    def max_rank(self) -> int:
        """Largest rank with a known value."""

    @property
    def max_children(self) -> int:
        """Most children a node can have."""

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """All children at ``depth`` of ``nodes``, or each node's ``max_children`` most valuable ones."""

    def children(self, path: Sequence[int]) -> list[tuple[int, float]]:
        """(rank, value of the child's path) of one node's children, best first."""

    def node_values(self, tree: StaticTree) -> Floats:
        """float64 [N]: value of each node of ``tree`` in its order; 0 for nodes the source has not seen."""


ROOT = np.zeros(1, dtype=np.int64)
CERTAIN = np.ones(1)


def expected_tokens_per_step(source: Source, tree: StaticTree) -> float:
    """``1 + sum of node values``: tokens of a step, averaged over all positions a step could start at."""
    return 1.0 + float(source.node_values(tree).sum())


@dataclass(frozen=True, eq=False)
class MarginalSource:
    """The product model: value = product over the path of ``per_rank[depth - 1, rank]``.

    Args:
        per_rank: float64 [D, K], each row within [0, 1] and summing to at most 1.
    """

    per_rank: Floats

    def __post_init__(self) -> None:
        rates = np.asarray(self.per_rank, dtype=np.float64)
        if rates.ndim != 2 or not rates.size or not ((rates >= 0) & (rates <= 1)).all():
            raise InputError("rates by rank must be a table [depth, rank] of values in [0, 1]", where="acceptance")
        object.__setattr__(self, "per_rank", rates)

    @classmethod
    def from_table(cls, table: AcceptanceTable) -> MarginalSource:
        """The product model on an acceptance table."""
        return cls(table.per_rank)

    @property
    def max_depth(self) -> int:
        """D."""
        return int(self.per_rank.shape[0])

    @property
    def max_children(self) -> int:
        """K."""
        return int(self.per_rank.shape[1])

    @property
    def max_rank(self) -> int:
        """K - 1."""
        return self.max_children - 1

    @cached_property
    def _best_first(self) -> Ints:
        """int64 [D, K]: ranks by falling rate; rates by rank need not fall."""
        return np.argsort(-self.per_rank, axis=1, kind="stable")

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """See :class:`Source`."""
        kept = self._best_first[depth - 1][:max_children]
        ranks = np.sort(kept[self.per_rank[depth - 1, kept] > 0])
        return Children(
            parent=np.repeat(np.arange(len(nodes)), len(ranks)),
            rank=np.tile(ranks, len(nodes)),
            node=np.zeros(len(nodes) * len(ranks), dtype=np.int64),
            value=np.outer(values, self.per_rank[depth - 1, ranks]).ravel(),
        )

    def children(self, path: Sequence[int]) -> list[tuple[int, float]]:
        """See :class:`Source`."""
        if len(path) >= self.max_depth:
            return []
        value, rates = self.value(path), self.per_rank[len(path)]
        return [(int(rank), value * float(rates[rank])) for rank in self._best_first[len(path)] if rates[rank] > 0]

    def value(self, path: Sequence[int]) -> float:
        """P(path accepted)."""
        known = len(path) <= self.max_depth and max(path, default=0) < self.max_children
        return float(np.prod([self.per_rank[d, rank] for d, rank in enumerate(path)])) if known else 0.0

    def node_values(self, tree: StaticTree) -> Floats:
        """See :class:`Source`."""
        return np.array([self.value(path) for path in tree.paths], dtype=np.float64)


class _Level(NamedTuple):
    """The paths of one depth, in lexicographic order."""

    parent: Ints  # index into the level above
    rank: Ints
    hits: Ints
    place: Ints  # 0 for the most frequent child of its parent, 1 for the next, ...


@dataclass(frozen=True, eq=False)
class TrieSource:
    """The paths of true ranks in a trace, counted: value = rows that hold the path / rows a step could start at.

    Args:
        levels: one per depth.
        num_starts: the denominator.
        max_depth: the trace's depth, which may exceed the number of levels.
        max_rank: largest rank the trace looked for.
    """

    levels: tuple[_Level, ...]
    num_starts: int
    max_depth: int
    max_rank: int

    @classmethod
    def from_trace(cls, trace: RankTrace) -> TrieSource:
        """Count all paths of all positions.

        Raises:
            InputError: no prompt is longer than one token.
        """
        if trace.num_starts == 0:
            raise InputError("the trace holds no position a step could start at", where="trace", fix="record more text")
        levels: list[_Level] = []
        node = np.zeros(trace.num_positions, dtype=np.int64)
        alive = np.arange(trace.num_positions)
        for depth in range(trace.depth):
            ranks = trace.ranks[alive, depth].astype(np.int64)
            alive, node, ranks = alive[ranks != MISS], node[ranks != MISS], ranks[ranks != MISS]
            if not alive.size:
                break
            codes, node, counts = np.unique(node * trace.top_k + ranks, return_inverse=True, return_counts=True)
            parent, rank = np.divmod(codes, trace.top_k)
            levels.append(_Level(parent, rank, counts, _places(parent, counts)))
        return cls(tuple(levels), trace.num_starts, trace.depth, trace.top_k - 1)

    @property
    def max_children(self) -> int:
        """Most children any node has."""
        return max((int(level.place.max()) + 1 for level in self.levels), default=0)

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """See :class:`Source`."""
        if depth > len(self.levels):
            none = np.zeros(0, dtype=np.int64)
            return Children(none, none, none, np.zeros(0))
        level = self.levels[depth - 1]
        width = len(self.levels[depth - 2].rank) if depth > 1 else 1
        index_of = np.full(width, -1, dtype=np.int64)
        index_of[nodes] = np.arange(len(nodes))
        parent = index_of[level.parent]
        wanted = parent >= 0 if max_children is None else (parent >= 0) & (level.place < max_children)
        chosen = np.flatnonzero(wanted)
        return Children(parent[chosen], level.rank[chosen], chosen, level.hits[chosen] / self.num_starts)

    def children(self, path: Sequence[int]) -> list[tuple[int, float]]:
        """See :class:`Source`."""
        node = self._find(path)
        if node is None or len(path) >= len(self.levels):
            return []
        level = self.levels[len(path)]
        first, end = np.searchsorted(level.parent, [node, node + 1])
        span = first + np.argsort(level.place[first:end], kind="stable")
        return [(int(level.rank[i]), float(level.hits[i] / self.num_starts)) for i in span]

    def value(self, path: Sequence[int]) -> float:
        """P(path accepted)."""
        if not path:
            return 1.0
        node = self._find(path)
        return 0.0 if node is None else float(self.levels[len(path) - 1].hits[node] / self.num_starts)

    def node_values(self, tree: StaticTree) -> Floats:
        """See :class:`Source`."""
        return np.array([self.value(path) for path in tree.paths], dtype=np.float64)

    def _find(self, path: Sequence[int]) -> int | None:
        """Index of a path within its level, or None if no position holds it."""
        node = 0
        if len(path) > len(self.levels):
            return None
        for level, rank in zip(self.levels, path, strict=False):
            first, end = np.searchsorted(level.parent, [node, node + 1])
            node = int(first + np.searchsorted(level.rank[first:end], rank))
            if node >= end or level.rank[node] != rank:
                return None
        return node


def _places(parent: Ints, counts: Ints) -> Ints:
    """Place of each child among its siblings by falling count, ties by rank; ``parent`` ascends."""
    order = np.lexsort((-counts, parent))
    first = np.searchsorted(parent, parent)
    places = np.empty(len(parent), dtype=np.int64)
    places[order] = np.arange(len(parent)) - first
    return places
