"""A race of ``optimize-tree --measure``: predicted against measured speed, and speeds over the winner's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.prediction import diagonal

NAME = "measured"
TITLE = "The measured race"
COLOURS = {"finished": style.BLUE, "slower": style.ORANGE, "not lossless": style.VERMILLION}
SAID = {"finished": "", "slower": ", stopped", "not lossless": ", not lossless"}


def write_measured(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plot and its data under ``plots/``; the paths written."""
    frame = measured_frame(result)
    drawn = style.save_figure(draw_measured(frame, result), folder / "plots", NAME)
    return [*drawn, style.save_frame(frame, folder / "plots", NAME)]


def measured_frame(result: Mapping[str, Any]) -> pd.DataFrame:
    """One line per candidate: speeds in tokens/s, over N = 0's, and over the winner's; NaN where unknown.

    Args:
        result: the ``measured`` object of ``optimize.json``.
    """
    return pd.DataFrame([_line(one, result["winner"]) for one in result["candidates"]])


def _line(one: Mapping[str, Any], winner: str) -> dict[str, Any]:
    unknown: dict[str, Any] = {"value": math.nan, "ci": (math.nan, math.nan)}
    low, high = one["tokens_per_s_ci"] or unknown["ci"]
    ratio = one["speed_to_winner"] or unknown
    line = {name: one[name] for name in ("name", "why", "num_nodes", "prompts", "outcome")}
    numbers = {
        "predicted": one["predicted_tokens_per_s"], "measured": one["tokens_per_s"], "measured_low": low,
        "measured_high": high, "predicted_speedup": one["predicted_speedup"],
        "measured_speedup": (one["speedup"] or unknown)["value"], "to_winner": ratio["value"],
        "to_winner_low": ratio["ci"][0], "to_winner_high": ratio["ci"][1],
    }  # fmt: skip
    known = {name: math.nan if value is None else float(value) for name, value in numbers.items()}
    return {**line, **known, "winner": one["name"] == winner}


@style.house_style()
def draw_measured(frame: pd.DataFrame, result: Mapping[str, Any]) -> Figure:
    """Left: predicted against measured tokens/s. Right: speed over the winner's, with prompts decoded and outcome."""
    figure = style.new_figure(10.8, max(4.2, 1.6 + 0.42 * len(frame)))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    left.set_title("Predicted against measured speed")
    _draw_speeds(left, frame)
    right.set_title(f"Speed over the winner's: {result['winner']}")
    _draw_ratios(right, frame.sort_values(["to_winner", "measured"], ignore_index=True))
    style.caption(
        figure,
        "Bars: 95% intervals over prompts (right: paired, on the prompts that both decoded). "
        "Left, line: prediction = measurement; grey: within 5%.",
    )
    return figure


def _draw_speeds(axes: Axes, frame: pd.DataFrame) -> None:
    ends = frame[["predicted", "measured", "measured_low", "measured_high"]].to_numpy(float)
    diagonal(axes, float(np.nanmin(ends)), float(np.nanmax(ends)))
    for place, row in enumerate(frame.to_dict("records")):
        if np.isnan(row["predicted"]):
            continue
        bar = None if np.isnan(row["measured_low"]) else _bar(row, "measured")
        error, relative = (100 * (row[f"predicted{kind}"] / row[f"measured{kind}"] - 1) for kind in ("", "_speedup"))
        label = f"{row['name']}: {error:+.1f}%" + ("" if np.isnan(relative) else f" ({relative:+.1f}%)")
        axes.errorbar(
            row["predicted"], row["measured"], yerr=bar, fmt=style.look(place)[1], ms=6,
            color=style.look(place)[0], elinewidth=1, capsize=2, label=label,
        )  # fmt: skip
    title = "predicted / measured - 1\n(of the speedup over N = 0)"
    axes.legend(loc="upper left", title=title, title_fontsize=8, alignment="left")


def _draw_ratios(axes: Axes, frame: pd.DataFrame) -> None:
    axes.axvline(1.0, color=style.BLACK, lw=0.9, zorder=1)
    for place, row in enumerate(frame.to_dict("records")):
        bar = None if np.isnan(row["to_winner_low"]) else _bar(row, "to_winner")
        marker = "*" if row["winner"] else "o"
        axes.errorbar(
            row["to_winner"], place, xerr=bar, fmt=marker, ms=10 if row["winner"] else 5, capsize=2, elinewidth=1.2,
            color=COLOURS.get(row["outcome"], style.GREY),
        )  # fmt: skip
        text = f"{row['prompts']} prompts{SAID.get(row['outcome'], '')}"
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), fontsize=8, va="center")
    axes.set_yticks(range(len(frame)), list(frame["name"]))
    axes.set_ylim(-0.6, len(frame) - 0.4)
    axes.set_xlabel("tokens/s over the winner's tokens/s")


def _bar(row: Mapping[Any, Any], name: str) -> list[list[float]]:
    return [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
