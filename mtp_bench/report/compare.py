"""Plots of a comparison: speeds with intervals, speedup by category, acceptance by size, what a foreign tree costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mtp_bench.report import style
from mtp_bench.report.style import save_figure, save_frame

Document = Mapping[str, Any]


def write_comparison(document: Document, folder: Path) -> list[Path]:
    """Write ``compare.csv`` and the plots with their data under ``plots/``; the paths written."""
    files = [save_frame(methods_frame(document), folder, "compare")]
    drawn: list[tuple[str, Figure, pd.DataFrame]] = [
        ("speeds", draw_speeds(document), methods_frame(document)),
        ("categories", draw_categories(document), categories_frame(document)),
        ("sizes", draw_sizes(document), sizes_frame(document)),
    ]
    matrices = [one for one in document["transfer"] if one is not None]
    if matrices:
        drawn.append(("transfer", draw_transfer(matrices), transfer_frame(matrices)))
    for name, figure, frame in drawn:
        files += [*save_figure(figure, folder / "plots", name), save_frame(frame, folder / "plots", name)]
    return files


def methods_frame(document: Document) -> pd.DataFrame:
    """One line per method, fastest first."""
    lines = []
    for one in sorted(document["methods"], key=lambda method: -method["tokens_per_s"]):
        low, high = one["speedup"]["ci"] or (None, None)
        lines.append(
            {
                "name": one["name"],
                "method": one["method"],
                "topology": one["topology"],
                "num_nodes": one.get("num_nodes"),
                "tokens_per_step": one["tokens_per_step"],
                "draft_ms": one.get("draft_ms"),
                "verify_ms": one.get("verify_ms"),
                "step_ms": one["step_ms"],
                "tokens_per_s": one["tokens_per_s"],
                "speedup": one["speedup"]["value"],
                "speedup_low": low,
                "speedup_high": high,
                "predicted_tokens_per_s": one["predicted_tokens_per_s"],
                "heads_bytes": one.get("heads_bytes"),
                "bytes_per_s": one.get("work", {}).get("bytes_per_s"),
                "share_of_copy_bandwidth": one.get("work", {}).get("share_of_copy_bandwidth"),
                "lossless": one["lossless"],
            }
        )
    return pd.DataFrame(lines)


def categories_frame(document: Document) -> pd.DataFrame:
    """One line per method and category."""
    return pd.DataFrame(
        [
            {"name": one["name"], "category": category, **figures}
            for one in document["methods"]
            for category, figures in one["by_category"].items()
        ]
    )


def sizes_frame(document: Document) -> pd.DataFrame:
    """tokens_per_step of each run's best static tree of each size."""
    return pd.DataFrame(
        [
            {"name": one["name"], "method": one["method"], "num_nodes": int(size), "tokens_per_step": tokens}
            for one in document["same_size"]
            for size, tokens in one["tokens_per_step"].items()
        ]
    )


def transfer_frame(matrices: Sequence[Document]) -> pd.DataFrame:
    """Relative loss of every tree on every category."""
    return pd.DataFrame(
        [
            {"name": one["name"], "tuned_on": row, "used_on": column, "loss": one["loss"][i][j]}
            for one in matrices
            for i, row in enumerate(one["tuned_on"])
            for j, column in enumerate(one["used_on"])
        ]
    )


