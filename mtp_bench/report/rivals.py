"""Given trees against the best tree of each size: tokens per step, and predicted speedup where costs are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame

Document = Mapping[str, Any]


def write_rivals(document: Document, folder: Path) -> list[Path]:
    """Write ``trees.csv``, ``optimum.csv`` and ``plots/trees``; the paths written."""
    trees, optimum = rivals_frame(document), optimum_frame(document)
    tables = [save_frame(trees, folder, "trees"), save_frame(optimum, folder, "optimum")]
    return [*tables, *save_figure(draw_rivals(trees, optimum, document["highlight"]), folder / "plots", "trees")]


def rivals_frame(document: Document) -> pd.DataFrame:
    """One line per given tree, by size."""
    frame = pd.DataFrame(document["trees"])
    return frame.sort_values(["num_nodes", "tokens_per_step", "tree"], ascending=[True, False, True], ignore_index=True)


def optimum_frame(document: Document) -> pd.DataFrame:
    """One line per size: the best tree of that size."""
    columns = ["num_nodes", "depth", "tokens_per_step", "tokens_per_step_all_positions", "step_ms", "speedup_predicted"]
    return pd.DataFrame([{name: one[name] for name in columns} for one in document["optimum"]], columns=columns)


@style.house_style()
def draw_rivals(trees: pd.DataFrame, optimum: pd.DataFrame, highlight: Sequence[str]) -> Figure:
    """Tokens per step above, speedup below where known; ``highlight`` names the trees that are not of the cloud."""
    known = bool(trees["speedup_predicted"].notna().any())
    figure = style.new_figure(7.5, 7.0 if known else 4.0)
    panels = figure.subplots(2 if known else 1, 1, squeeze=False)[:, 0]
    _panel(panels[0], trees, optimum, highlight, "tokens_per_step")
    panels[0].set_title("Given trees against the best tree of their size")
    panels[0].set_ylabel("tokens_per_step (replayed)")
    panels[0].legend(loc="lower right")
    if known:
        _panel(panels[1], trees, optimum, highlight, "speedup_predicted")
        panels[1].set_ylabel("predicted speedup")
        panels[1].axhline(1.0, color=style.BLACK, lw=0.8)
        speedups = optimum["speedup_predicted"].to_numpy(float)
        best = int(np.nanargmax(speedups))
        nodes = int(optimum["num_nodes"].to_numpy()[best])
        panels[1].annotate(f"{nodes} nodes, {speedups[best]:.2f}x", (nodes, float(speedups[best])), (6, 4),
                           textcoords="offset points", fontsize=8, color=style.BLUE)  # fmt: skip
    panels[-1].set_xlabel("nodes (N), cut to the depth and ranks of the heads")
    beaten = int((trees["better"] == "optimum").sum())
    style.caption(
        figure,
        f"{len(trees)} trees; the best of the same size accepts more with a paired 95% interval that excludes zero "
        f"for {beaten} of them.",
    )
    return figure


def _panel(axes: Axes, trees: pd.DataFrame, optimum: pd.DataFrame, highlight: Sequence[str], column: str) -> None:
    named = trees["tree"].isin(list(highlight))
    cloud, marked = trees[~named], trees[named]
    axes.plot(cloud["num_nodes"], cloud[column].astype(float), ".", color=style.GREY, ms=4, alpha=0.5,
              label=f"{len(cloud)} dense trees")  # fmt: skip
    axes.plot(optimum["num_nodes"], optimum[column].astype(float), color=style.BLUE, label="best tree of each size")
    if len(marked):
        axes.plot(marked["num_nodes"], marked[column].astype(float), "D", color=style.VERMILLION, ms=5,
                  label=f"{len(marked)} published trees")  # fmt: skip
