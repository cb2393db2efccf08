"""Where the time of a step goes, as stacked bars, with the least it could take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mtp_bench.report import style

SHADES = {
    "draft": style.ORANGE,
    "verify": style.BLUE,
    "accept": style.GREEN,
    "cache move": style.PURPLE,
    "host gap": style.GREY,
}


def budget_frame(summary: Mapping[str, Any]) -> pd.DataFrame | None:
    """Milliseconds by arm and part, and ``floor_ms``, from ``bench.json``; None where it holds no budgets."""
    engine = (summary.get("baseline") or {}).get("engine")
    arms = [("N = 0", engine), *((str(tree.get("tree")), tree) for tree in summary.get("trees") or ())]
    lines = [
        {"tree": name, **arm["budget_ms"], "floor_ms": arm["work"]["floor_ms"]}
        for name, arm in arms
        if isinstance(arm, Mapping) and "budget_ms" in arm
    ]
    return pd.DataFrame(lines) if lines else None


@style.house_style()
def draw_budget(frame: pd.DataFrame) -> Figure:
    """One bar per arm."""
    figure = style.new_figure(8.0, 0.6 * len(frame) + 1.6)
    axes = figure.subplots()
    places = np.arange(len(frame))[::-1]
    left = np.zeros(len(frame))
    for part, colour in SHADES.items():
        width = frame[part].to_numpy(float)
        axes.barh(places, width, left=left, color=colour, height=0.6, label=part)
        left += width
    for place, total, floor in zip(places, left, frame["floor_ms"], strict=True):
        axes.plot([floor, floor], [place - 0.38, place + 0.38], color=style.BLACK, lw=1.6)
        axes.annotate(f"{total:.1f} ms", (total, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(places, frame["tree"])
    axes.set_xlim(0, 1.15 * left.max())
    axes.set_xlabel("milliseconds per step")
    axes.set_title("Where a step's time goes")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=len(SHADES))
    style.caption(figure, "Black line: the least time for the step's bytes and operations on this device.")
    return figure
