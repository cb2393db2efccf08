"""Node values of a trie shrunk towards the rank law of their depth, for traces too small to count rare paths.

A path seen once in forty rows need not be worth 1/40, and one never seen need not be worth nothing. Each parent is
treated as if ``kappa`` more rows had reached it, which then followed the rank law of the depth: how often rank r is the
true one at depth d where all depths before were accepted, whichever path they took. Well-filled parents keep their
counts, thin ones fall back on the law, and paths that no position holds get their share too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.search.values.sources import Children, Path
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KAPPA = 20.0
UNSEEN = -1  # the name of every node that the trie does not hold


@dataclass(frozen=True, eq=False)
class ShrunkSource:
    """``value(child) = value(parent) * (count(child) + kappa * law[d, rank]) / (count(parent) + kappa)``.

    The factor is at most 1, so values never exceed the parent's. Depth 1 is left as counted, since its law is the
    count itself. With kappa near 0 the trie's values come out, with a very large kappa the product of the laws.

    Args:
        trie: the counts.
        kappa: rows of prior belief at each parent, above 0.

    Raises:
        InputError: ``kappa`` is not a positive number.
    """

    trie: TrieSource
    kappa: float = KAPPA

    def __post_init__(self) -> None:
        if not 0 < self.kappa < np.inf:
            raise InputError(f"kappa is {self.kappa}", fix="give a number above 0; near 0 it is the trie itself")

    @property
    def max_depth(self) -> int:
        """The trie's."""
        return self.trie.max_depth

    @property
    def max_rank(self) -> int:
        """The trie's."""
        return self.trie.max_rank

    @property
    def max_children(self) -> int:
        """Ranks that occur at the depth where most do."""
        return int((self.laws > 0).sum(axis=1).max())

    @cached_property
    def laws(self) -> Floats:
        """float64 [D, K]: of the rows whose earlier depths all hit, the share that hits at this depth and rank."""
        laws = np.zeros((self.max_depth, self.max_rank + 1))
        reached = self.trie.num_starts
        for law, level in zip(laws, self.trie.levels, strict=False):
            if reached > 0:
                law[:] = np.bincount(level.rank, weights=level.hits, minlength=len(law)) / reached
            reached = float(level.hits.sum())
        return laws

    def expand(self, depth: int, nodes: Ints, values: Floats, max_children: int | None = None) -> Children:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        law = self.laws[depth - 1]
        ranks = np.flatnonzero(law > 0)
        names, hits = self._counted_children(depth, nodes, ranks)
        chance = (hits + self.kappa * law[ranks]) / (self._counts(depth - 1, nodes)[:, None] + self.kappa)
        worth = values[:, None] * chance
        kept = np.broadcast_to(np.arange(len(ranks)), worth.shape)
        if max_children is not None and max_children < len(ranks):
            kept = np.sort(np.argsort(-worth, axis=1, kind="stable")[:, :max_children], axis=1)
        return Children(
            parent=np.repeat(np.arange(len(nodes)), kept.shape[1]),
            rank=ranks[kept].ravel(),
            node=np.take_along_axis(names, kept, axis=1).ravel(),
            value=np.take_along_axis(worth, kept, axis=1).ravel(),
        )

    def children(self, path: Sequence[int]) -> list[tuple[int, float]]:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        if len(path) >= self.max_depth:
            return []
        node, value = self._walk(path)
        below = self.expand(len(path) + 1, np.array([node]), np.array([value]))
        best_first = np.argsort(-below.value, kind="stable")
        return [(int(below.rank[i]), float(below.value[i])) for i in best_first if below.value[i] > 0]

    def value(self, path: Sequence[int]) -> float:
        """P(path accepted)."""
        return self._walk(path)[1]

    def node_values(self, tree: StaticTree) -> Floats:
        """See :class:`~mtp_bench.search.values.sources.Source`."""
        known: dict[Path, tuple[int, float]] = {(): (0, 1.0)}
        for path in tree.paths:  # parents first
            known[path] = self._step(len(path), *known[path[:-1]], path[-1])
        return np.array([known[path][1] for path in tree.paths], dtype=np.float64)

    def _counted_children(self, depth: int, nodes: Ints, ranks: Ints) -> tuple[Ints, Floats]:
        """The trie's names and counts of each node's child at each of ``ranks``, both [nodes, ranks]."""
        names = np.full((len(nodes), len(ranks)), UNSEEN, dtype=np.int64)
        hits = np.zeros(names.shape)
        seen = np.flatnonzero(nodes != UNSEEN)
        below = self.trie.expand(depth, nodes[seen], np.ones(len(seen)))
        row, column = seen[below.parent], np.searchsorted(ranks, below.rank)
        names[row, column] = below.node
        hits[row, column] = self.trie.levels[depth - 1].hits[below.node] if len(below.node) else 0.0
        return names, hits

    def _counts(self, depth: int, nodes: Ints) -> Floats:
        """How many rows hold each node; 0 for unseen ones."""
        if depth == 0:
            return np.full(len(nodes), self.trie.num_starts)
        if depth > len(self.trie.levels):
            return np.zeros(len(nodes))
        return np.where(nodes == UNSEEN, 0.0, self.trie.levels[depth - 1].hits[nodes])

    def _walk(self, path: Sequence[int]) -> tuple[int, float]:
        node, value = 0, 1.0
        for depth, rank in enumerate(path, start=1):
            node, value = self._step(depth, node, value, rank)
        return node, value

    def _step(self, depth: int, node: int, value: float, rank: int) -> tuple[int, float]:
        """(name, value) of the child at ``depth`` and ``rank`` of a node."""
        if depth > self.max_depth or rank > self.max_rank:
            return UNSEEN, 0.0
        child = None if node == UNSEEN else self.trie.child(depth, node, rank)
        hits = 0.0 if child is None else float(self.trie.levels[depth - 1].hits[child])
        count = float(self._counts(depth - 1, np.array([node]))[0])
        chance = (hits + self.kappa * float(self.laws[depth - 1, rank])) / (count + self.kappa)
        return (UNSEEN if child is None else child), value * chance
