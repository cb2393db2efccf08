"""Local search for the slowest category: exchange, add or drop one leaf for as long as that helps it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mtp_bench.search.by_category.categories import CategoryTrie
from mtp_bench.search.values.sources import Path
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]

_LEAST_GAIN = 1e-9


def exchange(trie: CategoryTrie, tree: StaticTree, step_ms: Callable[[int, int], float]) -> StaticTree:
    """A tree that no exchange, addition or removal of one leaf improves, in ``min over categories of tokens / ms``.

    Args:
        trie: values by category.
        tree: to start from.
        step_ms: (num_nodes, depth) -> cost of a step; inf where that is not allowed.
    """
    score = float(trie.tokens(tree).min()) / step_ms(tree.num_nodes, tree.depth)
    while True:
        better, found = _best_neighbour(trie, tree, step_ms)
        if found <= score * (1 + _LEAST_GAIN):
            return tree
        tree, score = better, found


def _best_neighbour(
    trie: CategoryTrie, tree: StaticTree, step_ms: Callable[[int, int], float]
) -> tuple[StaticTree, float]:
    """The best tree that lacks at most one leaf and has at most one node more; () stands for no leaf and no node."""
    values = _values(trie, tree)
    kept = [path for path in values if path in set(tree.paths)]
    parents = {path[:-1] for path in kept}
    leaves: list[Path] = [(), *(path for path in kept if path not in parents)]
    outside: list[Path] = [(), *(path for path in values if path not in set(kept))]
    nothing = np.zeros(len(trie.names))
    gone = np.array([values.get(path, nothing) for path in leaves])
    new = np.array([values.get(path, nothing) for path in outside])
    least = np.min(trie.tokens(tree)[:, None, None] - gone.T[:, :, None] + new.T[:, None, :], axis=0)
    depth_without = [max((len(p) for p in kept if p != leaf), default=0) for leaf in leaves]
    depths = np.maximum(np.array(depth_without)[:, None], [len(path) for path in outside])
    sizes = tree.num_nodes - np.array([len(path) > 0 for path in leaves])[:, None] + [len(p) > 0 for p in outside]
    ms = np.array(
        [[step_ms(int(n), int(d)) for n, d in zip(*row, strict=True)] for row in zip(sizes, depths, strict=True)]
    )
    orphans = np.array([[len(leaf) > 0 and path[:-1] == leaf for path in outside] for leaf in leaves])
    scores = np.where(orphans, -np.inf, least / ms)
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    paths = (set(tree.paths) - {leaves[row]}) | {outside[column]}
    return StaticTree.from_paths(sorted(paths - {()})), float(scores[row, column])


def _values(trie: CategoryTrie, tree: StaticTree) -> dict[Path, Floats]:
    """Path -> float64 [C], for the tree's nodes and all their children that occur at all."""
    paths = list(tree.paths)
    for parent in ((), *tree.paths):
        paths += [(*parent, rank) for rank, _ in trie.source.children(parent)]
    return {path: trie.value(path) for path in dict.fromkeys(paths)}
