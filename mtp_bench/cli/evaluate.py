"""``mtp-bench evaluate``: score given trees on a run's trace and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.errors import InputError


def evaluate(
    trees: Annotated[
        list[str],
        typer.Argument(help="Files (of one tree, or an object of many), shipped names, chain:4, dynamic:5,4,12, none."),
    ],
    profile: options.Profile = None,
    acceptance: Annotated[Path | None, typer.Option(help="Acceptance table in place of a trace.")] = None,
    cost: Annotated[Path | None, typer.Option(help="Cost table in place of the run's.")] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Cached tokens to take costs at.")] = None,
    batch: options.Batch = 1,
    against: Annotated[
        str | None, typer.Option(help="optimum: set each tree against the best tree of its own size.")
    ] = None,
    seed: options.Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the table and plot of --against.")] = None,
    json_output: options.Json = False,
) -> None:
    """Replay trees on the same trace; differences to the first one are paired."""
    from mtp_bench.cli.acceptance import read_measured
    from mtp_bench.cli.output import emit_json
    from mtp_bench.cli.rivals import compare_with_optimum
    from mtp_bench.search import MarginalSource, evaluate_all
    from mtp_bench.topology.collection import resolve_all
    from mtp_bench.trace import AcceptanceTable

    if against not in (None, "optimum"):
        raise InputError(f"nothing to compare with is called {against!r}", where="--against", fix="use optimum")
    given = {spec: resolve_all(spec) for spec in trees}
    topologies = {name: tree for found in given.values() for name, tree in found.items()}
    measured = read_measured(profile, acceptance, cost)
    scored = measured.acceptance
    source = MarginalSource(scored.per_rank) if isinstance(scored, AcceptanceTable) else scored
    place = context if context is not None else measured.mean_context if cost is None else None
    if against is not None:
        single = [name for found in given.values() for name in found if len(found) == 1]
        document = compare_with_optimum(measured, topologies, single, out=out, context=place, batch=batch, seed=seed)
        if json_output:
            emit_json(document)
        return
    found = evaluate_all(list(topologies.values()), source, measured.cost, context=place, batch=batch, seed=seed)
    for spec, one in zip(topologies, found, strict=True):
        text = f"{spec}: {one.num_nodes} nodes, depth {one.depth}, {one.tokens_per_step:.4f} tokens_per_step"
        if one.tokens_per_step_ci:
            text += f" [{one.tokens_per_step_ci[0]:.3f}, {one.tokens_per_step_ci[1]:.3f}]"
        if one.speedup_predicted is not None:
            text += f", step {one.step_ms:.2f} ms, predicted {one.speedup_predicted:.3f}x"
        if one.speed_ratio is not None:
            low, high = one.speed_ratio.bounds
            verdict = "tie" if low <= 1 <= high else "faster" if low > 1 else "slower"
            text += f", {one.speed_ratio.value:.3f} of the first's speed [{low:.3f}, {high:.3f}]: {verdict}"
        elif one.difference_tokens_per_step is not None:
            low, high = one.difference_tokens_per_step.bounds
            text += f", {one.difference_tokens_per_step.value:+.3f} tokens to the first [{low:+.3f}, {high:+.3f}]"
        typer.echo(text)
        for note in one.notes:
            typer.echo(f"  note: {note}")
    if json_output:
        emit_json({"trees": [{"tree": spec, **one.document()} for spec, one in zip(topologies, found, strict=True)]})
