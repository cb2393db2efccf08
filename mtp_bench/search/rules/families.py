"""Families of best trees under rules: for every size and depth limit the most valuable tree, each family by the method
that is exact for its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mtp_bench.search.exact.growth import Growth
from mtp_bench.search.rules.subtrees import Siblings, State, Subtrees, levels_of
from mtp_bench.search.values.sources import Source
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]


class Family(Protocol):
    """What the search asks of a family."""

    def tokens(self, max_depth: int) -> Floats:
        """Expected tokens per step of the best tree by its size, no deeper than this; -inf where there is none."""

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """That tree, of exactly ``num_nodes`` nodes."""


@dataclass(frozen=True, eq=False)
class Grown:
    """Best-first growth: nested trees, for rules that only delete subtrees."""

    growth: Growth

    def tokens(self, max_depth: int) -> Floats:
        """See :class:`Family`."""
        return 1.0 + np.concatenate([[0.0], np.cumsum(self.growth.value[self.growth.order(max_depth)])])

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """See :class:`Family`."""
        return self.growth.tree(num_nodes, max_depth)


@dataclass(frozen=True, eq=False)
class BySize:
    """The dynamic programme over subtrees, once for each depth limit."""

    source: Source
    siblings: Siblings
    max_nodes: int
    top_k: int | None
    _programmes: dict[int, Subtrees] = field(default_factory=dict, init=False, repr=False)

    def tokens(self, max_depth: int) -> Floats:
        """See :class:`Family`."""
        return self._programme(max_depth).tokens

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """See :class:`Family`."""
        return self._programme(max_depth).tree((num_nodes,))

    def _programme(self, max_depth: int) -> Subtrees:
        if max_depth not in self._programmes:
            levels = levels_of(self.source, max_depth=max_depth, top_k=self.top_k)
            self._programmes[max_depth] = Subtrees(levels, self.siblings, self.max_nodes)
        return self._programmes[max_depth]


@dataclass(frozen=True, eq=False)
class ByWidths:
    """The dynamic programme over all vectors of level widths."""

    programme: Subtrees
    max_nodes: int

    @cached_property
    def _sizes(self) -> npt.NDArray[np.int64]:
        """int64, shaped as the programme's tokens: nodes of each vector of widths."""
        return np.asarray(np.indices(self.programme.tokens.shape).sum(axis=0), dtype=np.int64)

    def _within(self, max_depth: int) -> Floats:
        """The tokens of vectors no deeper than this, -inf elsewhere."""
        tokens = self.programme.tokens.copy()
        for axis in range(max_depth, tokens.ndim):
            tokens[tuple(slice(1, None) if a == axis else slice(None) for a in range(tokens.ndim))] = -np.inf
        return tokens

    def tokens(self, max_depth: int) -> Floats:
        """See :class:`Family`."""
        best = np.full(self.max_nodes + 1, -np.inf)
        inside = self._sizes <= self.max_nodes
        np.maximum.at(best, self._sizes[inside], self._within(max_depth)[inside])
        return best

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """See :class:`Family`."""
        tokens = np.where(self._sizes == num_nodes, self._within(max_depth), -np.inf)
        best: State = tuple(int(width) for width in np.unravel_index(int(tokens.argmax()), tokens.shape))
        return self.programme.tree(best)


@dataclass(frozen=True, eq=False)
class Scored:
    """Trees that were scored one by one.

    Args:
        best: (num_nodes, depth) -> expected tokens, and what makes the tree.
        max_nodes: largest size.
    """

    best: Mapping[tuple[int, int], tuple[float, Callable[[], StaticTree]]]
    max_nodes: int

    def tokens(self, max_depth: int) -> Floats:
        """See :class:`Family`."""
        tokens = np.full(self.max_nodes + 1, -np.inf)
        tokens[0] = 1.0
        for (num_nodes, depth), (value, _) in self.best.items():
            if depth <= max_depth:
                tokens[num_nodes] = max(tokens[num_nodes], value)
        return tokens

    def tree(self, num_nodes: int, max_depth: int) -> StaticTree:
        """See :class:`Family`."""
        fitting = [(value, -depth, make) for (n, depth), (value, make) in self.best.items()
                   if n == num_nodes and depth <= max_depth]  # fmt: skip
        return max(fitting, key=lambda one: one[:2])[2]() if fitting else StaticTree()
