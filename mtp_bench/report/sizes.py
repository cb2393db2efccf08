"""What each tree size brings: tokens_per_step (which only grows) and speedup (which has an optimum).

The speedup curve is usually flat around its top. The sizes within 1% of the best are shaded, because a reader should
see that a tree half as large may do as well. Published trees are placed on the same axes by the same replay and costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.report import style
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace, replay

CURVE = (
    "num_nodes", "depth", "tokens_per_step_uniform", "tokens_per_step", "tokens_low", "tokens_high",
    "step_ms", "speedup", "speedup_low", "speedup_high",
)  # fmt: skip
LINEAR_TO = 80  # more nodes than that are drawn on a logarithmic axis


@dataclass(frozen=True, slots=True)
class NamedPoint:
    """A tree to compare with: its replayed tokens_per_step, and its predicted speedup where its cost is known."""

    name: str
    num_nodes: int
    tokens_per_step: float
    speedup: float | None


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """The best tree of each size.

    Args:
        frame: one line per N, columns :data:`CURVE`; NaN where unknown.
        best: N of the optimum.
        band: smallest and largest N within 1% of the best; None when unknown.
        smallest: N of the smallest tree in the band.
        named: other trees.
    """

    frame: pd.DataFrame
    best: int
    band: tuple[int, int] | None
    smallest: int | None
    named: tuple[NamedPoint, ...] = ()

    @property
    def has_speedup(self) -> bool:
        """Whether costs are known."""
        return bool(self.frame["speedup"].notna().any())

    def export(self) -> pd.DataFrame:
        """The curve and the named trees as one table."""
        named = [
            {"tree": p.name, "num_nodes": p.num_nodes, "tokens_per_step": p.tokens_per_step, "speedup": p.speedup}
            for p in self.named
        ]
        curve = self.frame.assign(tree="best of its size")
        return pd.concat([curve, pd.DataFrame(named, columns=["tree", "num_nodes", "tokens_per_step", "speedup"])])[
            ["tree", *CURVE]
        ]


def size_curve(optimize: Mapping[str, Any], named: Sequence[NamedPoint] = ()) -> SizeCurve | None:
    """The curve in an ``optimize.json``; None when it holds none.

    Of several depths for one N the one with the best speedup is kept, or without costs the most tokens; lines whose
    tree was replayed go before lines with an average over all positions only.
    """
    exact = optimize.get("exact") or {}
    lines = [_line(point) for point in exact.get("curve") or () if isinstance(point, Mapping) and "num_nodes" in point]
    if not lines:
        return None
    frame = pd.DataFrame(lines, columns=list(CURVE)).astype(dict.fromkeys(CURVE[2:], float))
    frame = frame.assign(replayed=frame["tokens_per_step"].notna(), tokens=_tokens(frame))
    order = ["num_nodes", "replayed", "speedup", "tokens", "depth"]
    frame = frame.sort_values(order, ascending=[True, False, False, False, True], na_position="last")
    frame = frame.drop_duplicates("num_nodes").reset_index(drop=True)[list(CURVE)]
    band, smallest = _band(exact.get("band"))
    best = optimize.get("num_nodes")
    score = frame["speedup"] if frame["speedup"].notna().any() else _tokens(frame)
    best = int(frame["num_nodes"].to_numpy()[int(np.nanargmax(score.to_numpy(float)))]) if best is None else int(best)
    return SizeCurve(frame, best, band, smallest, tuple(named))


def named_points(
    trees: Mapping[str, StaticTree],
    trace: RankTrace,
    cost: CostTable | None,
    *,
    context: int | None = None,
    batch: int = 1,
) -> tuple[NamedPoint, ...]:
    """Replay ``trees`` on ``trace``; nodes beyond the recorded depth or ranks are cut off, which the name then says."""
    points = []
    for name, tree in trees.items():
        fitting = tree.clip(max_depth=trace.depth, max_rank=trace.top_k - 1)
        if not fitting.num_nodes:
            continue
        label = name if fitting == tree else f"{name}, cut to {fitting.num_nodes}"
        tokens = replay(trace, fitting).tokens_per_step
        points.append(
            NamedPoint(label, fitting.num_nodes, tokens, _speedup(fitting, tokens, cost, context=context, batch=batch))
        )
    return tuple(points)


def _speedup(
    tree: StaticTree, tokens: float, cost: CostTable | None, *, context: int | None, batch: int
) -> float | None:
    if cost is None:
        return None
    try:
        step_ms = cost.topology_ms(tree, context=context, batch=batch)
        return tokens * cost.step_ms(1, context=context, batch=batch) / step_ms
    except InputError:
        return None  # larger or deeper than measured


def _line(point: Mapping[str, Any]) -> dict[str, Any]:
    tokens_ci, speedup_ci = (point.get(name) or (None, None) for name in ("tokens_per_step_ci", "speedup_ci"))
    ends = {"tokens_low": tokens_ci[0], "tokens_high": tokens_ci[1]}
    ends |= {"speedup_low": speedup_ci[0], "speedup_high": speedup_ci[1]}
    return {name: point.get(name) for name in CURVE} | ends | {"depth": point.get("depth", 0)}


def _band(band: Any) -> tuple[tuple[int, int] | None, int | None]:
    """(lowest and highest N, N of the smallest tree) of either spelling of the band."""
    if not isinstance(band, Mapping):
        return None, None
    sizes = band.get("sizes") or [band[name] for name in ("lowest", "highest") if band.get(name) is not None]
    smallest = band.get("smallest_tree", band.get("smallest"))
    smallest = smallest.get("num_nodes") if isinstance(smallest, Mapping) else smallest
    ends = (int(min(sizes)), int(max(sizes))) if sizes else None
    return ends, int(smallest) if isinstance(smallest, int) else (ends[0] if ends else None)


def _tokens(frame: pd.DataFrame) -> pd.Series:
    """Replayed tokens_per_step, else the average over all positions."""
    return frame["tokens_per_step"].fillna(frame["tokens_per_step_uniform"])


@style.house_style()
def draw_sizes(curve: SizeCurve) -> Figure:
    """tokens_per_step above, speedup below where costs are known, one axis of sizes."""
    panels = 2 if curve.has_speedup else 1
    figure = style.new_figure(9.6, 0.7 + 2.9 * panels)
    top = figure.add_subplot(panels, 1, 1)
    _draw_tokens(top, curve)
    last = top
    if curve.has_speedup:
        last = figure.add_subplot(panels, 1, 2, sharex=top)
        _draw_speedup(last, curve)
        top.tick_params(labelbottom=False)
    _scale(last, int(max(curve.frame["num_nodes"].max(), *(p.num_nodes for p in curve.named), 1)))
    last.set_xlabel("nodes (N)")
    style.caption(
        figure,
        f"Best tree of each size. Blue and green: 95% intervals over prompts (and cost timings).{_judged(curve)}",
    )
    return figure


def _judged(curve: SizeCurve) -> str:
    """The search judges by the average over all positions, so the replay's top may lie a node or two beside."""
    return " Optimum and 1% band as searched: averaged over all positions." if curve.band is not None else ""


