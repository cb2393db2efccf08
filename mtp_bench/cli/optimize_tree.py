"""``mtp-bench optimize-tree``: the fastest tree for a run's acceptance rates and costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_bench.cli import options
from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.search import NodeMargin
    from mtp_bench.search.constraints import Constraints
    from mtp_bench.search.optimize import Optimization


def optimize_tree(
    profile: options.Profile = None,
    budget: Annotated[int, typer.Option(min=0, help="Most nodes (root excluded).")] = 63,
    max_depth: Annotated[int | None, typer.Option(min=0, help="Deepest tree; the heads' depth when left out.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="speed (default where a cost is known) or tokens (longest expected step).")
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="Acceptance table (JSON with a kind, or acceptance.csv) in place of a trace.")
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(help="Cost table (CSV: rows, median_ms, ...) in place of the run's.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Cached tokens to take costs at; the run's mean if left out.")
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", help="Sequences decoded together; several (1,4,8) give a schedule.")
    ] = "1",
    kind: Annotated[
        str, typer.Option("--kind", help="static, dynamic (EAGLE), chain, or auto: the fastest of them.")
    ] = "auto",
    engine_rules: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Only what this engine loads: medusa, eagle1, vllm, vllm-0.20, sglang, tensorrt-llm or "
            "tensorrt-llm-1.2.",
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            "--rules",
            help="Rules for the tree, e.g. contiguous,rows-multiple=8; also uniform, chain, max-children, max-width, "
            "top-k, max-nodes, max-depth.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=0, help="Optuna trials beside the exact search; 0 = none.")] = 100,
    unseeded: Annotated[bool, typer.Option("--unseeded", help="Do not start Optuna from the exact optimum.")] = False,
    storage: Annotated[str | None, typer.Option(help="Optuna storage URL of a resumable study.")] = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Topology file; topology.json in the run if left out.")
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Find the tree of at most --budget nodes with the highest predicted speed; exact, with Optuna beside it."""
    from mtp_bench.cli.acceptance import read_measured
    from mtp_bench.cli.output import emit_json
    from mtp_bench.search.engine_rules import parse_rules

    constraints = parse_rules(rules, engine_rules)
    if kind not in ("auto", "static", "dynamic", "chain"):
        raise InputError(f"unknown kind {kind!r}", where="--kind", fix="use static, dynamic, chain or auto")
    batches = options.parse_batches(batch)
    measured = read_measured(profile, acceptance, cost)
    place = context if context is not None else measured.mean_context if cost is None else None
    if len(batches) > 1:
        document = schedule_and_write(
            measured, batches, budget=budget, max_depth=max_depth, context=place, kind=kind, seed=seed, out=out,
            constraints=constraints,
        )  # fmt: skip
        if json_output:
            emit_json(document)
        return
    _, document = search_and_write(
        measured, budget=budget, max_depth=max_depth, objective=objective, context=place, batch=batches[0],
        trials=trials, seeded=not unseeded, kind=kind, storage=storage, seed=seed, out=out,
        constraints=constraints,
    )  # fmt: skip
    if json_output:
        emit_json(document)


def search_and_write(
    measured: Measured, *, out: Path | None = None, objective: str | None = None, trials: int = 100, **wanted: Any
) -> tuple[Optimization, dict[str, Any]]:
    """Search, print, and write topology.json and (in a run folder) optimize.json."""
    from mtp_bench.files import write_json
    from mtp_bench.progress import progress
    from mtp_bench.search.optimize import OptimizeOptions, optimize

    chosen = objective or ("speed" if measured.cost is not None else "tokens")
    with progress("optuna", max(trials, 1), "trials") as advance:
        found = optimize(
            measured.acceptance,
            measured.cost,
            OptimizeOptions(objective=chosen, trials=trials, **wanted),
            on_trial=lambda _: advance(1),
        )
    document = found.document()
    topology = out or (measured.run.topology if measured.run else None)
    if topology is not None:
        _write_topology(topology, found, measured)
        document["topology"] = str(topology)
    if measured.run is not None:
        write_json(measured.run.optimize, {"schema": "mtp-bench/optimize", "version": 1, **document})
    _print(found, document)
    return found, document


