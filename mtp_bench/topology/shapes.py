"""Trees made from numbers: of a given size, for measuring costs where no rates are known yet, and of a branching."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from mtp_bench.errors import InputError
from mtp_bench.topology.tree import StaticTree
from mtp_bench.topology.validate import MAX_DEPTH, Path

MAX_DENSE_NODES = 65_536


def typical_tree(num_nodes: int, *, depth: int, top_k: int) -> StaticTree:
    """A tree of ``num_nodes`` nodes shaped as if every draft's rank r were accepted at rate ``0.5 * 0.4 ** r``.

    Smaller ones are contained in larger ones. Fewer nodes where ``depth`` and ``top_k`` leave no room.
    """
    heap: list[tuple[float, Path]] = [(-0.5, (0,))]
    paths: list[Path] = []
    while heap and len(paths) < num_nodes:
        value, path = heapq.heappop(heap)
        paths.append(path)
        if path[-1] + 1 < top_k:
            heapq.heappush(heap, (value * 0.4, (*path[:-1], path[-1] + 1)))
        if len(path) < depth:
            heapq.heappush(heap, (value * 0.5, (*path, 0)))
    return StaticTree.from_paths(paths)


def uniform_tree(branching: Sequence[int]) -> StaticTree:
    """The dense tree in which every node of depth d - 1 has the children of ranks 0 to ``branching[d - 1] - 1``.

    Raises:
        InputError: a number below 1, or too many levels or nodes.
    """
    widths = list(itertools.accumulate(branching, lambda width, children: width * children))
    if min(branching, default=1) < 1 or len(branching) > MAX_DEPTH or sum(widths) > MAX_DENSE_NODES:
        raise InputError(
            f"no tree has the branching {list(branching)}",
            fix=f"give the children of a node at each depth, at least 1, with at most {MAX_DENSE_NODES} nodes in all",
        )
    levels = (itertools.product(*map(range, branching[: depth + 1])) for depth in range(len(branching)))
    return StaticTree(tuple(itertools.chain.from_iterable(levels)))
