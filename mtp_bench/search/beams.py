"""Trees of limited level width where the exact programme would be too large: level by level, the best few nodes.

A beam that keeps the nodes of most value is not optimal on a trace, since a node of less value may have the richer
subtree. So each level has two integers, its width and how much what lies below a node counts in choosing it, and
Optuna searches them. What it finds is a tree within the rules, not a proven optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from mtp_bench.search.families import Scored
from mtp_bench.search.integer_study import integer_study
from mtp_bench.search.subtrees import Level, Siblings
from mtp_bench.search.uniform import Score
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Path = tuple[int, ...]
LOOK_AHEAD = 4  # steps between judging a node by its own value and by its whole subtree's


@dataclass(frozen=True, eq=False)
class Beams:
    """Builds trees from one width and one weight of the subtree per level.

    Args:
        levels: from :func:`mtp_bench.search.subtrees.levels_of`.
        siblings: which children may go together.
        max_nodes: of the tree.
        max_width: of a level.
    """

    levels: Sequence[Level]
    siblings: Siblings
    max_nodes: int
    max_width: int

    @cached_property
    def _mass(self) -> list[Floats]:
        """By depth and node: the values of everything below it, given that it was accepted."""
        mass = [np.zeros(self.levels[-1].children)] if self.levels else []
        for level in reversed(self.levels[1:]):
            gain = level.rate * (1.0 + mass[-1][level.child])
            mass.append(np.bincount(level.parent, weights=gain, minlength=level.parents).astype(np.float64))
        return mass[::-1]

    def grow(self, widths: Sequence[int], look_ahead: Sequence[int]) -> tuple[StaticTree, float]:
        """The tree of these widths, and its expected tokens per step."""
        paths: list[Path] = []
        above: list[tuple[Path, int, float]] = [((), 0, 1.0)]  # path, node, value
        tokens = 1.0
        for level, mass, width, weight in zip(self.levels, self._mass, widths, look_ahead, strict=True):
            room = min(width, self.max_width, self.max_nodes - len(paths))
            found = [child for parent in above for child in self._children(level, mass, parent, weight / LOOK_AHEAD)]
            found.sort(key=lambda child: (-child[0], child[1]))
            above = [(path, node, value) for _, path, node, value in found[: max(room, 0)]]
            paths += [path for path, _, _ in above]
            tokens += sum(value for _, _, value in above)
        return StaticTree.from_paths(paths), tokens

    def _children(
        self, level: Level, mass: Floats, parent: tuple[Path, int, float], weight: float
    ) -> list[tuple[float, Path, int, float]]:
        """(score, path, node, value) of the children that may be taken, in any number from the highest score on."""
        path, node, value = parent
        first, end = np.searchsorted(level.parent, [node, node + 1])
        children: list[tuple[float, Path, int, float]] = []
        for edge in range(int(first), int(end)):
            rank, child, worth = int(level.rank[edge]), int(level.child[edge]), value * float(level.rate[edge])
            score = worth * (1.0 + weight * float(mass[child]))
            if self.siblings.contiguous:
                if rank != len(children):
                    break
                score = min(score, children[-1][0]) if children else score
            children.append((score, (*path, rank), child, worth))
        if self.siblings.max_children is None:
            return children
        return sorted(children, key=lambda child: (-child[0], child[1]))[: self.siblings.max_children]


def studied(
    beams: Beams, score: Score, *, trials: int, seed: int, start: Sequence[Sequence[int]]
) -> tuple[Scored, int]:
    """The beams that Optuna tried as a family, and how many trees they were.

    Args:
        score: what is maximised.
        start: level widths tried first, judged by nodes alone and by whole subtrees.
    """
    depth = len(beams.levels)
    names = [f"width_{d}" for d in range(1, depth + 1)] + [f"look_ahead_{d}" for d in range(1, depth + 1)]
    tokens: dict[StaticTree, float] = {}

    def canonical(parameters: Mapping[str, int]) -> StaticTree:
        numbers = [parameters[name] for name in names]
        tree, value = beams.grow(numbers[:depth], numbers[depth:])
        tokens.setdefault(tree, value)
        return tree

    def value(tree: StaticTree) -> float:
        return score(tokens[tree], tree.num_nodes, tree.depth)

    wishes = [[*[*widths, *[0] * depth][:depth], *[look] * depth] for widths in start for look in (0, LOOK_AHEAD)]
    found = integer_study(
        dict.fromkeys(names[:depth], (0, beams.max_width)) | dict.fromkeys(names[depth:], (0, LOOK_AHEAD)),
        canonical,
        value,
        trials=trials,
        seed=seed,
        start=[dict(zip(names, wish, strict=True)) for wish in wishes],
    )
    best: dict[tuple[int, int], StaticTree] = {}
    for tree in found:
        known = best.get((tree.num_nodes, tree.depth))
        if tree.num_nodes and (known is None or tokens[tree] > tokens[known]):
            best[tree.num_nodes, tree.depth] = tree
    family = {place: (tokens[tree], partial(_same, tree)) for place, tree in best.items()}
    return Scored(family, beams.max_nodes), len(found)


def _same(tree: StaticTree) -> StaticTree:
    return tree
