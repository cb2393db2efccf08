"""Heat maps of acceptance, depth by rank: where a tree should be wide, and where it should end.

Each cell is the conditional rate, P(the draft's rank r is the true token at this depth, given that all shallower
depths hit), in per cent. The colour is logarithmic, because a rank that is accepted once in a hundred times still pays
when a row costs 0.3% of a step. The column at the right is what no rank catches: 1 minus the sum of the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mtp_bench.report import style
from mtp_bench.trace import AcceptanceTable, RankTrace

Floats = npt.NDArray[np.float64]
LEAST_SHOWN = 1e-3  # lower rates get the darkest colour
MOST_RANKS, MOST_SMALL = 20, 12  # more columns would be too small to read; the CSV has them all


@dataclass(frozen=True, eq=False)
class AcceptanceGrid:
    """Conditional rates of one workload.

    Args:
        title: whose rates they are.
        rates: float64 [D, K]; NaN where nothing was observed.
        n: int64 [D], observations behind each row; 0 when unknown.
    """

    title: str
    rates: Floats
    n: npt.NDArray[np.int64]

    @property
    def miss(self) -> Floats:
        """float64 [D]: P(no rank hits), 1 - row sum; NaN for rows without observations."""
        seen = ~np.isnan(self.rates).all(axis=1)
        return np.where(seen, np.clip(1 - np.nansum(self.rates, axis=1), 0, 1), np.nan)

    def frame(self) -> pd.DataFrame:
        """One line per (depth, rank), and one with an empty rank per depth for the miss."""
        depths, ranks = self.rates.shape
        cells: list[dict[str, Any]] = []
        for d in range(depths):
            head = {"workload": self.title, "depth": d + 1, "n_conditional": int(self.n[d])}
            cells += [head | {"rank": r, "rate_conditional": self.rates[d, r]} for r in range(ranks)]
            cells.append(head | {"rank": None, "rate_conditional": self.miss[d]})
        frame = pd.DataFrame(cells, columns=["workload", "depth", "rank", "rate_conditional", "n_conditional"])
        return frame.astype({"rank": "Int64"})


def acceptance_grid(acceptance: pd.DataFrame, title: str = "all prompts") -> AcceptanceGrid:
    """The grid of an ``acceptance.csv``; cells that the file lacks are NaN."""
    pivot = acceptance.pivot_table(index="depth", columns="rank", values="rate_conditional", dropna=False)
    depths = range(1, int(acceptance["depth"].max()) + 1)
    ranks = range(int(acceptance["rank"].max()) + 1)
    n = pd.Series(0, index=depths)
    if "n_conditional" in acceptance:
        n = acceptance.groupby("depth")["n_conditional"].max().reindex(depths).fillna(0)
    rates = pivot.reindex(index=depths, columns=ranks).to_numpy(dtype=np.float64)
    return AcceptanceGrid(title, rates, n.to_numpy().astype(np.int64))


def category_grids(trace: RankTrace) -> tuple[AcceptanceGrid, ...]:
    """One grid per category of the trace, by name; empty when there is only one."""
    names = sorted(set(trace.categories))
    if len(names) < 2:
        return ()
    grids = []
    for name in names:
        prompts = [p for p, category in enumerate(trace.categories) if category == name]
        part = trace.select(prompts)
        measured = AcceptanceTable.from_trace(part, resamples=1).measured
        assert measured is not None  # from_trace always measures
        title = f"{name} ({len(prompts)} prompt{'s' if len(prompts) > 1 else ''})"
        grids.append(AcceptanceGrid(title, measured.rate_conditional, measured.n_conditional))
    return tuple(grids)


@style.house_style()
def draw_acceptance(grid: AcceptanceGrid) -> Figure:
    """The heat map of one grid, large enough for one decimal per cell."""
    depths, ranks = grid.rates.shape
    shown = min(ranks, MOST_RANKS)
    figure = style.new_figure(min(2.6 + 0.52 * (shown + 1.4), 14), 1.5 + 0.5 * depths)
    axes = figure.add_subplot()
    axes.set_title("Conditional rate by depth and rank, in %")
    _draw_grid(axes, grid, shown, decimals=1, size=7.5)
    axes.set_yticks(range(depths), [_row_name(d + 1, int(n)) for d, n in enumerate(grid.n)])
    axes.set_xlabel("rank (place in the draft's list)", fontsize=8.5)
    style.caption(
        figure, f"{grid.title}, averaged over all positions; log colour; empty = never seen.{_hidden(ranks, shown)}"
    )
    return figure


@style.house_style()
def draw_categories(grids: Sequence[AcceptanceGrid]) -> Figure:
    """The heat maps of all categories on one colour scale."""
    columns = min(3, len(grids))
    lines = math.ceil(len(grids) / columns)
    depths, ranks = grids[0].rates.shape
    shown = min(ranks, MOST_SMALL)
    width, height = 0.9 + 0.28 * (shown + 1.4), 0.75 + 0.3 * depths
    figure = style.new_figure(max(columns * width, 6.0), lines * height + 0.3)
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.09, h_pad=0.06)
    for place, grid in enumerate(grids):
        axes = figure.add_subplot(lines, columns, place + 1)
        axes.set_title(grid.title, fontsize=8.5)
        _draw_grid(axes, grid, shown, decimals=0, size=6.5)
        axes.set_yticks(range(depths), [str(d + 1) for d in range(depths)], fontsize=7.5)
        if place % columns == 0:
            axes.set_ylabel("depth", fontsize=8)
    text = "Conditional rate by depth (down) and rank (right), in %; last column: no rank hit."
    style.caption(figure, text + _hidden(ranks, shown))
    return figure


def _hidden(ranks: int, shown: int) -> str:
    return f" Ranks from {shown} on are in the CSV only." if ranks > shown else ""


def _draw_grid(axes: Axes, grid: AcceptanceGrid, shown: int, *, decimals: int, size: float) -> None:
    depths = len(grid.rates)
    rates = grid.rates[:, :shown]
    ranks = rates.shape[1]
    norm = LogNorm(LEAST_SHOWN, 1.0, clip=True)
    colours = colormaps[style.HEAT]
    axes.imshow(np.ma.masked_where(~(rates > 0), rates), cmap=colours, norm=norm, aspect="auto")
    for d, r in np.ndindex(depths, ranks):
        if rates[d, r] > 0:
            dark = float(norm(rates[d, r])) < 0.6
            _cell_text(axes, r, d, float(rates[d, r]), decimals, size, "white" if dark else "black")
    for d, miss in enumerate(grid.miss):
        axes.add_patch(Rectangle((ranks - 0.1, d - 0.5), 1.2, 1, facecolor="#F2F2F2", edgecolor="white"))
        if not math.isnan(miss):
            _cell_text(axes, ranks + 0.5, d, miss, decimals, size, "black")
    axes.set(xlim=(-0.5, ranks + 1.1), ylim=(depths - 0.5, -0.5))
    axes.set_xticks([*range(ranks), ranks + 0.5], [*map(str, range(ranks)), "miss"], fontsize=max(size, 6.5))
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell_text(axes: Axes, x: float, y: float, rate: float, decimals: int, size: float, colour: str) -> None:
    axes.text(x, y, _percent(rate, decimals), ha="center", va="center", fontsize=size, color=colour)


def _percent(rate: float, decimals: int) -> str:
    """Per cent with ``decimals`` places; "<0.1" where that would read as zero."""
    least = 10.0**-decimals
    percent = 100 * rate
    return f"{percent:.{decimals}f}" if percent == 0 or percent >= least / 2 else f"<{least:g}"


def _row_name(depth: int, n: int) -> str:
    return f"depth {depth}" + (f"\nn = {n:,}" if n else "")
