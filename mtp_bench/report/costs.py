"""The cost curve: what a step over more rows costs, and where on it the chosen tree sits.

Measured points with their quartiles, and below them the envelope that the search uses (the least cost over at least
that many rows, since rows can be padded) and the roofline floor, where it is known. The right axis counts in passes
over one row, which is what a reader compares a tree's tokens_per_step with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from mtp_bench.cost import VERIFY, CostPoint, CostTable
from mtp_bench.errors import InputError
from mtp_bench.report import style

COLUMNS = ("device", "dtype", "batch", "context", "kind", "rows", "depth", "ms", "low_ms", "high_ms", "relative")
Machine = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tree to mark: its rows per step, its depth, and what it was chosen for (context None = the smallest)."""

    rows: int
    depth: int
    context: int | None = None
    batch: int = 1


@dataclass(frozen=True, eq=False)
class CostCurves:
    """Costs as lines.

    Args:
        frame: columns :data:`COLUMNS`; ``kind`` is ``measured``, ``floor`` (the roofline of a measured pass),
            ``envelope``, ``draft`` or ``chosen`` (verification of the chosen tree, on the envelope); ``relative`` = ms
            over one row's envelope cost at the same context, NaN when one row was not measured.
        unusable: number of points by status, for those that were not ``ok``.
        chosen: the tree marked, if any.
    """

    frame: pd.DataFrame
    unusable: dict[str, int]
    chosen: Chosen | None

    @property
    def machines(self) -> list[Machine]:
        """(device, dtype, batch) of each panel, in file order."""
        lines = self.frame[["device", "dtype", "batch"]].drop_duplicates()
        return [(str(r.device), str(r.dtype), int(r.batch)) for r in lines.itertuples()]  # type: ignore[arg-type]


def cost_curves(points: Sequence[CostPoint], chosen: Chosen | None = None) -> CostCurves:
    """Measured points, envelope and draft costs of every device, dtype, batch and context."""
    usable = [p for p in points if p.ok]
    machines = dict.fromkeys((p.device, p.dtype, p.batch) for p in usable if p.component == VERIFY)
    lines: list[dict[str, Any]] = []
    for device, dtype, batch in machines:
        part = [p for p in usable if (p.device, p.dtype, p.batch) == (device, dtype, batch)]
        lines += [{"device": device, "dtype": dtype, "batch": batch} | line for line in _panel(part, batch, chosen)]
    failed = [p.status for p in points if not p.ok]
    frame = pd.DataFrame(lines, columns=list(COLUMNS)).astype({"rows": "Int64", "depth": "Int64"})
    return CostCurves(frame, {status: failed.count(status) for status in sorted(set(failed))}, chosen)


def _panel(points: list[CostPoint], batch: int, chosen: Chosen | None) -> list[dict[str, Any]]:
    try:
        table: CostTable | None = CostTable.select(points)
    except InputError:
        table = None  # two costs for one point: the points can still be looked at
    contexts = sorted({p.context for p in points if p.component == VERIFY})
    lines: list[dict[str, Any]] = []
    for context in contexts:
        curve = _envelope(table, batch, context)
        one = curve[0] if curve else math.nan
        for p in points:
            if p.context == context:
                kind = "measured" if p.component == VERIFY else "draft"
                size: dict[str, Any] = {"rows": p.rows} if p.component == VERIFY else {"depth": p.depth}
                spread = {"low_ms": p.low_ms, "high_ms": p.high_ms, "relative": p.median_ms / one}
                lines.append({"context": context, "kind": kind, "ms": p.median_ms} | size | spread)
                if p.component == VERIFY and math.isfinite(p.floor_ms):
                    floor = {"kind": "floor", "ms": p.floor_ms, "relative": p.floor_ms / one}
                    lines.append({"context": context} | size | floor)
        for rows, ms in enumerate(curve, start=1):
            lines.append({"context": context, "kind": "envelope", "rows": rows, "ms": ms, "relative": ms / one})
    if chosen is not None and chosen.batch == batch:
        # Its context may lie between two measured ones, and so will the mark.
        context = contexts[0] if chosen.context is None else chosen.context
        curve = _envelope(table, batch, context)
        if chosen.rows <= len(curve):
            ms = curve[chosen.rows - 1]
            mark = {"rows": chosen.rows, "depth": chosen.depth, "ms": ms, "relative": ms / curve[0]}
            lines.append({"context": context, "kind": "chosen"} | mark)
    return lines


def _envelope(table: CostTable | None, batch: int, context: int) -> list[float]:
    """Cost of 1, 2, ... rows; empty without a baseline."""
    if table is None:
        return []
    try:
        return [float(ms) for ms in table.verify_curve(batch=batch, context=context)]
    except InputError:
        return []


