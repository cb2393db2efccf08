"""Reaching a size that rules prescribe where values run out: nodes that are never accepted fill the rows."""

from __future__ import annotations

from mtp_bench.topology import StaticTree


def capacity(max_depth: int, *, children: int, max_width: int | None = None) -> int:
    """Most nodes of a tree of this depth with so many ``children`` a node and nodes a level."""
    total, width = 0, 1
    for _ in range(max_depth):
        width = min(width * children, max_width if max_width is not None else width * children)
        total += width
    return total


def fill(tree: StaticTree, num_nodes: int, *, max_depth: int, children: int, max_width: int | None) -> StaticTree:
    """``tree`` with nodes of the smallest free ranks added, shallow ones first, up to ``num_nodes``.

    Sizes up to :func:`capacity` can be reached: as long as some level is narrower than its limit, a node of the level
    above has room for one more child.
    """
    paths = set(tree.paths)
    above: list[tuple[int, ...]] = [()]
    for _ in range(max_depth):
        level = [(*parent, rank) for parent in above for rank in range(children) if (*parent, rank) not in paths]
        own = [path for path in tree.paths if len(path) == len(above[0]) + 1]
        room = num_nodes - len(paths)
        if max_width is not None:
            room = min(room, max_width - len(own))
        counts = {parent: sum(path[:-1] == parent for path in own) for parent in above}
        for path in level:
            if room > 0 and counts[path[:-1]] < children:
                paths.add(path)
                counts[path[:-1]] += 1
                own.append(path)
                room -= 1
        above = sorted(own)
        if not above:
            break
    return StaticTree.from_paths(paths)
