"""The tree drawn top-down: every node with its rank, sized and coloured by how often its path is accepted.

Dashed circles are the first nodes left out, the best that the budget (or the cost of a row) did not admit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mtp_bench.report import style
from mtp_bench.topology import Path, StaticTree
from mtp_bench.trace import RankTrace

Floats = npt.NDArray[np.float64]
LEFT_OUT = 6
MOST_LABELS = 130  # leaves; with more the numbers would touch
_AREA = (70.0, 420.0)  # points squared, of the least and the most valuable node
_ROOT_AREA, _PLAIN_AREA = 160.0, 130.0


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node with its place: ``x`` in leaf widths, ``value`` = P(path accepted) or None when unknown."""

    path: Path
    x: float
    value: float | None
    kept: bool

    @property
    def depth(self) -> int:
        """Distance from the root."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class TreeDrawing:
    """A tree laid out; ``nodes`` are in canonical order, the root (empty path) first."""

    nodes: tuple[DrawnNode, ...]
    width: int
    depth: int

    def frame(self) -> pd.DataFrame:
        """One line per node: path, depth, rank, value, whether it is in the tree, and its place."""
        lines = [
            {
                "path": " ".join(map(str, node.path)),
                "depth": node.depth,
                "rank": node.path[-1],
                "value": node.value,
                "in_tree": node.kept,
                "x": node.x,
            }
            for node in self.nodes[1:]
        ]
        return pd.DataFrame(lines, columns=["path", "depth", "rank", "value", "in_tree", "x"])


def path_values(trace: RankTrace, tree: StaticTree) -> dict[Path, float]:
    """P(path accepted) of each node, averaged over all positions a step could start at."""
    ranks, starts = trace.ranks, max(trace.num_starts, 1)
    matching: dict[Path, npt.NDArray[np.int64]] = {(): np.arange(trace.num_positions)}
    for path in tree.paths:
        rows = matching[path[:-1]]
        inside = len(path) <= trace.depth
        matching[path] = rows[ranks[rows, len(path) - 1] == path[-1]] if inside else rows[:0]
    return {path: len(matching[path]) / starts for path in tree.paths}


def table_values(rates: Floats, tree: StaticTree) -> dict[Path, float]:
    """The same by the product of conditional rates [D, K], for runs without a trace; 0 beyond the table."""
    values: dict[Path, float] = {(): 1.0}
    for path in tree.paths:
        known = len(path) <= rates.shape[0] and path[-1] < rates.shape[1]
        rate = float(np.nan_to_num(rates[len(path) - 1, path[-1]])) if known else 0.0
        values[path] = values[path[:-1]] * rate
    del values[()]
    return values


def first_left_out(trace: RankTrace, tree: StaticTree, count: int = LEFT_OUT) -> dict[Path, float]:
    """The ``count`` most valuable nodes that could be added to ``tree``, with their values; ties to the shorter path.

    They are the children, outside the tree, of its rows: wherever a true path leaves the tree, it leaves through one.
    """
    exits: Counter[Path] = Counter()
    inside = {(), *tree.paths}
    for path in [(), *tree.paths]:
        if len(path) < trace.depth:
            rows = np.flatnonzero((trace.ranks[:, : len(path)] == path).all(axis=1)) if path else slice(None)
            seen, counts = np.unique(trace.ranks[rows, len(path)], return_counts=True)
            exits.update({(*path, int(r)): int(c) for r, c in zip(seen, counts, strict=True) if r >= 0})
    outside = [(path, hits) for path, hits in exits.items() if path not in inside]
    outside.sort(key=lambda item: (-item[1], len(item[0]), item[0]))
    return {path: hits / max(trace.num_starts, 1) for path, hits in outside[:count]}


def lay_out(
    tree: StaticTree, values: Mapping[Path, float] | None = None, left_out: Mapping[Path, float] | None = None
) -> TreeDrawing:
    """Place leaves side by side in order of their paths, parents above the middle of their children."""
    known, outside = values or {}, left_out or {}
    drawn = StaticTree.from_paths([*tree.paths, *outside])
    children: dict[Path, list[Path]] = {}
    for path in drawn.paths:
        children.setdefault(path[:-1], []).append(path)
    x: dict[Path, float] = {}
    leaves = 0
    for path in _after_children(children):
        below = children.get(path)
        if below:
            x[path] = (x[below[0]] + x[below[-1]]) / 2
        else:
            x[path], leaves = float(leaves), leaves + 1
    nodes = [DrawnNode((), x[()], 1.0, True)]
    nodes += [DrawnNode(p, x[p], outside.get(p, known.get(p)), p not in outside) for p in drawn.paths]
    return TreeDrawing(tuple(nodes), max(leaves, 1), drawn.depth)


def _after_children(children: Mapping[Path, list[Path]]) -> Iterator[Path]:
    """All paths, each after its children, siblings in order; no recursion, for deep chains."""
    stack: list[tuple[Path, bool]] = [((), False)]
    while stack:
        path, seen = stack.pop()
        if seen or path not in children:
            yield path
        else:
            stack.append((path, True))
            stack.extend((child, False) for child in reversed(children[path]))


@style.house_style()
def draw_tree(drawing: TreeDrawing, title: str = "The chosen tree") -> Figure:
    """Draw it; the figure grows with the number of leaves and levels."""
    figure = style.new_figure(min(max(5.5, 1.4 + 0.3 * drawing.width), 22), 1.3 + 0.85 * (drawing.depth + 1))
    axes = figure.add_subplot()
    kept = [node for node in drawing.nodes[1:] if node.kept]
    axes.set_title(f"{title}: {len(kept)} nodes, depth {max((n.depth for n in kept), default=0)}")
    _draw_edges(axes, drawing)
    _draw_nodes(axes, drawing)
    axes.set(xlim=(-0.8, drawing.width - 0.2), ylim=(drawing.depth + 0.5, -0.5), ylabel="depth")
    axes.set_yticks(range(drawing.depth + 1), ["root", *map(str, range(1, drawing.depth + 1))])
    axes.set_xticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    dashed = " Dashed: the first nodes left out." if any(not node.kept for node in drawing.nodes) else ""
    ranks = "Number in a node: its rank. " if drawing.width <= MOST_LABELS else ""
    valued = "Area and colour: P(path accepted)." if any(node.value for node in drawing.nodes[1:]) else ""
    style.caption(figure, f"{ranks}{valued}{dashed}")
    return figure


def _draw_edges(axes: Axes, drawing: TreeDrawing) -> None:
    place = {node.path: (node.x, node.depth) for node in drawing.nodes}
    for kept, line in ((True, "solid"), (False, (0, (2, 2)))):
        edges = [(place[n.path[:-1]], place[n.path]) for n in drawing.nodes[1:] if n.kept == kept]
        axes.add_collection(LineCollection(edges, colors="#999999", linewidths=0.9, linestyles=[line], zorder=1))


def _area(node: DrawnNode, highest: float, width: int) -> float:
    """Points squared; small enough that neighbouring leaves of a wide tree do not touch."""
    if not node.path:
        return _ROOT_AREA
    least = min(_AREA[0], (0.9 * 72 * 20 / width) ** 2)
    return least + (_AREA[1] - least) * float(np.sqrt(min((node.value or 0.0) / highest, 1.0)))


def _draw_nodes(axes: Axes, drawing: TreeDrawing) -> None:
    known = [node.value for node in drawing.nodes[1:] if node.value]
    lowest, highest = min(known, default=0.001), max(known, default=1.0)
    norm = LogNorm(lowest if lowest < highest else highest / 10, highest, clip=True)
    colours = colormaps[style.HEAT]
    for node in drawing.nodes:
        level = float(norm(node.value)) if node.value else 0.0
        area = _area(node, highest, drawing.width) if known else _PLAIN_AREA
        face = style.BLACK if not node.path else "white" if not node.kept or not known else colours(level)
        edge, line = (style.BLACK, "-") if node.kept else (style.VERMILLION, "--")
        axes.scatter([node.x], [node.depth], s=area, color=[face], edgecolors=edge, linestyles=line, lw=0.8, zorder=2)
        if node.path and drawing.width <= MOST_LABELS:
            light = node.kept and bool(known) and level < 0.6
            text = "white" if light else style.BLACK if node.kept else style.VERMILLION
            size = 6.5 if node.path[-1] < 10 else 5.5
            axes.text(node.x, node.depth, str(node.path[-1]), ha="center", va="center", fontsize=size, color=text)
    if known and axes.figure is not None:
        bar: Any = axes.figure.colorbar(ScalarMappable(norm, colours), ax=axes, pad=0.01, shrink=0.8, aspect=25)
        bar.set_label("P(path accepted), log scale", fontsize=8)
        low, high = norm.vmin or 0.0, norm.vmax or 1.0
        ticks = [digit * 10.0**power for power in range(-5, 1) for digit in (1, 2, 5)]
        bar.set_ticks([tick for tick in ticks if low <= tick <= high], minor=False)
        bar.ax.minorticks_off()
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
        bar.outline.set_visible(False)
