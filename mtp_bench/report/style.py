"""How every plot looks and is saved: one palette, no global plotting state, the same bytes for the same data.

Figures are plain objects (``Figure()``), never pyplot's, so a plot can be drawn in a library, a test or a thread
without a display. The colours are Okabe and Ito's, which people with the usual kinds of colour blindness can tell
apart; line styles and markers repeat what colours say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_bench.files import atomic_path, write_text

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#7F7F7F"
PALE = "#D9D9D9"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, BLACK)
MARKERS = "osD^vPX"
HEAT = "viridis"

DPI = 150
_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "mtp-bench",
    "svg.fonttype": "path",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults plus ours, whatever the user's matplotlibrc says; wraps every drawing function."""
    with style.context(["default", _SETTINGS]):
        yield


def look(place: int) -> tuple[str, str]:
    """(colour, marker) of the place-th thing drawn; a colour that comes again has another marker."""
    return CYCLE[place % len(CYCLE)], MARKERS[(place + place // len(CYCLE)) % len(MARKERS)]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of ``width`` x ``height`` inches that makes room for its own labels."""
    return Figure(figsize=(width, height), layout="constrained")


def caption(figure: Figure, text: str) -> None:
    """A line in grey below everything else: how many observations, what was left out."""
    if text:
        figure.supxlabel(text, fontsize=7.5, color="#555555", x=0.01, ha="left")


def name_line(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Write ``text`` just right of the end of a line, instead of in a legend."""
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", color=colour, fontsize=8, va="center")


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg`` atomically, without dates or version strings in them."""
    targets = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    written = []
    with house_style():
        for suffix, metadata in targets.items():
            path = folder / f"{name}.{suffix}"
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
            written.append(path)
    return written


def save_frame(frame: pd.DataFrame, folder: Path, name: str) -> Path:
    """Write the data behind a plot as ``name.csv``: nine digits, empty where unknown."""
    path = folder / f"{name}.csv"
    write_text(path, frame.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
    return path
