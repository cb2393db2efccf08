"""How Optuna's search went, with the exact optimum as the line that it cannot cross."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mtp_bench.report import style

COLUMNS = ("number", "value", "best_so_far", "num_nodes", "depth", "cached")
FLOOR = 20  # percentile of the values at which the axis begins: bad early trials would flatten the rest
LABELS = {"speed": "predicted tokens/s", "tokens": "tokens_per_step"}


@dataclass(frozen=True, eq=False)
class OptunaHistory:
    """Trials in order.

    Args:
        frame: columns :data:`COLUMNS`; ``cached`` marks a tree that an earlier trial had scored.
        exact_value: the exact optimum in the same unit; None when unknown.
        objective: ``speed`` or ``tokens``.
        seeded: whether the study was given the exact optimum at its start; None when unknown.
    """

    frame: pd.DataFrame
    exact_value: float | None
    objective: str
    seeded: bool | None

    @property
    def gap(self) -> float | None:
        """Relative distance of the best trial below the exact optimum."""
        if not self.exact_value:
            return None
        return 1 - float(self.frame["best_so_far"].iloc[-1]) / self.exact_value


def optuna_history(optimize: Mapping[str, Any]) -> OptunaHistory | None:
    """The study in an ``optimize.json``; None when its trials were not kept."""
    study = optimize.get("optuna") or {}
    trials = study.get("trials")
    if not isinstance(trials, list):
        return None
    lines = [t for t in trials if isinstance(t, Mapping) and t.get("value") is not None and t.get("number") is not None]
    if not lines:
        return None
    frame = pd.DataFrame([{name: line.get(name) for name in COLUMNS} for line in lines]).sort_values("number")
    frame["best_so_far"] = frame["value"].astype(float).cummax()  # not trusted from the file: cheap to compute
    frame["cached"] = frame["cached"].map(bool)
    exact = study.get("exact_value")
    objective = str(optimize.get("objective") or (optimize.get("exact") or {}).get("objective") or "speed")
    return OptunaHistory(
        frame.reset_index(drop=True), None if exact is None else float(exact), objective, study.get("seeded")
    )


@style.house_style()
def draw_history(history: OptunaHistory) -> Figure:
    """Value of each trial, the best so far, and the exact optimum."""
    figure = style.new_figure(7.2, 3.8)
    axes = figure.add_subplot()
    started = {True: ", seeded with the exact optimum", False: ", unseeded", None: ""}[history.seeded]
    axes.set_title(f"Optuna: {len(history.frame)} trials{started}")
    frame = history.frame
    for cached, colour, marker, name in ((False, style.SKY, "o", "trial"), (True, style.GREY, "x", "tree seen before")):
        part = frame[frame["cached"] == cached]
        if len(part):
            axes.plot(part["number"], part["value"], marker, color=colour, ms=4, ls="none", label=name)
    axes.step(frame["number"], frame["best_so_far"], where="post", color=style.BLUE, label="best so far")
    if history.exact_value is not None:
        name = f"exact optimum: {history.exact_value:.4g}"
        axes.axhline(history.exact_value, color=style.VERMILLION, ls="--", lw=1.3, label=name)
    low = float(np.percentile(frame["value"].to_numpy(float), FLOOR))
    high = max(float(frame["value"].max()), history.exact_value or 0.0)
    room = 0.06 * (high - low) or 0.05 * high
    axes.set(ylim=(low - room, high + room), xlabel="trial", ylabel=LABELS.get(history.objective, "value"))
    axes.legend(loc="lower right")
    gap = "" if history.gap is None else f"Best trial {100 * history.gap:.2f}% below the exact optimum. "
    hidden = int((frame["value"] < low - room).sum())
    style.caption(figure, f"{gap}{hidden} trial{'s' if hidden != 1 else ''} below the axis." if hidden else gap.strip())
    return figure
