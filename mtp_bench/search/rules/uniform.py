"""Trees in which all nodes of a level have the same number of children: one small integer per level.

With branching (b1, b2, ...) a node of depth d - 1 has the children of ranks 0..bd - 1. There are few such vectors
within a usual budget (some hundreds of 63 nodes and depth 4), so all are scored; of larger spaces Optuna sees a part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mtp_bench.search.rules.families import Scored
from mtp_bench.search.studies.integer_study import integer_study
from mtp_bench.search.values.sources import CERTAIN, ROOT, Source
from mtp_bench.topology import StaticTree
from mtp_bench.topology.shapes import uniform_tree

Branching = tuple[int, ...]
Score = Callable[[float, int, int], float]  # of expected tokens, num_nodes, depth
MOST_VECTORS = 20_000  # scored one by one; about 10 s


@dataclass(frozen=True)
class UniformSpace:
    """Which branchings there are.

    Args:
        max_nodes, max_depth: of the tree.
        max_children: largest number of children.
        max_width: most nodes of a level, None = any.
    """

    max_nodes: int
    max_depth: int
    max_children: int
    max_width: int | None = None

    def most(self, num_nodes: int, width: int) -> int:
        """Most children of each of ``width`` nodes, the tree having ``num_nodes`` nodes so far."""
        limits = [self.max_children, (self.max_nodes - num_nodes) // width]
        return min(limits if self.max_width is None else [*limits, self.max_width // width])

    def vectors(self, start: Branching = (), num_nodes: int = 0, width: int = 1) -> Iterator[Branching]:
        """All branchings, shallow ones before those that begin with them."""
        if len(start) == self.max_depth:
            return
        for children in range(1, self.most(num_nodes, width) + 1):
            branching = (*start, children)
            yield branching
            yield from self.vectors(branching, num_nodes + width * children, width * children)

    def clip(self, wanted: Sequence[int]) -> Branching:
        """The branching nearest to ``wanted`` from the root on; it ends at the first level without children."""
        branching: list[int] = []
        num_nodes, width = 0, 1
        for children in wanted[: self.max_depth]:
            allowed = min(children, self.most(num_nodes, width))
            if allowed < 1:
                break
            width *= allowed
            num_nodes += width
            branching.append(allowed)
        return tuple(branching)


def size_of(branching: Branching) -> int:
    """Nodes of the tree with this branching."""
    return sum(itertools.accumulate(branching, lambda width, children: width * children))


class UniformTokens:
    """Expected tokens of branchings, remembering what their first levels are worth."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[Branching, tuple[float, npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {
            (): (1.0, ROOT, CERTAIN)
        }

    def __call__(self, branching: Branching) -> float:
        """``1 + sum of values`` of the nodes of the tree."""
        return self._level(branching)[0]

    def _level(self, branching: Branching) -> tuple[float, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        if branching not in self._known:
            tokens, nodes, values = self._level(branching[:-1])
            if len(branching) > self._source.max_depth:
                self._known[branching] = (tokens, nodes[:0], values[:0])
            else:
                found = self._source.expand(len(branching), nodes, values)
                kept = found.take(np.flatnonzero(found.rank < branching[-1]))
                self._known[branching] = (tokens + float(kept.value.sum()), kept.node, kept.value)
        return self._known[branching]


def branching_of(tree: StaticTree) -> Branching:
    """The mean number of children at each level, rounded up: where a search for uniform trees may start."""
    widths = (1, *tree.level_widths)
    return tuple(-(-after // before) for before, after in itertools.pairwise(widths))


def exhaustive(space: UniformSpace, source: Source) -> Scored | None:
    """All branchings scored; None when there are more than :data:`MOST_VECTORS`."""
    vectors = list(itertools.islice(space.vectors(), MOST_VECTORS + 1))
    if len(vectors) > MOST_VECTORS:
        return None
    tokens = UniformTokens(source)
    return family_of({branching: tokens(branching) for branching in vectors}, space)


def family_of(tokens: Mapping[Branching, float], space: UniformSpace) -> Scored:
    """The best branching of each size and depth among those scored."""
    best: dict[tuple[int, int], tuple[float, Branching]] = {}
    for branching, value in tokens.items():
        place = (size_of(branching), len(branching))
        if branching and (place not in best or value > best[place][0]):
            best[place] = (value, branching)
    return Scored({place: (value, partial(uniform_tree, b)) for place, (value, b) in best.items()}, space.max_nodes)


def studied(
    space: UniformSpace, source: Source, score: Score, *, trials: int, seed: int, start: Sequence[Branching]
) -> tuple[Scored, int]:
    """The branchings that Optuna tried, and how many they were.

    Args:
        score: what is maximised.
        start: branchings tried first, clipped to the space.
    """
    tokens = UniformTokens(source)
    names = [f"children_{depth}" for depth in range(1, space.max_depth + 1)]
    most = space.most(0, 1)

    def canonical(parameters: Mapping[str, int]) -> Branching:
        return space.clip([parameters[name] for name in names])

    def value(branching: Branching) -> float:
        return score(tokens(branching), size_of(branching), len(branching))

    found = integer_study(
        dict.fromkeys(names, (0, most)),
        canonical,
        value,
        trials=trials,
        seed=seed,
        start=[dict(zip(names, [*b, *[0] * len(names)], strict=False)) for b in start],
    )
    return family_of({branching: tokens(branching) for branching in found}, space), len(found)