def schedule_and_write(
    measured: Measured,
    batches: tuple[int, ...],
    *,
    out: Path | None,
    context: int | None,
    constraints: Constraints,
    **wanted: Any,
) -> dict[str, Any]:
    """Search every batch size, print, and write schedule.json with its plot (in the run, or to ``out``)."""
    from mtp_bench.files import write_json
    from mtp_bench.report.schedule import write_schedule
    from mtp_bench.search.optimize import OptimizeOptions
    from mtp_bench.search.schedule import schedule
    from mtp_bench.trace import RankTrace

    if not isinstance(measured.acceptance, RankTrace) or measured.cost is None:
        raise InputError(
            "a schedule needs a trace and costs",
            where="--batch",
            fix="give --profile, and --cost with the cost.csv of mtp-bench measure-cost --batch 1,4,8",
        )
    options = OptimizeOptions(context=context, constraints=constraints, **wanted)
    found = schedule(measured.acceptance, measured.cost, options, batches)
    document = {"schema": "mtp-bench/schedule", "version": 1, "context": context, **wanted, **found.document()}
    document |= {"constraints": constraints.document(), "for": constraints.name or None}
    path = out or (measured.run.schedule if measured.run else None)
    if path is not None:
        write_json(path, document)
        write_schedule(document, path.parent)
    _print_schedule(document)
    return document


