"""The map over batch size and context: in each cell the best tree that drafts, hatched where it loses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame

COLUMNS = (
    "batch", "context", "best", "draft", "num_nodes", "depth", "tokens_per_step", "step_ms", "speedup", "speedup_low",
    "speedup_high", "basis",
)  # fmt: skip


def write_operating_range(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plot and its data under ``plots/``; the paths written."""
    frame = operating_range_frame(document)
    drawn = save_figure(draw_operating_range(frame), folder / "plots", "operating_range")
    return [*drawn, save_frame(frame, folder / "plots", "operating_range")]


def operating_range_frame(document: Mapping[str, Any]) -> pd.DataFrame:
    """One line per cell, of the best topology that drafts; ``best`` is what to use there. NaN without costs."""
    lines: list[dict[str, Any]] = []
    for cell in document["cells"]:
        line: dict[str, Any] = {"batch": cell["batch"], "context": cell["context"], "best": cell["name"]}
        drafted = cell["best_that_drafts"]
        if drafted is not None:
            low, high = drafted["speedup_predicted_ci"] or (None, None)
            line |= {name: drafted[name] for name in ("num_nodes", "depth", "tokens_per_step", "step_ms")}
            line |= {"draft": drafted["name"], "speedup": drafted["speedup_predicted"]}
            line |= {"speedup_low": low, "speedup_high": high}
        lines.append(line | {"basis": cell["basis"]})
    lines += [{**place, "basis": "no costs"} for place in document["without_costs"]]
    figures = ["tokens_per_step", "step_ms", "speedup", "speedup_low", "speedup_high"]
    frame = pd.DataFrame(lines, columns=list(COLUMNS)).astype(dict.fromkeys(figures, float))
    return frame.sort_values(["batch", "context"], ignore_index=True)


@style.house_style()
def draw_operating_range(frame: pd.DataFrame) -> Figure:
    """Heat map over batch (up) and context (right)."""
    batches, contexts = sorted(frame["batch"].unique()), sorted(frame["context"].unique())
    figure = style.new_figure(2.2 + 1.7 * len(contexts), 1.7 + 0.95 * len(batches))
    axes = figure.add_subplot()
    speedups = frame["speedup"].dropna()
    # One shade more below than above 1 would mislead: the scale always holds 1 and what there is.
    scale = Normalize(min(1.0, float(speedups.min())), max(1.05, float(speedups.max()))) if len(speedups) else None
    for cell in frame.itertuples():
        x, y = contexts.index(cell.context), batches.index(cell.batch)
        _draw_cell(axes, x, y, cell, scale)
    axes.set(xlim=(-0.5, len(contexts) - 0.5), ylim=(-0.5, len(batches) - 0.5))
    axes.set_xticks(range(len(contexts)), [str(context) for context in contexts])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.grid(False)
    axes.tick_params(length=0)
    axes.set(xlabel="context (cached tokens)", ylabel="batch size", title="The best tree by batch size and context")
    if scale is not None:
        bar = figure.colorbar(ScalarMappable(scale, style.HEAT), ax=axes, label="speedup of the best tree that drafts")
        bar.ax.axhline(1.0, color=style.BLACK, lw=1.2)
        bar.ax.grid(False)
    notes = [
        (bool((frame["speedup"] < 1).any()), "Hatched: drafting loses; do not speculate there."),
        (bool((frame["basis"] == "interpolated").any()), "Dashed: costs interpolated between measured places."),
        (bool((frame["basis"] == "nearest").any()), "Dotted: costs of the nearest measured context."),
        (bool((frame["basis"] == "no costs").any()), "White: no costs."),
    ]
    text = "N nodes, depth, speedup over N = 0 at the same place, 95% interval.\n"
    style.caption(figure, text + " ".join(note for holds, note in notes if holds))
    return figure


_EDGES = {"measured": "-", "interpolated": (0, (4, 3)), "nearest": (0, (1, 2)), "no costs": "-"}


def _draw_cell(axes: Any, x: int, y: int, cell: Any, scale: Normalize | None) -> None:
    drawn = scale is not None and cell.speedup == cell.speedup
    colour = colormaps[style.HEAT](scale(cell.speedup)) if drawn and scale is not None else (1.0, 1.0, 1.0, 1.0)
    dark = 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2] < 0.5
    ink = "white" if dark else style.BLACK
    loses = drawn and cell.speedup < 1
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", lw=2.5))
    if loses:
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=style.GREY, hatch="///", lw=0))
    if cell.basis not in ("measured", "no costs"):
        axes.add_patch(Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, fill=False, edgecolor=ink, ls=_EDGES[cell.basis]))
    if not drawn:
        axes.text(x, y, "no costs", ha="center", va="center", fontsize=8, color=style.GREY)
        return
    box = {"boxstyle": "round,pad=0.15", "fc": colour, "ec": "none"} if loses else None
    figures = f"N = {int(cell.num_nodes)}, depth {int(cell.depth)}\n"
    interval = "" if cell.speedup_low != cell.speedup_low else f"\n[{cell.speedup_low:.2f}, {cell.speedup_high:.2f}]"
    label = f"{figures}{cell.speedup:.2f}x{interval}"
    axes.text(x, y, label, ha="center", va="center", fontsize=8, color=ink, bbox=box)
