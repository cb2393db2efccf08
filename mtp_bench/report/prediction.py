"""Predicted against measured speed: the plot that says whether the rest may be believed.

A prediction is tokens_per_step from the replay over the step's cost from the sweep; the measurement is real decoding,
interleaved with the baseline. Both are pooled as total tokens over total seconds, and both intervals resample prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.trace import ratio_interval

TREES = (
    "tree",
    "num_nodes",
    "predicted",
    "predicted_low",
    "predicted_high",
    "measured",
    "measured_low",
    "measured_high",
)
PROMPTS = ("tree", "prompt_id", "category", "predicted", "measured")
MARGIN = 0.05
MOST_LETTERS = 28  # of a tree's name in the legend; a path keeps its end


@dataclass(frozen=True, eq=False)
class Predictions:
    """Speeds in tokens/s.

    Args:
        trees: one line per tree, columns :data:`TREES`; bounds NaN where unknown.
        prompts: one line per tree and prompt, columns :data:`PROMPTS`; empty when predictions are not by prompt.
    """

    trees: pd.DataFrame
    prompts: pd.DataFrame

    @property
    def errors(self) -> pd.Series:
        """Relative error of each tree: predicted / measured - 1."""
        return self.trees["predicted"] / self.trees["measured"] - 1

    @property
    def mean_absolute_error(self) -> float:
        """Mean over trees of |predicted / measured - 1|."""
        return float(self.errors.abs().mean())

    def export(self) -> pd.DataFrame:
        """Both tables as one; lines of trees have an empty prompt_id."""
        trees = self.trees.assign(relative_error=self.errors)
        prompts = self.prompts.assign(relative_error=self.prompts["predicted"] / self.prompts["measured"] - 1)
        columns = ["tree", "prompt_id", "category", *TREES[1:], "relative_error"]
        return pd.concat([trees, prompts]).reindex(columns=columns)


def predictions(bench: pd.DataFrame | None, summary: Mapping[str, Any] | None = None) -> Predictions | None:
    """From ``bench.csv``, or else from the trees of ``bench.json``; None when neither holds a prediction."""
    if bench is not None and "predicted_tokens_per_s" in bench:
        usable = bench[(bench["predicted_tokens_per_s"] > 0) & (bench["decode_s"] > 0) & (bench["tokens"] > 0)]
        if len(usable):
            return _from_prompts(usable)
    trees = [tree for tree in (summary or {}).get("trees") or () if isinstance(tree, Mapping)]
    lines = [
        {
            "tree": _name(tree, place),
            "num_nodes": tree.get("num_nodes"),
            "predicted": tree["predicted_tokens_per_s"],
            "measured": tree["tokens_per_s"],
            **_bounds("measured", tree.get("tokens_per_s_ci")),
            **_bounds("predicted", None),
        }
        for place, tree in enumerate(trees)
        if tree.get("predicted_tokens_per_s") and tree.get("tokens_per_s")
    ]
    return Predictions(pd.DataFrame(lines, columns=list(TREES)), _no_prompts()) if lines else None


def _bounds(name: str, interval: Sequence[float] | None) -> dict[str, float]:
    low, high = interval or (math.nan, math.nan)
    return {f"{name}_low": low, f"{name}_high": high}


def _name(tree: Mapping[str, Any], place: int) -> str:
    return str(tree.get("tree") or tree.get("name") or tree.get("topology") or f"tree {place + 1}")


def _from_prompts(bench: pd.DataFrame) -> Predictions:
    # Time is what adds up: predicted seconds of each run, not its speed.
    runs = bench.assign(predicted_s=bench["tokens"] / bench["predicted_tokens_per_s"])
    trees, prompts = [], []
    for tree, group in runs.groupby("tree", sort=False):
        by_prompt = group.groupby("prompt_id", sort=False)[["tokens", "decode_s", "predicted_s"]].sum()
        nodes = int(group["num_nodes"].iloc[0]) if "num_nodes" in group and group["num_nodes"].notna().any() else None
        line: dict[str, Any] = {"tree": tree, "num_nodes": nodes}
        for name, seconds in (("predicted", "predicted_s"), ("measured", "decode_s")):
            line[name] = float(by_prompt["tokens"].sum() / by_prompt[seconds].sum())
            interval = ratio_interval(by_prompt["tokens"].to_numpy(), by_prompt[seconds].to_numpy())
            line |= _bounds(name, interval.bounds if interval else None)
        trees.append(line)
        if group["predicted_tokens_per_s"].nunique() > 1:
            prompts.append(_by_prompt(str(tree), group, by_prompt))
    frame = pd.DataFrame(trees, columns=list(TREES))
    return Predictions(frame, pd.concat(prompts, ignore_index=True) if prompts else _no_prompts())


def _by_prompt(tree: str, group: pd.DataFrame, by_prompt: pd.DataFrame) -> pd.DataFrame:
    category = group.groupby("prompt_id", sort=False)["category"].first() if "category" in group else ""
    speeds = by_prompt.assign(
        tree=tree,
        category=category,
        predicted=by_prompt["tokens"] / by_prompt["predicted_s"],
        measured=by_prompt["tokens"] / by_prompt["decode_s"],
    )
    return speeds.reset_index()[list(PROMPTS)]


def _no_prompts() -> pd.DataFrame:
    return pd.DataFrame(columns=list(PROMPTS))


@style.house_style()
def draw_predictions(data: Predictions) -> Figure:
    """Trees with intervals; beside them every prompt, when predictions are by prompt."""
    panels = 2 if len(data.prompts) else 1
    figure = style.new_figure(5.4 * panels, 5.2)
    axes = figure.add_subplot(1, panels, 1)
    axes.set_title("Predicted against measured speed, by tree")
    _draw_trees(axes, data)
    if panels == 2:
        right = figure.add_subplot(1, panels, 2)
        right.set_title("The same by prompt")
        _draw_prompts(right, data)
    style.caption(figure, "Line: prediction = measurement; grey: within 5%. Bars: 95% intervals over prompts.")
    return figure


def _draw_trees(axes: Axes, data: Predictions) -> None:
    trees = data.trees
    ends = trees[[name for name in TREES[2:] if name in trees]].to_numpy(float)
    diagonal(axes, float(np.nanmin(ends)), float(np.nanmax(ends)))
    for place, row in enumerate(trees.to_dict("records")):
        bars = [
            None
            if math.isnan(row[f"{side}_low"])
            else [[row[side] - row[f"{side}_low"]], [row[f"{side}_high"] - row[side]]]
            for side in ("measured", "predicted")
        ]
        colour, marker = style.look(place)
        error = 100 * (row["predicted"] / row["measured"] - 1)
        axes.errorbar(
            row["predicted"], row["measured"], yerr=bars[0], xerr=bars[1], fmt=marker, color=colour, ms=6,
            elinewidth=1, capsize=2, label=f"{_label(row)}: {error:+.1f}%",
        )  # fmt: skip
    text = f"mean |error| {100 * data.mean_absolute_error:.1f}%"
    axes.text(0.97, 0.03, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=10, weight="bold")
    axes.legend(loc="upper left", title="predicted / measured - 1", title_fontsize=8)


def _label(row: Mapping[Any, Any]) -> str:
    nodes = row["num_nodes"]
    known = nodes is not None and not math.isnan(nodes)
    name = str(row["tree"])
    short = name if len(name) <= MOST_LETTERS else "..." + name[3 - MOST_LETTERS :]
    return f"{short} (N = {int(nodes)})" if known else short


def _draw_prompts(axes: Axes, data: Predictions) -> None:
    values = data.prompts[["predicted", "measured"]].to_numpy(float)
    diagonal(axes, float(values.min()), float(values.max()))
    order = list(data.trees["tree"])
    for tree, group in data.prompts.groupby("tree", sort=False):
        colour, marker = style.look(order.index(tree))
        axes.scatter(group["predicted"], group["measured"], s=14, marker=marker, color=colour, alpha=0.6, lw=0)
    error = float((data.prompts["predicted"] / data.prompts["measured"] - 1).abs().mean())
    text = f"mean |error| {100 * error:.1f}%\n{len(data.prompts)} points"
    axes.text(0.97, 0.03, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=9)


def diagonal(axes: Axes, low: float, high: float) -> None:
    """y = x, the band around it, and equal axes."""
    room = max(0.1 * (high - low), 0.12 * high - (high - low) / 2)  # never so near that 5% fills the picture
    ends: Sequence[float] = (max(low - room, 0), high + room)
    below, above = ([end * factor for end in ends] for factor in (1 - MARGIN, 1 + MARGIN))
    axes.fill_between(ends, below, above, color=style.PALE, alpha=0.7, lw=0, zorder=0)
    axes.plot(ends, ends, color=style.BLACK, lw=0.9, zorder=1)
    axes.set(xlim=ends, ylim=ends, xlabel="predicted tokens/s", ylabel="measured tokens/s", aspect="equal")
