"""A race of ``optimize-tree --measure``: predicted against measured speed, and speeds over the winner's."""

from __future__ import annotations

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
    """One line per candidate: speeds in tokens/s, and its speed over the winner's; NaN where unknown.

    Args:
        result: the ``measured`` object of ``optimize.json``.
    """
    lines = []
    for one in result["candidates"]:
        low, high = one["tokens_per_s_ci"] or (None, None)
        ratio = one["speed_to_winner"] or {"value": None, "ci": (None, None)}
        lines.append(
            {
                "name": one["name"], "why": one["why"], "num_nodes": one["num_nodes"], "prompts": one["prompts"],
                "outcome": one["outcome"], "predicted": one["predicted_tokens_per_s"],
                "measured": one["tokens_per_s"], "measured_low": low, "measured_high": high,
                "to_winner": ratio["value"], "to_winner_low": ratio["ci"][0], "to_winner_high": ratio["ci"][1],
                "winner": one["name"] == result["winner"],
            }
        )  # fmt: skip
    frame = pd.DataFrame(lines)
    numbers = ["predicted", "measured", "measured_low", "measured_high", "to_winner", "to_winner_low", "to_winner_high"]
    return frame.astype(dict.fromkeys(numbers, float))


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
        error = 100 * (row["predicted"] / row["measured"] - 1)
        axes.errorbar(
            row["predicted"], row["measured"], yerr=bar, fmt=style.MARKERS[place % len(style.MARKERS)], ms=6,
            color=style.CYCLE[place % len(style.CYCLE)], elinewidth=1, capsize=2, label=f"{row['name']}: {error:+.1f}%",
        )  # fmt: skip
    axes.legend(loc="upper left", title="predicted / measured - 1", title_fontsize=8)


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
