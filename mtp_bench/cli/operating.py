"""``optimize-tree`` over several batch sizes and contexts: schedule, map, bounds on sharing, Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.cost import CostTable
    from mtp_bench.search.optimize import OptimizeOptions
    from mtp_bench.trace import RankTrace


def schedule_and_write(
    measured: Measured, batches: tuple[int, ...], *, out: Path | None, context: int | None, **wanted: Any
) -> dict[str, Any]:
    """Search every batch size, print, and write schedule.json with its plot (in the run, or to ``out``)."""
    from mtp_bench.report.schedule import write_schedule
    from mtp_bench.search.operating.schedule import schedule
    from mtp_bench.search.optimize import OptimizeOptions

    trace, cost = _needed(measured, "a schedule")
    options = OptimizeOptions(context=context, **wanted)
    found = schedule(trace, cost, options, batches)
    document = {"schema": "mtp-bench/schedule", "version": 1, "context": context, **_asked(wanted)}
    document |= found.document() | _weights(measured)
    document |= _sharing(trace, cost, options, [(batch, context) for batch in batches])
    _write(document, out or (measured.run.schedule if measured.run else None), write_schedule)
    _print_cells([cell for cell in document["cells"] if cell["batch"] in batches])
    _print_ranges(document["batch_schedule"])
    _print_sharing(document["shared_budget"])
    return document


def range_and_write(
    measured: Measured, batches: tuple[int, ...], contexts: tuple[int, ...], *, out: Path | None, **wanted: Any
) -> dict[str, Any]:
    """Search every batch size and context, print, and write operating_range.json with its map."""
    from mtp_bench.report.operating_range import write_operating_range
    from mtp_bench.search.operating.operating_range import operating_range
    from mtp_bench.search.optimize import OptimizeOptions

    trace, cost = _needed(measured, "a map")
    options = OptimizeOptions(**wanted)
    found = operating_range(trace, cost, options, batches, contexts)
    document = {"schema": "mtp-bench/operating-range", "version": 1, **_asked(wanted)}
    document |= found.document() | _weights(measured)
    document |= _sharing(trace, cost, options, [(cell.batch, cell.context) for cell in found.cells])
    _write(document, out or (measured.run.operating_range if measured.run else None), write_operating_range)
    _print_cells(document["cells"])
    for one in document["schedules"]:
        typer.echo(f"context {one['context']}:")
        _print_ranges(one["batch_schedule"])
    _print_sharing(document["shared_budget"])
    return document


def pareto_and_write(
    measured: Measured, batches: tuple[int, ...], *, out: Path | None, trials: int, context: int | None, **wanted: Any
) -> dict[str, Any]:
    """Find the front of latency against throughput, print, and write pareto.json with its plot."""
    from mtp_bench.report.pareto import write_pareto
    from mtp_bench.search.operating.pareto import pareto
    from mtp_bench.search.optimize import OptimizeOptions

    trace, cost = _needed(measured, "a Pareto front")
    found = pareto(trace, cost, OptimizeOptions(context=context, trials=trials, **wanted), batches)
    place = {"objective": "pareto", "batches": list(batches), "context": context}
    document = {"schema": "mtp-bench/pareto", "version": 1, **place, **wanted, **found.document()}
    document |= _weights(measured)
    _write(document, out or (measured.run.pareto if measured.run else None), write_pareto)
    _print_front(document)
    return document


def _asked(wanted: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as JSON."""
    rules = wanted["constraints"]
    return wanted | {"constraints": rules.document(), "for": rules.name or None}


def _needed(measured: Measured, what: str) -> tuple[RankTrace, CostTable]:
    from mtp_bench.trace import RankTrace

    if not isinstance(measured.acceptance, RankTrace) or measured.cost is None:
        raise InputError(
            f"{what} needs a trace and costs",
            where="--batch",
            fix="give --profile, and --cost with the cost.csv of mtp-bench measure-cost --batch 1,4,8",
        )
    return measured.acceptance, measured.cost


