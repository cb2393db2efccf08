"""How the heads learned: the loss, and how often the true token is within each head's top k on text held out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mtp_bench.report import style
from mtp_bench.report.inputs import read_training

SMOOTHING = 40  # a running median over a fortieth of the steps
COLUMNS = 4


@dataclass(frozen=True, eq=False)
class TrainingCurves:
    """Both logs; either may be None.

    Args:
        loss: columns step, tokens, loss, loss_smooth (running median), and whatever else was logged.
        held_out: long form, columns tokens_seen, head, k, accuracy, and n where logged.
    """

    loss: pd.DataFrame | None
    held_out: pd.DataFrame | None

    @property
    def heads(self) -> list[int]:
        """Names of the heads, ascending."""
        return [] if self.held_out is None else sorted(int(head) for head in self.held_out["head"].unique())

    def last(self) -> pd.DataFrame:
        """Accuracy at the end, one line per head, one column per k."""
        if self.held_out is None:
            return pd.DataFrame()
        end = self.held_out[self.held_out["tokens_seen"] == self.held_out["tokens_seen"].max()]
        wide: pd.DataFrame = end.pivot_table(index="head", columns="k", values="accuracy")
        return wide.set_axis([f"top{k}" for k in wide.columns], axis=1)


def training_curves(loss: pd.DataFrame | None, held_out: pd.DataFrame | None) -> TrainingCurves | None:
    """Smooth the loss, melt the top-k columns; None when there is neither log."""
    if loss is None and held_out is None:
        return None
    if loss is not None:
        window = max(1, len(loss) // SMOOTHING)
        loss = loss.sort_values("step").reset_index(drop=True)
        loss = loss.assign(loss_smooth=_smooth(loss["loss"], window))
    return TrainingCurves(loss, None if held_out is None else _long(held_out))


def write_training_plots(folder: Path) -> list[Path]:
    """Draw the logs of a training's folder into it, as ``training.png`` and ``training.svg``.

    Raises:
        InputError: a log is damaged, or the pictures cannot be written.
    """
    curves = training_curves(*read_training(Path(folder)))
    if curves is None:
        return []
    return style.save_figure(draw_training(curves), Path(folder), "training")


def _smooth(values: pd.Series, window: int) -> pd.Series:
    return values.rolling(window, center=True, min_periods=1).median()


def _long(held_out: pd.DataFrame) -> pd.DataFrame:
    tops = [name for name in held_out.columns if re.fullmatch(r"top\d+", str(name))]
    kept = ["tokens_seen", "head", *(["n"] if "n" in held_out else [])]
    long = held_out.melt(id_vars=kept, value_vars=tops, var_name="k", value_name="accuracy")
    long["k"] = long["k"].str.removeprefix("top").astype(int)
    return long.dropna(subset=["accuracy"]).sort_values(["head", "k", "tokens_seen"]).reset_index(drop=True)


@style.house_style()
def draw_training(curves: TrainingCurves) -> Figure:
    """Loss on top, one panel per head below with a line per k."""
    heads = curves.heads
    columns = min(COLUMNS, max(len(heads), 1))
    lines = math.ceil(len(heads) / columns)
    top = 0 if curves.loss is None else 1
    figure = style.new_figure(max(6.5, 2.7 * columns + 0.6), 2.7 * (lines + top) + 0.3)
    grid = figure.add_gridspec(lines + top, columns)
    if curves.loss is not None:
        _draw_loss(figure.add_subplot(grid[0, :]), curves.loss)
    shared: Axes | None = None
    for place, head in enumerate(heads):
        axes = figure.add_subplot(grid[top + place // columns, place % columns], sharey=shared)
        shared = shared or axes
        _draw_head(axes, curves, head)
        if place % columns:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("held-out accuracy, %")
    return figure


def _draw_loss(axes: Axes, loss: pd.DataFrame) -> None:
    axes.set_title("Training loss")
    axes.plot(loss["tokens"], loss["loss"], color=style.SKY, alpha=0.45, lw=0.7, label="each log line")
    axes.plot(loss["tokens"], loss["loss_smooth"], color=style.BLUE, label="weighted sum of the heads")
    lowest = loss["loss_smooth"].to_numpy(float)
    window = max(1, len(loss) // SMOOTHING)
    for place, name in enumerate(column for column in loss.columns if re.fullmatch(r"loss_head\d+", str(column))):
        smooth = _smooth(loss[name], window)
        colour = style.CYCLE[(place + 1) % len(style.CYCLE)]
        axes.plot(loss["tokens"], smooth, color=colour, lw=1.1, label=str(name).replace("loss_head", "head "))
        lowest = np.minimum(lowest, smooth.to_numpy(float))
    axes.set(xlabel=f"training tokens (to step {int(loss['step'].max()):,})", ylabel="loss")
    low, high = float(np.nanmin(lowest)), float(np.nanpercentile(loss["loss"].to_numpy(float), 99.5))
    axes.set_ylim(low - 0.08 * (high - low or 1), high + 0.05 * (high - low or 1))
    _count_axis(axes)
    axes.legend(loc="upper right", ncols=3)


def _draw_head(axes: Axes, curves: TrainingCurves, head: int) -> None:
    assert curves.held_out is not None  # there are heads only then
    part = curves.held_out[curves.held_out["head"] == head]
    axes.set_title(f"head {head}")
    for place, (k, line) in enumerate(part.groupby("k")):
        colour, marker = style.look(place)
        percent = 100 * line["accuracy"].to_numpy(float)
        tokens = line["tokens_seen"].to_numpy(float)
        axes.plot(tokens, percent, color=colour, marker=marker, ms=3)
        style.name_line(axes, tokens[-1], percent[-1], f"top {k}: {percent[-1]:.0f}", colour)
    first, last = part["tokens_seen"].min(), part["tokens_seen"].max()
    axes.set_xlim(first - 0.03 * (last - first or 1), last + 0.42 * (last - first or 1))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training tokens")
    _count_axis(axes)


def _count_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: _short(count)))
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(nbins=4)


def _short(count: float) -> str:
    """1500000 -> 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:g}{unit}"
    return f"{count:g}"
