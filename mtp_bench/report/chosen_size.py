"""How often each size was chosen when the prompts were resampled, below the speedup curve it was chosen on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.sizes import SizeCurve, size_curve


@dataclass(frozen=True, eq=False)
class ChosenSize:
    """The data of the plot.

    Args:
        frame: one line per N of the curve: ``num_nodes``, ``share`` of the resamples that chose it, ``within_band``,
            and the curve's ``tokens_per_step`` and ``speedup``.
        curve: the sizes it was chosen from.
        best: N chosen on all prompts.
        resamples: how many were searched.
        share_within_band: of them chose a size within 1% of the best.
    """

    frame: pd.DataFrame
    curve: SizeCurve
    best: int
    resamples: int
    share_within_band: float


def chosen_size_data(optimize: Mapping[str, Any]) -> ChosenSize | None:
    """The ``chosen_size`` object of an ``optimize.json`` beside its curve; None when one of them is missing."""
    found, curve = optimize.get("chosen_size"), size_curve(optimize)
    if not isinstance(found, Mapping) or curve is None or not found.get("resamples"):
        return None
    times = {int(one["num_nodes"]): int(one["times"]) for one in found["num_nodes"]}
    frame = curve.frame[["num_nodes", "tokens_per_step", "speedup"]].copy()
    frame.insert(1, "share", [times.get(int(n), 0) / found["resamples"] for n in frame["num_nodes"]])
    frame.insert(2, "within_band", frame["num_nodes"].isin(found["band"]))
    return ChosenSize(frame, curve, int(found["best"]), int(found["resamples"]), float(found["share_within_band"]))


@style.house_style()
def draw_chosen_size(data: ChosenSize) -> Figure:
    """The curve above (speedup, or tokens_per_step without costs), the shares below, one axis of sizes."""
    figure = style.new_figure(8.4, 5.2)
    grid = figure.add_gridspec(2, 1, height_ratios=[1.2, 1.0])
    top = figure.add_subplot(grid[0])
    bottom = figure.add_subplot(grid[1], sharex=top)
    _draw_curve(top, data)
    _draw_shares(bottom, data)
    top.tick_params(labelbottom=False)
    bottom.set_xlabel("nodes (N)")
    style.caption(
        figure,
        f"{data.resamples} resamples of the prompts, each searched exactly. Yellow: sizes within 1% of the best "
        f"({100 * data.share_within_band:.0f}% of the resamples).",
    )
    return figure


def _draw_curve(axes: Axes, data: ChosenSize) -> None:
    name = "speedup" if data.curve.has_speedup else "tokens_per_step"
    axes.set_title("Predicted speedup by tree size" if name == "speedup" else "Tokens per step by tree size")
    axes.plot(data.frame["num_nodes"], data.frame[name], color=style.GREEN)
    chosen = data.frame[data.frame["num_nodes"] == data.best]
    look: dict[str, Any] = {"color": style.VERMILLION, "ms": 13, "mec": "white", "zorder": 5}
    axes.plot(chosen["num_nodes"], chosen[name], "*", label=f"chosen on all prompts: {data.best} nodes", **look)
    axes.legend(loc="lower right")
    axes.set_ylabel(name)
    _shade(axes, data)


def _draw_shares(axes: Axes, data: ChosenSize) -> None:
    axes.set_title("How often another sample of prompts chooses this size")
    colours = np.where(data.frame["num_nodes"] == data.best, style.VERMILLION, style.BLUE)
    axes.bar(data.frame["num_nodes"], 100 * data.frame["share"], width=0.8, color=colours)
    axes.set_ylabel("% of resamples")
    _shade(axes, data)


def _shade(axes: Axes, data: ChosenSize) -> None:
    for n in data.frame.loc[data.frame["within_band"], "num_nodes"]:
        axes.axvspan(n - 0.5, n + 0.5, color=style.YELLOW, alpha=0.3, lw=0, zorder=0)
