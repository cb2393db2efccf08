"""Throughput against the batch size: measured lines, predictions as rings, and what speculation still gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame

COLUMNS = (
    "tree", "num_nodes", "depth", "batch", "tokens", "passes", "predicted_passes", "tokens_per_step", "pass_ms",
    "verify_ms", "draft_ms", "tokens_per_s", "tokens_per_s_per_request", "predicted_tokens_per_s", "prediction_error",
    "speedup", "prefill_s", "differing", "requests",
)  # fmt: skip
LINES = ("-", "--", ":")
MOST_BANDS = 5  # more of them hide each other
WORK_COLUMNS = ("bytes_per_step", "flops_per_step", "bytes_per_s", "share_of_copy_bandwidth", "floor_ms")


def write_throughput(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``throughput.csv`` and the plot with its data; the paths written."""
    frame = throughput_frame(document)
    plots = folder / "plots"
    drawn = save_figure(draw_throughput(frame), plots, "throughput")
    return [save_frame(frame, folder, "throughput"), *drawn, save_frame(frame, plots, "throughput")]


def throughput_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """One line per tree and batch size."""
    lines = []
    for point in document["points"]:
        low, high = point["speedup_ci"] or (None, None)
        work = {name: point["work"][name] for name in WORK_COLUMNS}
        lines.append({name: point[name] for name in COLUMNS} | {"speedup_low": low, "speedup_high": high} | work)
    return pd.DataFrame(lines)


@style.house_style()
def draw_throughput(frame: pd.DataFrame) -> Figure:
    """Tokens/s of all requests together, and the speedup over N = 0 at the same batch size."""
    figure = style.new_figure(10.0, 4.4)
    left, right = figure.subplots(1, 2)
    for place, (tree, group) in enumerate(frame.groupby("tree", sort=False)):
        look: dict[str, Any] = {
            "color": style.look(place)[0],
            "marker": style.look(place)[1],
            "ls": LINES[place // len(style.CYCLE) % len(LINES)],
        }
        nodes = int(group["num_nodes"].iloc[0])
        left.plot(group["batch"], group["tokens_per_s"], label=f"{tree} (N = {nodes})", **look)
        left.plot(group["batch"], group["predicted_tokens_per_s"], mfc="none", ms=10, **(look | {"ls": ""}))
        if nodes:
            right.plot(group["batch"], group["speedup"], **look)
            if frame["tree"].nunique() <= MOST_BANDS:
                low, high = (group[name].astype(float) for name in ("speedup_low", "speedup_high"))
                if len(group) > 1:
                    right.fill_between(group["batch"], low, high, color=look["color"], alpha=0.15, lw=0)
                else:  # a band needs two points
                    right.vlines(group["batch"], low, high, color=look["color"], lw=1.2)
    top = 1.08 * max(float(frame[name].max()) for name in ("tokens_per_s", "predicted_tokens_per_s"))
    left.set(ylabel="decode tokens/s, all requests together", title="Throughput against batch size", ylim=(0, top))
    left.legend()
    right.axhline(1.0, color=style.BLACK, lw=0.8)
    right.set(ylabel="speedup over N = 0 at the same batch size", title="What speculation still gains")
    for axes in (left, right):
        _batches(axes, frame)
    bands = " Bands or bars: 95% intervals over queues." if frame["tree"].nunique() <= MOST_BANDS else ""
    style.caption(figure, f"Large rings: predicted from replay and step costs.{bands}")
    return figure


def _batches(axes: Axes, frame: pd.DataFrame) -> None:
    sizes = sorted(frame["batch"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("batch size (requests decoded together)")
