"""The best topology by batch size: what speculation gains there, with how many nodes, and ranges served alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame

COLUMNS = ("batch", "name", "num_nodes", "depth", "tokens_per_step", "step_ms", "tokens_per_s", "speedup_predicted")


def write_schedule(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plot and its data under ``plots/``; the paths written."""
    frame = schedule_frame(document)
    drawn = save_figure(draw_schedule(frame, document["batch_schedule"]), folder / "plots", "schedule")
    return [*drawn, save_frame(frame, folder / "plots", "schedule")]


def schedule_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """One line per batch size."""
    lines = []
    for cell in document["cells"]:
        low, high = cell["speedup_predicted_ci"] or (None, None)
        line = {name: cell[name] for name in COLUMNS}
        lines.append(line | {"speedup_low": low, "speedup_high": high, "measured": cell["measured"]})
    return pd.DataFrame(lines)


@style.house_style()
def draw_schedule(frame: pd.DataFrame, ranges: list[Mapping[str, Any]]) -> Figure:
    """Predicted speedup above, nodes of the best topology below, ranges of the schedule shaded in turns."""
    figure = style.new_figure(7.5, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    batches = frame["batch"].to_numpy(float)
    above.fill_between(
        batches, frame["speedup_low"].astype(float), frame["speedup_high"].astype(float), color=style.BLUE, alpha=0.15,
        lw=0,
    )  # fmt: skip
    above.plot(batches, frame["speedup_predicted"], color=style.BLUE)
    below.step(batches, frame["num_nodes"], where="mid", color=style.ORANGE)
    known = frame[frame["measured"]]
    above.plot(known["batch"], known["speedup_predicted"], "o", color=style.BLUE, label="costs measured")
    below.plot(known["batch"], known["num_nodes"], "s", color=style.ORANGE)
    above.axhline(1.0, color=style.BLACK, lw=0.8)
    for place, one in enumerate(ranges):
        left, right = one["min_batch_size"] - 0.5, one["max_batch_size"] + 0.5
        for axes in (above, below):
            axes.axvspan(left, right, color=style.PALE, alpha=0.45 if place % 2 else 0.0, lw=0, zorder=0)
        label = f"N = {one['num_nodes']}" if one["num_nodes"] else "none"
        below.annotate(label, ((left + right) / 2, 1.0), (0, 3), xycoords=("data", "axes fraction"),
                       textcoords="offset points", ha="center", fontsize=8)  # fmt: skip
    above.set_title("The best topology by batch size", pad=14)
    above.set_ylabel("predicted speedup over N = 0")
    above.legend(loc="upper right")
    below.set_ylabel("nodes of the best")
    below.set_xlabel("batch size")
    style.caption(figure, "Shaded in turns: the schedule's ranges. Band: 95% interval over prompts and costs.")
    return figure