def draw_speeds(document: Document) -> Figure:
    """Speedup over no speculation with its interval; tokens_per_step and tokens/s beside each."""
    frame = methods_frame(document).iloc[::-1]
    with style.house_style():
        figure = style.new_figure(8.0, 0.5 * len(frame) + 1.3)
        axes = figure.subplots()
        places = np.arange(len(frame))
        colours = [style.BLUE if method != "none" else style.GREY for method in frame["method"]]
        axes.barh(places, frame["speedup"], color=colours, height=0.6)
        for place, (_, one) in zip(places, frame.iterrows(), strict=True):
            end = one["speedup"]
            if pd.notna(one["speedup_low"]):
                axes.plot([one["speedup_low"], one["speedup_high"]], [place, place], color=style.BLACK, linewidth=1.2)
                end = max(end, one["speedup_high"])
            text = f"{one['tokens_per_s']:.1f} tokens/s, {one['tokens_per_step']:.2f} tokens_per_step"
            axes.annotate(text, (end, place), (6, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axvline(1.0, color=style.BLACK, linewidth=0.8)
        axes.set_yticks(places, frame["name"])
        axes.set_xlim(0, 1.75 * float(np.nanmax(frame[["speedup", "speedup_high"]].to_numpy(dtype=float), initial=1.0)))
        axes.set_xlabel("decode speedup over this engine without speculation")
        axes.grid(axis="y", visible=False)
        axes.set_title("Real decoding, interleaved, 95% intervals over prompts")
        style.caption(figure, f"{document['prompts']} prompts, decoded {document.get('repeats', 1)} time(s) by each")
    return figure


def draw_categories(document: Document) -> Figure:
    """Heat map method x category of the measured speedup."""
    frame = categories_frame(document)
    table = frame.pivot(index="name", columns="category", values="speedup")
    table = table.loc[methods_frame(document)["name"]]
    with style.house_style():
        figure = style.new_figure(2.6 + 0.95 * table.shape[1], 1.6 + 0.42 * len(table))
        _heat(figure.subplots(), table, "speedup", "{:.2f}", ratio=True)
        figure.suptitle("Measured speedup by category", x=0.01, ha="left")
    return figure


def draw_sizes(document: Document) -> Figure:
    """tokens_per_step of the best static tree against its number of nodes, one line per run."""
    frame = sizes_frame(document)
    with style.house_style():
        figure = style.new_figure(6.5, 4.0)
        axes = figure.subplots()
        for place, (name, group) in enumerate(frame.groupby("name", sort=False)):
            colour, marker = style.look(place)
            axes.plot(group["num_nodes"], group["tokens_per_step"], color=colour, marker=marker, label=str(name))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(frame["num_nodes"].unique()), [str(n) for n in sorted(frame["num_nodes"].unique())])
        axes.set_xlabel("nodes of the best static tree")
        axes.set_ylabel("tokens_per_step (replayed)")
        axes.set_title("The same number of nodes, other heads")
        axes.legend()
    return figure


def draw_transfer(matrices: Sequence[Document]) -> Figure:
    """One heat map per run: loss of the tree of the row's category on the column's."""
    with style.house_style():
        columns = len(matrices[0]["used_on"])
        figure = style.new_figure((2.0 + 0.75 * columns) * len(matrices), 1.8 + 0.42 * (columns + 1))
        every = figure.subplots(1, len(matrices), squeeze=False)[0]
        for axes, one in zip(every, matrices, strict=True):
            table = pd.DataFrame(100 * np.array(one["loss"]), index=one["tuned_on"], columns=one["used_on"])
            _heat(axes, table, "loss in %", "{:.1f}", ratio=False)
            axes.set_title(one["name"])
            axes.set_ylabel("tuned on")
            axes.set_xlabel("used on")
        figure.suptitle("What a tree tuned on other text costs: loss of predicted speed in %", x=0.01, ha="left")
    return figure


def _heat(axes: Axes, table: pd.DataFrame, label: str, form: str, *, ratio: bool) -> None:
    """Ratios are coloured by their logarithm, so that twice and half are equally far from 1."""
    values = table.to_numpy(dtype=float)
    shades = np.log(values) if ratio else values
    span = max(float(np.nanmax(np.abs(shades))), np.log(1.1) if ratio else 1.0)
    if ratio:
        image = axes.imshow(values, cmap="PuOr_r", norm=LogNorm(np.exp(-span), np.exp(span)), aspect="auto")
    else:
        image = axes.imshow(values, cmap="Oranges", vmin=0.0, vmax=span, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        dark = abs(shades[i, j]) > 0.65 * span
        axes.text(j, i, form.format(value), ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(
        range(table.shape[1]), [str(name).replace("_", " ") for name in table.columns], rotation=40, ha="right"
    )
    axes.set_yticks(range(len(table)), [str(name).replace("_", " ") for name in table.index])
    axes.grid(visible=False)
    if axes.figure is not None:
        bar = axes.figure.colorbar(image, ax=axes, label=label)
        if ratio:
            ticks = [2.0**power for power in range(-6, 7) if abs(power) * np.log(2) <= span]
            bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
            bar.minorticks_off()