@style.house_style()
def draw_costs(curves: CostCurves) -> Figure:
    """One panel per device, dtype and batch; one line per context."""
    machines = curves.machines
    columns = min(2, len(machines))
    lines = math.ceil(len(machines) / columns)
    of = curves.frame
    figure = style.new_figure(7.2 if columns == 1 else 12.0, 4.4 if lines == 1 else 3.7 * lines)
    for place, (device, dtype, batch) in enumerate(machines):
        axes = figure.add_subplot(lines, columns, place + 1)
        part = of[(of["device"] == device) & (of["dtype"] == dtype) & (of["batch"] == batch)]
        named = ", ".join(name for name in (device, dtype, f"batch {batch}") if name)
        axes.set_title(f"Cost of a verification pass ({named})")
        _draw_panel(axes, part, curves.chosen)
    failed = ", ".join(f"{count} {status}" for status, count in curves.unusable.items())
    note = f" Not usable: {failed}." if failed else ""
    floor = " Dashed: roofline floor." if (of["kind"] == "floor").any() else ""
    style.caption(figure, "Points: medians, quartiles. Lines: envelope, min over m >= rows." + floor + note)
    return figure


def _draw_panel(axes: Axes, part: pd.DataFrame, chosen: Chosen | None) -> None:
    contexts = sorted(part.loc[part["kind"] == "envelope", "context"].unique())
    contexts = contexts or sorted(part.loc[part["kind"] == "measured", "context"].unique())
    for place, context in enumerate(contexts):
        colour, marker = style.look(place)
        line = part[part["context"] == context]
        measured = line[line["kind"] == "measured"].sort_values("rows")
        rows, ms = measured["rows"].to_numpy(float), measured["ms"].to_numpy(float)
        below = (measured["ms"] - measured["low_ms"]).clip(lower=0).fillna(0).to_numpy(float)
        above = (measured["high_ms"] - measured["ms"]).clip(lower=0).fillna(0).to_numpy(float)
        axes.errorbar(rows, ms, [below, above], fmt=marker, color=colour, ms=4, elinewidth=1, capsize=2)
        envelope = line[line["kind"] == "envelope"]
        label = f"context {context}" if context else "all contexts"
        axes.plot(envelope["rows"].to_numpy(float), envelope["ms"].to_numpy(float), color=colour, label=label)
        floor = line[line["kind"] == "floor"].sort_values("rows")
        named = "roofline floor" if place == 0 and len(floor) else None
        axes.plot(floor["rows"].to_numpy(float), floor["ms"].to_numpy(float), "--", color=colour, lw=1, label=named)
    _draw_draft(axes, part, chosen)
    _scale(axes, part)
    _mark_chosen(axes, part[part["kind"] == "chosen"])
    axes.legend(loc="upper left")
    first = part[(part["kind"] == "envelope") & (part["rows"] == 1)].sort_values("context")
    if len(first):
        one = float(first["ms"].iloc[0])
        right = axes.secondary_yaxis("right", functions=(partial(_times, factor=1 / one), partial(_times, factor=one)))
        context = int(first["context"].iloc[0])
        right.set_ylabel("times one row" + (f" at context {context}" if len(contexts) > 1 else ""))


def _times(values: Any, factor: float) -> Any:
    return values * factor


def _draw_draft(axes: Axes, part: pd.DataFrame, chosen: Chosen | None) -> None:
    """The draft has no rows: a dotted line at its cost, for the chosen depth and context (else deepest, smallest)."""
    draft = part[part["kind"] == "draft"]
    if draft.empty:
        return
    depth = chosen.depth if chosen is not None and (draft["depth"] == chosen.depth).any() else draft["depth"].max()
    draft = draft[draft["depth"] == depth].sort_values("context")
    wanted = chosen.context if chosen is not None and chosen.context is not None else 0
    nearest = draft["context"].to_numpy()[(draft["context"] - wanted).abs().argmin()]
    found = draft.loc[draft["context"] == nearest, "ms"]
    ms, most = float(found.min()), float(found.max())
    label = f"draft to depth {depth}: {ms:.2f} ms" if depth else f"draft: {ms:.2f} ms"
    label += f" (a chain) to {most:.2f} ms (the widest)" if len(found) > 1 else ""
    axes.plot([1, float(part["rows"].max())], [ms, ms], ":", color=style.GREY, lw=1.4, label=label)


def _scale(axes: Axes, part: pd.DataFrame) -> None:
    last = int(part["rows"].max())
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, last * 1.12)
    axes.set_xticks([2**power for power in range(int(math.log2(max(last, 1))) + 1)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(0, float(part[["ms", "high_ms"]].max().max()) * 1.12)
    axes.set(xlabel="rows per sequence (nodes + root), log scale", ylabel="ms")


def _mark_chosen(axes: Axes, chosen: pd.DataFrame) -> None:
    for mark in chosen.itertuples():
        rows, ms = float(mark.rows), float(mark.ms)  # type: ignore[arg-type]
        label = f"chosen: {int(rows) - 1} nodes, {ms:.1f} ms, {float(mark.relative):.2f}x"  # type: ignore[arg-type]
        axes.plot(
            [rows], [ms], "*", color=style.VERMILLION, ms=13, mec="white", mew=0.8, zorder=5, ls="none", label=label
        )
