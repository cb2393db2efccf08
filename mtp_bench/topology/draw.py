"""A tree drawn with text, compact enough for 63 nodes on one screen.

Each number is the rank of a node. A node with a single child continues on its line (``0 ─ 0 ─ 1``), and neighbouring
siblings that are leaves share a line (``4  5  6``), so a published tree of 63 nodes takes about 30 lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mtp_bench.topology.tree import StaticTree
from mtp_bench.topology.validate import Path

LEAF_GAP = "  "


def draw(tree: StaticTree, values: Mapping[Path, float] | None = None, *, width: int = 100) -> str:
    """Draw ``tree``; ``values`` (path -> probability, say) are printed behind the ranks where given."""
    children: dict[Path, list[Path]] = {}
    for path in tree.paths:
        children.setdefault(path[:-1], []).append(path)
    return "\n".join(["root", *_below((), children, values or {}, "", width)])


def _below(
    parent: Path, children: Mapping[Path, list[Path]], values: Mapping[Path, float], prefix: str, width: int
) -> Iterator[str]:
    groups = list(_groups(children.get(parent, []), children, values, max(20, width - len(prefix) - 3)))
    for place, (text, end) in enumerate(groups):
        last = place == len(groups) - 1
        yield f"{prefix}{'└─ ' if last else '├─ '}{text}"
        if end is not None:
            yield from _below(end, children, values, prefix + ("   " if last else "│  "), width)


def _groups(
    siblings: list[Path], children: Mapping[Path, list[Path]], values: Mapping[Path, float], width: int
) -> Iterator[tuple[str, Path | None]]:
    """Yield the text of one line each, and the node whose children follow below it (None after leaves)."""
    leaves = ""
    for path in siblings:
        label = _label(path, values)
        if path not in children:
            if leaves and len(leaves) + len(LEAF_GAP) + len(label) > width:
                yield leaves, None
                leaves = ""
            leaves += (LEAF_GAP if leaves else "") + label
            continue
        if leaves:
            yield leaves, None
            leaves = ""
        yield _follow(path, label, children, values)
    if leaves:
        yield leaves, None


def _follow(
    path: Path, text: str, children: Mapping[Path, list[Path]], values: Mapping[Path, float]
) -> tuple[str, Path]:
    while len(children.get(path, [])) == 1:
        path = children[path][0]
        text += f" ─ {_label(path, values)}"
    return text, path


def _label(path: Path, values: Mapping[Path, float]) -> str:
    return f"{path[-1]} ({values[path]:.3f})" if path in values else str(path[-1])
