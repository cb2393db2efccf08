"""Acceptance by category of prompts: values of nodes given the category, and what a tree does for each category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.evaluate import evaluate_all
from mtp_bench.search.exact.growth import Growth
from mtp_bench.search.exact.search import ExactResult
from mtp_bench.search.exact.widths import WideTrees
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree, Topology
from mtp_bench.trace import Interval, RankTrace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def split(trace: RankTrace, names: Sequence[str] | None = None) -> dict[str, RankTrace]:
    """Category (or each of ``names``, one per prompt) -> the trace of its prompts, unweighted; those with steps."""
    names = trace.categories if names is None else names
    parts = {}
    for name in sorted(set(names)):
        part = trace.select([p for p, one in enumerate(names) if one == name])
        if part.num_starts:
            parts[name] = replace(part, weights=None)
    return parts


@dataclass(frozen=True, eq=False)
class CategoryTrie:
    """One trie of all paths, with the value of every node given the category of the position.

    Args:
        names: C categories.
        source: the trie of all positions.
        values: per level float64 [C, M]: P(path accepted | category), averaged over the category's positions.
    """

    names: tuple[str, ...]
    source: TrieSource
    values: tuple[Floats, ...]

    @classmethod
    def of(cls, parts: dict[str, RankTrace], trace: RankTrace) -> CategoryTrie:
        """Count the parts of ``trace`` (see :func:`split`) in one trie."""
        source = TrieSource.from_trace(replace(trace, weights=None))
        values = [np.zeros((len(parts), len(level.rank))) for level in source.levels]
        for row, part in enumerate(parts.values()):
            counted = TrieSource.from_trace(part)
            place = np.zeros(1, dtype=np.int64)
            for depth, level in enumerate(counted.levels):
                place = _find(source, depth, place[level.parent], level.rank)
                values[depth][row, place] = level.hits / counted.num_starts
        return cls(tuple(parts), source, tuple(values))

    def mixture(self, weights: Floats) -> TrieSource:
        """Values averaged over categories: float64 [C] ``weights``, which sum to 1."""
        levels = [
            level._replace(hits=weights @ values) for level, values in zip(self.source.levels, self.values, strict=True)
        ]
        return replace(self.source, levels=tuple(levels), num_starts=1.0)

    def node_values(self, growth: Growth) -> Floats:
        """float64 [C, M]: value of each node of ``growth`` given the category."""
        node = np.zeros(len(growth.depth), dtype=np.int64)
        values = np.zeros((len(self.names), len(growth.depth)))
        for depth in range(int(growth.depth.max(initial=0))):
            here = np.flatnonzero(growth.depth == depth + 1)
            parents = node[growth.parent[here]] if depth else np.zeros(len(here), dtype=np.int64)
            node[here] = _find(self.source, depth, parents, growth.rank[here])
            values[:, here] = self.values[depth][:, node[here]]
        return values

    def curve_tokens(self, found: ExactResult) -> Floats:
        """float64 [C, points]: tokens per step by category of every tree on the curve of a search on a mixture."""
        trees, curve = found.growth, found.curve
        if isinstance(trees, WideTrees):
            values = self.node_values(trees.growth)
            places = zip(curve.num_nodes.tolist(), curve.depth.tolist(), strict=True)
            return 1.0 + np.stack([values[:, trees.nodes(*place)].sum(axis=1) for place in places], axis=1)
        growth = trees
        assert isinstance(growth, Growth)  # searched without rules
        values = self.node_values(growth)
        tokens = np.ones((len(self.names), len(curve)))
        for depth in np.unique(curve.depth[curve.num_nodes > 0]):
            points = np.flatnonzero(curve.depth == depth)
            sums = np.cumsum(values[:, growth.order(int(depth))], axis=1)
            tokens[:, points] += sums[:, curve.num_nodes[points] - 1]
        return tokens

    def value(self, path: Sequence[int]) -> Floats:
        """float64 [C]: P(path accepted | category)."""
        place = np.zeros(1, dtype=np.int64)
        if len(path) > len(self.values) or max(path, default=0) > self.source.max_rank:
            return np.zeros(len(self.names))
        for depth, rank in enumerate(path):
            place = _find(self.source, depth, place, np.array([rank]))
            if place[0] < 0:
                return np.zeros(len(self.names))
        return np.asarray(self.values[len(path) - 1][:, place[0]]) if path else np.ones(len(self.names))

    def tokens(self, tree: StaticTree) -> Floats:
        """float64 [C]: expected tokens per step of ``tree`` by category, averaged over all positions."""
        return np.asarray(np.sum([np.ones(len(self.names)), *(self.value(path) for path in tree.paths)], axis=0))


def _find(source: TrieSource, depth: int, parents: Ints, ranks: Ints) -> Ints:
    """int64: index within level ``depth`` of the children ``ranks`` of ``parents``; -1 where there is none."""
    level, width = source.levels[depth], source.max_rank + 1
    codes, wanted = level.parent * width + level.rank, parents * width + ranks
    found = np.searchsorted(codes, wanted)
    there = (found < len(codes)) & (codes[np.minimum(found, len(codes) - 1)] == wanted)
    return np.where(there, found, -1)


@dataclass(frozen=True, slots=True)
class CategoryFigures:
    """One category's replay of the chosen topology beside that of the reference.

    Attributes:
        prompts: in the category.
        ratio: chosen over reference, in predicted speed (tokens per step without costs), with the paired interval.
    """

    name: str
    prompts: int
    tokens_per_step: float
    tokens_per_s: float | None
    speedup_predicted: float | None
    reference_tokens_per_step: float
    reference_speedup_predicted: float | None
    ratio: Interval | None

    def document(self) -> dict[str, Any]:
        """For the ``--json`` documents."""
        ratio = self.ratio
        figures = {name: getattr(self, name) for name in self.__slots__ if name not in ("name", "ratio")}
        interval = None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        return {"category": self.name, **figures, "gain": interval}


def compare_categories(
    trace: RankTrace, cost: CostTable | None, chosen: Topology, reference: Topology, *,
    context: int | None = None, batch: int = 1, seed: int = 0,
) -> list[CategoryFigures]:  # fmt: skip
    """What each category gains or loses with ``chosen`` in place of ``reference``, replayed."""
    lines = []
    for name, part in split(trace).items():
        one, other = evaluate_all([reference, chosen], part, cost, context=context, batch=batch, seed=seed)
        ratio = other.speed_ratio
        if ratio is None and other.difference_tokens_per_step is not None:
            scale, away = one.tokens_per_step, other.difference_tokens_per_step
            ratio = Interval(*(1 + value / scale for value in (away.value, away.low, away.high)))
        lines.append(
            CategoryFigures(
                name, part.num_prompts, other.tokens_per_step, other.tokens_per_s, other.speedup_predicted,
                one.tokens_per_step, one.speedup_predicted, ratio,
            )
        )  # fmt: skip
    return lines
