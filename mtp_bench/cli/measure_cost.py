"""``mtp-bench measure-cost``: what verifying n rows costs, without text or acceptance; dummy weights will do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.cli.command_line import command_line

if TYPE_CHECKING:
    from mtp_bench.cost import CostPoint


def measure_cost(
    model: options.Model = "smollm2-135m",
    heads: Annotated[
        str | None, typer.Option("--heads", help="Measure these heads too (folder or shipped name).")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Up to so many rows (nodes + 1).")] = 64,
    points: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows measured per batch and context, more of them where the cost bends or steps; 14 for 64."
        ),
    ] = None,
    context: Annotated[list[int] | None, typer.Option("--context", min=1, help="Cached tokens; may repeat.")] = None,
    batch: options.Batches = "1",
    dynamic_top_k: options.DynamicTopK = None,
    rounds: Annotated[int, typer.Option(min=3, help="Timings per cell.")] = 20,
    max_minutes: Annotated[
        float, typer.Option(min=0.0, help="Stop when measuring has taken so long; shared out among the batch sizes.")
    ] = 10.0,
    load_format: options.LoadFormat = "auto",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    attention: options.Attention = "auto",
    engine: options.Engine = "auto",
    seed: options.Seed = 0,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Time a step over 1..max-rows rows in random interleaved order; writes cost.csv; resumes where it was stopped."""
    from mtp_bench.cli.loading import load_base, load_heads
    from mtp_bench.cli.output import emit_json
    from mtp_bench.cost import read_points
    from mtp_bench.profile.cost_run import run_measure_cost
    from mtp_bench.profile.surface import SurfaceOptions, default_points
    from mtp_bench.progress import say
    from mtp_bench.runs import RESULTS, RunFolder

    batches = options.parse_batches(batch)
    base = load_base(
        model, dtype=dtype, device=device, attention=attention, engine=engine, load_format=load_format, seed=seed,
        device_map=device_map,
    )  # fmt: skip
    loaded, info = load_heads(heads, base) if heads else (None, None)
    dynamic = options.parse_dynamic_top_ks(dynamic_top_k, info.method if info else None)
    if info:
        options.check_top_k(max(dynamic, default=0), "--dynamic-top-k", info.draft_vocab_size or base.vocab_size)
    surface = SurfaceOptions(
        max_rows=max_rows, contexts=tuple(sorted(set(context or (128, 512)))), batches=batches,
        points=points or default_points(max_rows), rounds=rounds, max_minutes=max_minutes,
        dynamic_top_ks=dynamic, seed=seed,
    )  # fmt: skip
    run = RunFolder(out or RESULTS / f"cost-{Path(base.name).stem}-{base.device.type}")
    with run.exclusive():
        manifest = run_measure_cost(base, loaded, info, surface, run, command_line())
    measured = read_points(run.cost)
    _print(measured)
    say(f"costs: {run.cost}")
    if json_output:
        ok = sum(point.ok for point in measured)
        emit_json({"run": str(run.path), "cells": len(measured), "ok": ok, "left_out": manifest["left_out"]})


def _print(points: Iterable[CostPoint]) -> None:
    from mtp_bench.cost import DRAFT, VERIFY

    for one in sorted(points, key=lambda one: (one.batch, one.context, one.component, one.depth, one.rows)):
        width = f" x {one.rows}" if one.rows else ""
        size = f"draft depth {one.depth}{width}" if one.component == DRAFT else f"dynamic {one.depth},{one.rows}"
        what = f"{one.rows:4d} rows" if one.component == VERIFY else size
        typer.echo(
            f"batch {one.batch:3d}  context {one.context:5d}  {what:14s}  {one.median_ms:9.3f} ms  "
            f"[{one.low_ms:.3f}, {one.high_ms:.3f}]  floor {one.floor_ms:.3f}  {one.status}"
        )