def _draw_tokens(axes: Axes, curve: SizeCurve) -> None:
    frame = curve.frame
    n = frame["num_nodes"].to_numpy(float)
    axes.set_title("Tokens per step by tree size")
    axes.plot(n, frame["tokens_per_step_uniform"], "--", color=style.GREY, lw=1.2, label="average over all positions")
    axes.plot(n, frame["tokens_per_step"], color=style.BLUE, label="replay (as decoded)")
    axes.fill_between(n, frame["tokens_low"], frame["tokens_high"], color=style.BLUE, alpha=0.18, lw=0)
    _mark(axes, curve, _tokens(frame), "{:.2f}")
    _mark_named(axes, [(p.name, p.num_nodes, p.tokens_per_step) for p in curve.named], "{:.2f}")
    axes.set_ylabel("tokens_per_step")
    _legend(axes)


def _draw_speedup(axes: Axes, curve: SizeCurve) -> None:
    frame = curve.frame
    n = frame["num_nodes"].to_numpy(float)
    axes.set_title("Predicted speedup by tree size")
    axes.axhline(1, color=style.BLACK, lw=0.9, ls=(0, (4, 3)))
    axes.plot(n, frame["speedup"], color=style.GREEN, label="predicted speedup")
    axes.fill_between(n, frame["speedup_low"], frame["speedup_high"], color=style.GREEN, alpha=0.18, lw=0)
    _mark(axes, curve, frame["speedup"], "{:.2f}x")
    _mark_named(axes, [(p.name, p.num_nodes, p.speedup) for p in curve.named if p.speedup is not None], "{:.2f}x")
    axes.set_ylabel("speedup over plain decoding")
    _legend(axes)


def _mark(axes: Axes, curve: SizeCurve, values: pd.Series, form: str) -> None:
    """Shade the band; mark the optimum and the smallest tree of the band."""
    if curve.band is not None:
        low, high = curve.band
        axes.axvspan(
            low - 0.4, high + 0.4, color=style.YELLOW, alpha=0.3, lw=0, label="within 1% of the best", zorder=0
        )
    at = dict(zip(curve.frame["num_nodes"].astype(int), values, strict=True))
    if curve.smallest is not None and curve.smallest != curve.best and curve.smallest in at:
        label = f"smallest within 1%: {curve.smallest} nodes, {form.format(at[curve.smallest])}"
        axes.plot([curve.smallest], [at[curve.smallest]], "D", mfc="white", mec=style.VERMILLION, ms=6, label=label)
    if curve.best in at:
        label = f"optimum: {curve.best} nodes, {form.format(at[curve.best])}"
        axes.plot(
            [curve.best], [at[curve.best]], "*", color=style.VERMILLION, ms=13, mec="white", label=label, zorder=5
        )


def _mark_named(axes: Axes, points: Sequence[tuple[str, int, float]], form: str) -> None:
    """Other trees, hollow, since several have the same size; named in the legend, where they cannot hit the curve."""
    looks = (("^", style.PURPLE), ("s", style.BLACK), ("o", style.ORANGE), ("v", style.SKY))
    for place, (name, num_nodes, value) in enumerate(points):
        marker, colour = looks[place % len(looks)]
        label = f"{name}: {form.format(value)}"
        axes.plot([num_nodes], [value], marker, ms=7, mfc="none", mec=colour, mew=1.4, label=label, zorder=4)


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _scale(axes: Axes, largest: int) -> None:
    if largest <= LINEAR_TO:
        axes.set_xlim(-0.02 * largest, largest * 1.03)
        return
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(-0.1, largest * 1.1)
    powers = np.arange(int(np.log2(largest)) + 1)
    axes.set_xticks([0, *(2**powers).tolist()])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
