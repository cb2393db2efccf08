"""Latency of one user against total throughput: dominated points grey, the front as a line, Optuna's points as rings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame


def write_pareto(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plot and its data under ``plots/``; the paths written."""
    frame = pareto_frame(document)
    return [*save_figure(draw_pareto(frame), folder / "plots", "pareto"), save_frame(frame, folder / "plots", "pareto")]


def pareto_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """One line per point; ``kind`` is front, dominated, or optuna (the undominated of its trials)."""
    lines = [dict(one) | {"kind": "front" if one["front"] else "dominated"} for one in document["points"]]
    study = document["optuna"]
    lines += [dict(one) | {"kind": "optuna"} for one in (study["front"] if study else [])]
    return pd.DataFrame(lines).drop(columns="front")


@style.house_style()
def draw_pareto(frame: pd.DataFrame) -> Figure:
    """Total tokens/s (up) against tokens/s of each user (right)."""
    figure = style.new_figure(8.2, 5.2)
    axes = figure.add_subplot()
    x, y = "tokens_per_s_per_user", "tokens_per_s_total"
    kinds = {kind: group for kind, group in frame.groupby("kind")}
    dominated = kinds.get("dominated")
    if dominated is not None:
        axes.plot(dominated[x], dominated[y], ".", color=style.PALE, ms=4, label="dominated", zorder=1)
    front = kinds["front"].sort_values(x)
    # A staircase, since nothing between two points is on offer.
    axes.step(front[x], front[y], where="pre", color=style.GREY, lw=1.0, zorder=2, label="front (exact)")
    for place, (batch, group) in enumerate(front.groupby("batch")):
        colour = style.CYCLE[place % len(style.CYCLE)]
        marker = style.MARKERS[place % len(style.MARKERS)]
        axes.plot(group[x], group[y], marker, color=colour, ms=6, zorder=3, label=f"batch {batch}")
        _name(axes, group, x, y, colour)
    if "optuna" in kinds:
        tried = kinds["optuna"]
        axes.plot(
            tried[x], tried[y], "o", mfc="none", mec=style.BLACK, ms=10, mew=0.8, label="Optuna's front", zorder=4
        )
    axes.set(xlabel="predicted decode tokens/s of each user", ylabel="predicted decode tokens/s in all")
    axes.set_title("Latency of one user against total throughput")
    axes.set(xlim=(0, 1.12 * float(frame[x].max())), ylim=(0, 1.1 * float(frame[y].max())))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    style.caption(figure, "Best static tree of each size and depth at each batch size; tokens replayed. N = nodes.")
    return figure


def _name(axes: Axes, group: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """N of the ends of a batch size's part of the front; all of a short one."""
    rows = group.sort_values(x)
    shown = rows if len(rows) <= 2 else rows.iloc[[0, -1]]
    for one in shown.to_dict("records"):
        axes.annotate(
            f"N = {one['num_nodes']}", (one[x], one[y]), (4, 6), textcoords="offset points", color=colour, fontsize=8
        )
