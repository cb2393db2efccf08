"""``mtp-bench measure-cost``: what verifying n rows costs, without text or acceptance; dummy weights will do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.cli.command_line import command_line


def measure_cost(
    model: options.Model = "smollm2-135m",
    heads: Annotated[
        str | None, typer.Option("--heads", help="Measure these heads too (folder or shipped name).")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Up to so many rows (nodes + 1).")] = 64,
    context: Annotated[list[int] | None, typer.Option("--context", min=1, help="Cached tokens; may repeat.")] = None,
    batch: options.Batches = "1",
    rounds: Annotated[int, typer.Option(min=3, help="Timings per cell.")] = 20,
    max_minutes: Annotated[float, typer.Option(help="Stop after the round in which this has passed.")] = 10.0,
    load_format: options.LoadFormat = "auto",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    engine: options.Engine = "auto",
    seed: options.Seed = 0,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Time a step over 1..max-rows rows in random interleaved order; writes cost.csv."""
    from mtp_bench.cli.loading import load_base, load_heads
    from mtp_bench.cli.output import emit_json
    from mtp_bench.cost import CostTable
    from mtp_bench.profile.costs import SweepOptions, default_rows
    from mtp_bench.profile.environment import environment, model_facts, timestamp
    from mtp_bench.profile.run import measure_with_progress
    from mtp_bench.progress import say
    from mtp_bench.runs import RESULTS, RunFolder

    batches = options.parse_batches(batch)
    base = load_base(
        model, dtype=dtype, device=device, attention=attention, engine=engine, load_format=load_format, seed=seed
    )
    loaded = load_heads(heads, base)[0] if heads else None
    points = []
    for size in batches:
        sweep = SweepOptions(
            rows=default_rows(max_rows), contexts=tuple(context or (128, 512)), batch=size, rounds=rounds,
            max_seconds=60 * max_minutes / len(batches), seed=seed,
        )  # fmt: skip
        points += measure_with_progress(base, loaded, sweep)
    run = RunFolder(out or RESULTS / f"cost-{Path(base.name).stem}-{base.device.type}")
    table = CostTable(tuple(points), source=str(run.cost))
    table.to_csv(run.cost)
    command = command_line()
    run.write_manifest(
        {
            "kind": "cost", "created": timestamp(), "command": command, "model": model_facts(base),
            "environment": environment(base.device),
        }
    )  # fmt: skip
    order = sorted(points, key=lambda one: (one.batch, one.context, one.component, one.rows, one.depth))
    for one in order:
        what = f"{one.rows:4d} rows" if one.component == "verify" else f"draft depth {one.depth}"
        typer.echo(
            f"batch {one.batch:3d}  context {one.context:5d}  {what:14s}  "
            f"{one.median_ms:9.3f} ms  [{one.low_ms:.3f}, {one.high_ms:.3f}]"
        )
    say(f"costs: {run.cost}")
    if json_output:
        emit_json({"run": str(run.path), "cells": len(points), "ok": sum(point.ok for point in points)})