def _print_schedule(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("batch", "topology", "N", "depth", "tokens_per_step", "step ms", "tokens/s each", "predicted speedup")
    for cell in document["cells"]:
        if cell["measured"]:
            low, high = cell["speedup_predicted_ci"] or (cell["speedup_predicted"],) * 2
            table.add_row(
                str(cell["batch"]), cell["name"], str(cell["num_nodes"]), str(cell["depth"]),
                f"{cell['tokens_per_step']:.3f}", f"{cell['step_ms']:.2f}", f"{cell['tokens_per_s']:.2f}",
                f"{cell['speedup_predicted']:.3f}x [{low:.2f}, {high:.2f}]",
            )  # fmt: skip
    Console(width=150, highlight=False).print(table)
    for one in document["batch_schedule"]:
        sizes = f"batch {one['min_batch_size']} to {one['max_batch_size']}"
        what = f"{one['num_nodes']} nodes, depth {one['depth']}" if one["num_nodes"] else "do not speculate"
        typer.echo(
            f"{sizes}: {one['name']} ({what}), at most {100 * one['speed_lost']:.1f}% below the best of each size"
        )


def _write_topology(path: Path, found: Optimization, measured: Measured) -> None:
    from mtp_bench.topology import TopologyDocument

    winner = found.best
    expected: dict[str, Any] = {"acceptance_length_incl_bonus": round(winner.tokens_per_step, 6)}
    if winner.tokens_per_step_ci:
        expected["acceptance_length_ci95"] = [round(value, 6) for value in winner.tokens_per_step_ci]
    if winner.speedup_predicted is not None and winner.step_ms is not None and winner.tokens_per_s is not None:
        expected["step_seconds"] = {"predicted": winner.step_ms / 1e3}
        expected["tokens_per_second"] = winner.tokens_per_s
        expected["speedup_vs_autoregressive"] = winner.speedup_predicted
    limits = {"max_nodes": found.exact.max_nodes, "max_depth": found.exact.max_depth}
    TopologyDocument(found.topology, measured.method, expected, measured.provenance, limits).write(path)


def _print(found: Optimization, document: dict[str, Any]) -> None:
    from mtp_bench.cli.rules import echo_rules
    from mtp_bench.topology import draw

    exact, winner = found.exact, found.winner
    if exact.do_not_speculate:
        typer.echo("do not speculate: plain decoding is the fastest on these costs (no tree reaches 1.00x)")
    else:
        typer.echo(draw(found.tree, found.node_values))
        typer.echo(f"best tree: {_figures(winner)}")
    echo_rules(exact)
    small = found.smallest
    if small.num_nodes != winner.num_nodes:
        sizes = exact.band.sizes
        typer.echo(f"within 1% of it: {sizes[0]} to {sizes[-1]} nodes; the smallest: {_figures(small)}")
    for label, margin in (("last node kept", exact.last_kept), ("first node left out", exact.first_out)):
        if margin is not None:
            typer.echo(f"{label}: {_marginal(margin)}")
    _print_kinds(found)
    if found.held_out is not None:
        held = found.held_out
        line = (
            f"held out (chosen on one half of the prompts, replayed on the other): {held.held_out_tokens_per_step:.3f} "
            f"tokens_per_step against {held.train_tokens_per_step:.3f} on its own half"
        )
        typer.echo(line + (f"; speedup {held.held_out_speedup:.3f}x" if held.held_out_speedup else ""))
    if found.optuna is not None:
        study, result = document["optuna"], found.optuna
        typer.echo(
            f"optuna: {study['num_trials']} trials{'' if study['seeded'] else ' unseeded'}, best "
            f"{result.best.num_nodes} nodes, {100 * result.gap:.2f}% below the exact optimum "
            f"(found by: {result.best.origin})"
        )
    for note in dict.fromkeys([*exact.notes, *winner.notes]):
        typer.echo(f"note: {note}")
    if "topology" in document:
        typer.echo(f"topology: {document['topology']}")


def _print_kinds(found: Optimization) -> None:
    """The best of each kind, where there is more than the static tree."""
    from mtp_bench.topology import name_of

    if len(found.kinds) > 1 or (found.kinds and found.kinds[0].kind != "static"):
        for place, one in enumerate(found.kinds):
            label = "fastest kind" if place == 0 else "runner-up"
            text = f"{label}: {one.kind} {name_of(one.topology)}: {_figures(one.evaluation)}"
            if one.evaluation.speed_ratio is not None:
                low, high = one.evaluation.speed_ratio.bounds
                text += f"; {one.evaluation.speed_ratio.value:.3f} of its speed [{low:.3f}, {high:.3f}]"
            typer.echo(text)
    if found.dynamic is not None and found.dynamic.optuna_gap is not None:
        typer.echo(
            f"dynamic trees: {found.dynamic.scored} replayed, best {found.dynamic.best}; optuna alone, "
            f"{found.dynamic.optuna_trials} trials: {100 * found.dynamic.optuna_gap:.2f}% below it"
        )


def _figures(one: Any) -> str:
    text = f"{one.num_nodes} nodes, depth {one.depth}, {one.tokens_per_step:.3f} tokens_per_step"
    if one.tokens_per_step_ci:
        text += f" [{one.tokens_per_step_ci[0]:.3f}, {one.tokens_per_step_ci[1]:.3f}]"
    if one.speedup_predicted is not None:
        text += f", step {one.step_ms:.2f} ms, {one.tokens_per_s:.1f} tokens/s, predicted {one.speedup_predicted:.3f}x"
        if one.speedup_predicted_ci:
            text += f" [{one.speedup_predicted_ci[0]:.3f}, {one.speedup_predicted_ci[1]:.3f}]"
    return text


def _marginal(margin: NodeMargin) -> str:
    text = f"{list(margin.path)} accepted with probability {margin.value:.4f}"
    if margin.threshold is None or margin.delta_ms is None:
        return text
    verdict = "pays" if margin.pays else "does not pay"
    return f"{text}; it adds {margin.delta_ms:.3f} ms, so it needs {margin.threshold:.4f}: {verdict}"