def _weights(measured: Measured) -> dict[str, Any]:
    """What the categories were weighted with, if they were."""
    weights = measured.provenance.get("category_weights")
    return {"weights": weights} if weights else {}


def _write(document: dict[str, Any], path: Path | None, draw: Any) -> None:
    from mtp_bench.files import write_json

    if path is not None:
        write_json(path, document)
        draw(document, path.parent)


def _sharing(
    trace: RankTrace, cost: CostTable, options: OptimizeOptions, places: list[tuple[int, int | None]]
) -> dict[str, Any]:
    """What sharing one budget among requests could gain at each of ``places``."""
    from mtp_bench.search.operating.shared_budget import bounds, gains

    found = gains(trace, max_nodes=options.budget, max_depth=options.max_depth)
    return {
        "shared_budget": [
            {
                "batch": batch,
                "context": context,
                "bounds": [one.document() for one in bounds(found, cost, batch=batch, context=context)],
            }
            for batch, context in places
        ]
    }


def _print_cells(cells: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "batch", "context", "use", "N", "depth", "tokens_per_step", "step ms", "tokens/s each", "predicted speedup",
        "best that drafts", "costs",
    )  # fmt: skip
    for cell in cells:
        low, high = cell["speedup_predicted_ci"] or (cell["speedup_predicted"],) * 2
        drafted = cell["best_that_drafts"]
        loses = drafted is not None and drafted["speedup_predicted"] < 1
        table.add_row(
            str(cell["batch"]), "" if cell["context"] is None else str(cell["context"]), cell["name"],
            str(cell["num_nodes"]), str(cell["depth"]), f"{cell['tokens_per_step']:.3f}", f"{cell['step_ms']:.2f}",
            f"{cell['tokens_per_s']:.2f}", f"{cell['speedup_predicted']:.3f}x [{low:.2f}, {high:.2f}]",
            f"loses: {drafted['name']} {drafted['speedup_predicted']:.3f}x" if loses else "", cell["basis"],
        )  # fmt: skip
    Console(width=150, highlight=False).print(table)


def _print_ranges(ranges: list[dict[str, Any]]) -> None:
    for one in ranges:
        sizes = f"batch {one['min_batch_size']} to {one['max_batch_size']}"
        what = f"{one['num_nodes']} nodes, depth {one['depth']}" if one["num_nodes"] else "do not speculate"
        typer.echo(
            f"{sizes}: {one['name']} ({what}), at most {100 * one['speed_lost']:.1f}% below the best of each size"
        )


def _print_sharing(places: list[dict[str, Any]]) -> None:
    typer.echo("one budget shared by all requests, bounds (averages over all positions, any number of requests):")
    for place in places:
        label = f"batch {place['batch']}" + ("" if place["context"] is None else f", context {place['context']}")
        figures = [
            f"{one['name']}{'' if one['top_k'] is None else ' top_k ' + str(one['top_k'])} {one['speedup']:.3f}x "
            f"({100 * (one['gain'] - 1):+.1f}%)"
            for one in place["bounds"]
        ]
        typer.echo(f"  {label}: " + ", ".join(figures))


def _print_front(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("batch", "topology", "N", "depth", "tokens_per_step", "step ms", "tokens/s each", "tokens/s in all")
    for one in document["front"]:
        table.add_row(
            str(one["batch"]), one["name"], str(one["num_nodes"]), str(one["depth"]), f"{one['tokens_per_step']:.3f}",
            f"{one['step_ms']:.2f}", f"{one['tokens_per_s_per_user']:.2f}", f"{one['tokens_per_s_total']:.2f}",
        )  # fmt: skip
    Console(width=130, highlight=False).print(table)
    typer.echo(f"{len(document['front'])} of {len(document['points'])} points are beaten in both figures by no other")
    study = document["optuna"]
    if study:
        typer.echo(
            f"optuna (two objectives, unseeded): {study['trials']} trials, {100 * study['hypervolume_share']:.2f}% of "
            f"the exact front's hypervolume, {study['on_exact_front']} of its {len(study['front'])} points on it"
        )
