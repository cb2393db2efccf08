"""Where node values come from: a table of rates multiplied along the path, or the trace's own paths counted.

The value of a node is P(its whole path is accepted), averaged over positions. The expected tokens of a step are then
``1 + sum of the values of the tree's nodes``. Two sources stand behind one interface:

* :class:`MarginalSource`: the product model, for published tables; it assumes that depths are independent;
* `TrieSource`: how often each path of ranks was the true one in a trace; no assumption.
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
from mtp_bench.trace import AcceptanceTable

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
