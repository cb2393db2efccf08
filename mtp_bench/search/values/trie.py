"""Node values counted from a trace: how often each path of ranks was the true one.

The counts are exact for every static tree, whatever the dependence between depths: heads that are right together are
counted together. All paths that occur anywhere in the trace form a trie, kept level by level as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.search.values.sources import Children
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace
from mtp_bench.trace.ranks import MISS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64 | np.int64 | np.bool_]


class Level(NamedTuple):
    """The paths of one depth, in lexicographic order."""

    parent: Ints  # index into the level above
    rank: Ints
    hits: Floats  # rows that hold the path, by their weights


class _Holders(NamedTuple):
    """The paths of one depth as in :class:`Level`, with who holds them in place of a count."""

    parent: Ints
    rank: Ints
    holder: Ints  # rows of the trace (or prompts) that hold any path of this depth
    node: Ints  # the path each of them holds
    times: Floats  # how often, by the weights of their prompts


@dataclass(frozen=True, eq=False)
class PathIndex:
    """The paths of true ranks in a trace and the rows (or prompts) that hold them: found once, counted often.

    Args:
        levels: one per depth.
        starts: float64, by row (or prompt): how many steps could start there, by the weights of prompts.
        max_depth: the trace's depth, which may exceed the number of levels.
        max_rank: largest rank the trace looked for.
    """

    levels: tuple[_Holders, ...]
    starts: Floats
    max_depth: int
    max_rank: int

    @classmethod
    def of(cls, trace: RankTrace, *, room: int = 0) -> PathIndex:
        """Index a trace.

        Args:
            trace: the ranks.
            room: output tokens that must follow a hit for it to count. 1 counts as decoding does: the last token of
                a text is always a bonus token, never a drafted one.

        Raises:
            InputError: no prompt is longer than one token.
        """
        if trace.start_weight == 0:
            raise InputError("the trace holds no position a step could start at", where="trace", fix="record more text")
        levels: list[_Holders] = []
        node = np.zeros(trace.num_positions, dtype=np.int64)
        alive = np.arange(trace.num_positions)
        for depth in range(1, trace.depth + 1):
            ranks = trace.ranks[alive, depth - 1].astype(np.int64)
            hit = (ranks != MISS) & (trace.tokens_left[alive] >= depth + room)
            alive, node, ranks = alive[hit], node[hit], ranks[hit]
            if not alive.size:
                break
            codes, node = np.unique(node * trace.top_k + ranks, return_inverse=True)
            levels.append(_Holders(*np.divmod(codes, trace.top_k), alive, node, trace.row_weights[alive]))
        starts = (trace.tokens_left > 0) * trace.row_weights
        return cls(tuple(levels), starts, trace.depth, trace.top_k - 1)

    def by_prompt(self, trace: RankTrace, weights: Weights | None = None) -> PathIndex:
        """The index of the same paths by prompt: far fewer holders than rows, for counting many resamples.

        Args:
            trace: the trace that was indexed.
            weights: [T], how often each row counts within its prompt; once when None.
        """
        rows = np.ones(trace.num_positions) if weights is None else np.asarray(weights, dtype=np.float64)
        prompts = trace.num_prompts
        levels = []
        for one in self.levels:
            codes, entry = np.unique(one.node * prompts + trace.prompt_of_row[one.holder], return_inverse=True)
            node, prompt = np.divmod(codes, prompts)
            times = _sums(entry, one.times * rows[one.holder], len(codes))
            levels.append(_Holders(one.parent, one.rank, prompt, node, times))
        starts = _sums(trace.prompt_of_row, rows * self.starts, prompts)
        return PathIndex(tuple(levels), starts, self.max_depth, self.max_rank)

    def counted(self, weights: Weights | None = None) -> TrieSource:
        """The trie with every row (or prompt) counted as often as ``weights`` says; once, without weights.

        Raises:
            InputError: the weights of all rows a step could start at are 0.
        """
        often = np.ones(len(self.starts)) if weights is None else np.asarray(weights, dtype=np.float64)
        num_starts = float(often @ self.starts)
        if not num_starts > 0:
            raise InputError("no row with a weight above 0", where="trace")
        levels = []
        for one in self.levels:
            hits = _sums(one.node, one.times * often[one.holder], len(one.rank))
            levels.append(Level(one.parent, one.rank, hits))
        return TrieSource(tuple(levels), num_starts, self.max_depth, self.max_rank)


@dataclass(frozen=True, eq=False)
class TrieSource:
    """The paths of true ranks in a trace, counted: value = rows that hold the path / rows a step could start at.

    Args:
        levels: one per depth.
        num_starts: the denominator; a sum of weights where rows were weighted.
        max_depth: the trace's depth, which may exceed the number of levels.
        max_rank: largest rank the trace looked for.
    """

    levels: tuple[Level, ...]
    num_starts: float
    max_depth: int
    max_rank: int

    @classmethod
    def from_trace(cls, trace: RankTrace, weights: Weights | None = None) -> TrieSource:
        """Count all paths of all positions; with ``weights`` [T], each row so many times (see :class:`PathIndex`).

        Raises:
            InputError: no prompt is longer than one token, or no row has a weight.
        """
        return PathIndex.of(trace).counted(weights)

    @cached_property
    def max_children(self) -> int:
        """Most children any node has."""
        return max((int(np.bincount(level.parent).max()) for level in self.levels), default=0)

    @cached_property
    def _places(self) -> tuple[Ints, ...]:
        """By level: 0 for the most frequent child of its parent, 1 for the next, ..."""
        return tuple(_places(level.parent, level.hits) for level in self.levels)

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        if depth > len(self.levels):
            none = np.zeros(0, dtype=np.int64)
            return Children(none, none, none, np.zeros(0))
        level = self.levels[depth - 1]
        width = len(self.levels[depth - 2].rank) if depth > 1 else 1
        index_of = np.full(width, -1, dtype=np.int64)
        index_of[nodes] = np.arange(len(nodes))
        parent = index_of[level.parent]
        wanted = (parent >= 0) & (level.hits > 0)
        if max_children is not None:
            wanted &= self._places[depth - 1] < max_children
        chosen = np.flatnonzero(wanted)
        return Children(parent[chosen], level.rank[chosen], chosen, level.hits[chosen] / self.num_starts)

    def children(self, path: Sequence[int]) -> list[tuple[int, float]]:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        node = self._find(path)
        if node is None or len(path) >= len(self.levels):
            return []
        level = self.levels[len(path)]
        first, end = np.searchsorted(level.parent, [node, node + 1])
        span = first + np.argsort(-level.hits[first:end], kind="stable")
        return [(int(level.rank[i]), float(level.hits[i] / self.num_starts)) for i in span if level.hits[i] > 0]

    def value(self, path: Sequence[int]) -> float:
        """P(path accepted)."""
        if not path:
            return 1.0
        node = self._find(path)
        return 0.0 if node is None else float(self.levels[len(path) - 1].hits[node] / self.num_starts)

    def node_values(self, tree: StaticTree) -> Floats:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        return np.array([self.value(path) for path in tree.paths], dtype=np.float64)

    def child(self, depth: int, node: int, rank: int) -> int | None:
        """The node at ``depth`` that follows ``node`` (0 for the root) at ``rank``; None if no position holds it."""
        if depth > len(self.levels):
            return None
        level = self.levels[depth - 1]
        first, end = np.searchsorted(level.parent, [node, node + 1])
        index = int(first + np.searchsorted(level.rank[first:end], rank))
        return index if index < end and level.rank[index] == rank else None

    def _find(self, path: Sequence[int]) -> int | None:
        """Index of a path within its level, or None if no position holds it."""
        node: int | None = 0
        for depth, rank in enumerate(path, start=1):
            node = None if node is None else self.child(depth, node, rank)
        return node


def _sums(index: Ints, values: Floats, size: int) -> Floats:
    """float64 [size]: the sum of ``values`` at each index."""
    return np.asarray(np.bincount(index, weights=values, minlength=size), dtype=np.float64)


def _places(parent: Ints, counts: Floats) -> Ints:
    """Place of each child among its siblings by falling count, ties by rank; ``parent`` ascends."""
    order = np.lexsort((-counts, parent))
    first = np.searchsorted(parent, parent)
    places = np.empty(len(parent), dtype=np.int64)
    places[order] = np.arange(len(parent)) - first
    return places
