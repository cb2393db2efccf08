"""Trees of a given size for measuring costs, where only the shape's size matters and no rates are known yet."""

from __future__ import annotations

import heapq

from mtp_bench.topology.tree import StaticTree
from mtp_bench.topology.validate import Path


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
