"""Node values counted from a trace: how often each path of ranks was the true one.

The counts are exact for every static tree, whatever the dependence between depths: heads that are right together are
counted together. All paths that occur anywhere in the trace form a trie, kept level by level as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.search.sources import Children
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace
from mtp_bench.trace.ranks import MISS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _Level(NamedTuple):
    """The paths of one depth, in lexicographic order."""

    parent: Ints  # index into the level above
    rank: Ints
    hits: Floats  # rows that hold the path, each counted by its prompt's weight
    place: Ints  # 0 for the most frequent child of its parent, 1 for the next, ...


@dataclass(frozen=True, eq=False)
class TrieSource:
    """The paths of true ranks in a trace, counted: value = rows that hold the path / rows a step could start at.

    Args:
        levels: one per depth.
        num_starts: the denominator, weighted likewise.
        max_depth: the trace's depth, which may exceed the number of levels.
        max_rank: largest rank the trace looked for.
    """

    levels: tuple[_Level, ...]
    num_starts: float
    max_depth: int
    max_rank: int

    @classmethod
    def from_trace(cls, trace: RankTrace) -> TrieSource:
        """Count all paths of all positions.

        Raises:
            InputError: no prompt is longer than one token.
        """
        if trace.start_weight == 0:
            raise InputError("the trace holds no position a step could start at", where="trace", fix="record more text")
        levels: list[_Level] = []
        node = np.zeros(trace.num_positions, dtype=np.int64)
        alive = np.arange(trace.num_positions)
        for depth in range(trace.depth):
            ranks = trace.ranks[alive, depth].astype(np.int64)
            alive, node, ranks = alive[ranks != MISS], node[ranks != MISS], ranks[ranks != MISS]
            if not alive.size:
                break
            codes, node = np.unique(node * trace.top_k + ranks, return_inverse=True)
            hits = np.bincount(node, weights=trace.row_weights[alive], minlength=len(codes))
            counts = np.asarray(hits, dtype=np.float64)
            parent, rank = np.divmod(codes, trace.top_k)
            levels.append(_Level(parent, rank, counts, _places(parent, counts)))
        return cls(tuple(levels), trace.start_weight, trace.depth, trace.top_k - 1)

    @property
    def max_children(self) -> int:
        """Most children any node has."""
        return max((int(level.place.max()) + 1 for level in self.levels), default=0)

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """See :class:`~mtp_bench.search.sources.Source`."""
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
        """See :class:`~mtp_bench.search.sources.Source`."""
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
        """See :class:`~mtp_bench.search.sources.Source`."""
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


def _places(parent: Ints, counts: Floats) -> Ints:
    """Place of each child among its siblings by falling count, ties by rank; ``parent`` ascends."""
    order = np.lexsort((-counts, parent))
    first = np.searchsorted(parent, parent)
    places = np.empty(len(parent), dtype=np.int64)
    places[order] = np.arange(len(parent)) - first
    return places
