"""``mtp-bench report``: plots, their data as CSV, and one HTML page of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        str | None, typer.Argument(help="Run folder, or its name in results/; the newest one when left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; the run folder when left out.")] = None,
    training: Annotated[
        Path | None, typer.Option(help="Folder with loss.csv and heldout.csv of train-heads, to plot these too.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")] = False,
) -> None:
    """Write plots/ (PNG, SVG, CSV) and report.html from what a run folder holds."""
    from mtp_bench.report.write import make_report
    from mtp_bench.runs import open_run

    folder = open_run(run).path
    made = make_report(folder, out=out, training=training)
    for text in made.damaged:
        typer.echo(f"not used: {text}", err=True)
    for one in made.omitted:
        typer.echo(f"not shown: {one.title}: {one.reason}", err=True)
    page = made.files[-1]
    typer.echo(f"{len(made.plots)} plots of {folder} in {page.parent / 'plots'}, page: {page}", err=json_output)
    if json_output:
        facts = {
            "run": str(folder),
            "report": str(page),
            "plots": list(made.plots),
            "files": [str(path) for path in made.files],
            "not_shown": [{"plot": one.title, "reason": one.reason} for one in made.omitted],
            "not_used": list(made.damaged),
        }
        typer.echo(json.dumps(facts, ensure_ascii=False))
