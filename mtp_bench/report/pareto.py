"""Latency of one user against total throughput: dominated points grey, the front as a line, Optuna's front as rings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
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
    front, dominated, tried = (frame[frame["kind"] == kind] for kind in ("front", "dominated", "optuna"))
    axes.plot(dominated[x], dominated[y], ".", color=style.PALE, ms=4, label="dominated", zorder=1)
    front = front.sort_values(x)
    # A staircase, since nothing between two points is on offer.
    axes.step(front[x], front[y], where="pre", color=style.BLUE, lw=1.0, marker="o", label="front (exact)", zorder=3)
    for one in front.to_dict("records"):
        label = f"batch {one['batch']}, N = {one['num_nodes']}"
        axes.annotate(label, (one[x], one[y]), (5, 6), textcoords="offset points", color=style.BLUE, fontsize=8)
    if len(tried):
        look: dict[str, Any] = {"mfc": "none", "mec": style.ORANGE, "ms": 10, "mew": 1.2}
        axes.plot(tried[x], tried[y], "o", label="front of Optuna's trials", zorder=4, **look)
    axes.set(xlabel="predicted decode tokens/s of each user", ylabel="predicted decode tokens/s in all")
    axes.set_title("Latency of one user against total throughput")
    axes.set(xlim=(0, 1.15 * float(frame[x].max())), ylim=(0, 1.1 * float(frame[y].max())))
    axes.legend(loc="upper right")
    style.caption(figure, "Best static tree of each size and depth at each batch size; tokens replayed. N = nodes.")
    return figure
