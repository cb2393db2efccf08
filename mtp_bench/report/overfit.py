"""Does the search fit its prompts too well? tokens_per_step over N, on the prompts a tree was chosen on and on others.

All estimators' lines would lie on top of one another on the scale of tokens_per_step, so the picture is made of their
two differences: how far each one's figure on its own half lies above that on the other half (the gap), and what each
one's held-out figure is above or below the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from mtp_bench.report import style

COLUMNS = (
    "estimator", "num_nodes", "train_tokens_per_step", "held_out_tokens_per_step", "gap", "held_out_gain_percent",
)  # fmt: skip
LOOKS = {"trie": style.BLUE, "shrunk": style.GREEN, "refit": style.VERMILLION, "independent": style.ORANGE}


@dataclass(frozen=True, eq=False)
class Overfit:
    """The data of the plot.

    Args:
        frame: one line per estimator and N, columns :data:`COLUMNS`. ``gap`` is train minus held out;
            ``held_out_gain_percent`` compares the held-out figure with the first estimator's at that N, NaN where it
            has none.
        chosen: N of the chosen tree; None when unknown.
    """

    frame: pd.DataFrame
    chosen: int | None

    @property
    def estimators(self) -> list[str]:
        """Names in the order of the file."""
        return list(self.frame["estimator"].drop_duplicates())


def overfit_data(optimize: Mapping[str, Any]) -> Overfit | None:
    """The ``overfit`` list of an ``optimize.json``; None when it holds none."""
    lines = optimize.get("overfit") or []
    if not lines:
        return None
    frame = pd.DataFrame(lines)[list(COLUMNS[:4])].astype(dict.fromkeys(COLUMNS[2:4], float))
    frame["gap"] = frame["train_tokens_per_step"] - frame["held_out_tokens_per_step"]
    first = frame[frame["estimator"] == frame["estimator"].iloc[0]].set_index("num_nodes")["held_out_tokens_per_step"]
    frame["held_out_gain_percent"] = 100 * (
        frame["held_out_tokens_per_step"] / frame["num_nodes"].map(first).astype(float) - 1
    )
    static = optimize.get("static") or optimize
    return Overfit(frame[list(COLUMNS)], static.get("num_nodes"))


@style.house_style()
def draw_overfit(data: Overfit) -> Figure:
    """Three panels over one axis of sizes: train and held out, their gap, and the held-out gain over the first."""
    figure = style.new_figure(8.4, 8.2)
    levels, gaps, gains = (figure.add_subplot(3, 1, place) for place in (1, 2, 3))
    for axes, title, label in (
        (levels, "Chosen on half of the prompts: train (dashed) and held out (solid)", "tokens_per_step"),
        (gaps, "Gap: train minus held out", "tokens_per_step"),
        (gains, f"Held out, against the {data.estimators[0]}'s tree of the same size", "%"),
    ):
        axes.set_title(title)
        axes.set_ylabel(label)
    for place, name in enumerate(data.estimators):
        part = data.frame[data.frame["estimator"] == name]
        look: dict[str, Any] = {"color": LOOKS.get(name, style.BLACK), "lw": 1.4}
        marked = look | {"marker": style.MARKERS[place % len(style.MARKERS)], "ms": 4, "label": name}
        levels.plot(part["num_nodes"], part["train_tokens_per_step"], "--", **look)
        levels.plot(part["num_nodes"], part["held_out_tokens_per_step"], **marked)
        gaps.plot(part["num_nodes"], part["gap"], **marked)
        gains.plot(part["num_nodes"], part["held_out_gain_percent"], **marked)
    for axes in (gaps, gains):
        axes.axhline(0, color=style.BLACK, lw=0.8)
    for axes in (levels, gaps, gains):
        _sizes(axes, data)
    levels.legend(loc="lower right")
    gains.set_xlabel("nodes (N), logarithmic")
    style.caption(
        figure,
        "Both halves take their turn; pooled, replayed. Dotted: the chosen size; optimize.json has its intervals.",
    )
    return figure


def _sizes(axes: Axes, data: Overfit) -> None:
    if data.chosen:
        axes.axvline(data.chosen, color=style.GREY, lw=1.0, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(data.frame["num_nodes"].unique()))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
