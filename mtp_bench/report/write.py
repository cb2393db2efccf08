"""Everything a run can show, written beside it: ``plots/NAME.{png,svg,csv}`` and ``report.html``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import write_text
from mtp_bench.report.inputs import FILES, read_run
from mtp_bench.report.page import Picture, render_page
from mtp_bench.report.plots import Omitted, build_plots
from mtp_bench.report.style import save_figure, save_frame
from mtp_bench.report.tables import build_tables, headline


@dataclass(frozen=True, slots=True)
class Report:
    """What was written.

    Args:
        files: all paths, ``report.html`` last.
        plots: names of the plots made.
        omitted: plots that could not be made, with the reason.
        damaged: files that are there but could not be used.
    """

    files: tuple[Path, ...]
    plots: tuple[str, ...]
    omitted: tuple[Omitted, ...]
    damaged: tuple[str, ...]


def write_report(run_folder: Path, *, out: Path | None = None, training: Path | None = None) -> list[Path]:
    """Write all that the folder's files allow; the paths written, ``report.html`` last. See :func:`make_report`."""
    return list(make_report(run_folder, out=out, training=training).files)


def make_report(run_folder: Path, *, out: Path | None = None, training: Path | None = None) -> Report:
    """Write plots, their data and the page; equal inputs give equal bytes.

    Args:
        run_folder: ``results/NAME``.
        out: where to write; the run folder itself by default.
        training: folder of the training's CSVs; see :func:`mtp_bench.report.inputs.read_run`.

    Raises:
        InputError: no such folder, none of the files in it, or a file cannot be written.
    """
    run_folder = Path(run_folder)
    inputs = read_run(run_folder, training=training)
    if inputs.empty:
        problems = "; ".join(inputs.damaged)
        raise InputError(
            f"nothing to report on{': ' + problems if problems else ''}",
            where=str(run_folder),
            fix=f"a run folder holds some of {', '.join(FILES)}; run mtp-bench profile first",
        )
    target = Path(out) if out is not None else run_folder
    plots, omitted = build_plots(inputs)
    files: list[Path] = []
    pictures: list[Picture] = []
    for plot in plots:
        png, svg = save_figure(plot.figure, target / "plots", plot.name)
        csv = save_frame(plot.frame, target / "plots", plot.name)
        files += [png, svg, csv]
        pictures.append(Picture(plot.title, svg, csv))
    title = f"mtp-bench: {run_folder.resolve().name}"
    page = render_page(title, headline(inputs), build_tables(inputs), pictures, omitted, inputs.damaged)
    write_text(target / "report.html", page)
    files.append(target / "report.html")
    return Report(tuple(files), tuple(plot.name for plot in plots), tuple(omitted), inputs.damaged)
