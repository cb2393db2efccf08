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
    from mtp_bench.search.optimize import Optimization
    from mtp_bench.search.rules.constraints import Constraints

OBJECTIVES = ("speed", "tokens", "worst-category", "pareto")


def optimize_tree(
    profile: options.Profile = None,
    budget: Annotated[int, typer.Option(min=0, help="Most nodes (root excluded).")] = 63,
    max_depth: Annotated[int | None, typer.Option(min=0, help="Deepest tree; the heads' depth when left out.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="speed (default where a cost is known), tokens (longest step), worst-category, or pareto."),
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="Acceptance table (JSON with a kind, or acceptance.csv) in place of a trace.")
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(help="Cost table (CSV: rows, median_ms, ...) in place of the run's.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Cached tokens to take costs at; several (512,4096) give a map.")
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option("--weight", help="Count a category's prompts so often: coding=3; may repeat.")
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", help="Sequences decoded together; several (1,4,8) give a schedule.")
    ] = "1",
    kind: Annotated[
        str, typer.Option("--kind", help="static, dynamic (EAGLE), chain, or auto: the fastest of them.")
    ] = "auto",
    estimator: Annotated[
        str, typer.Option("--estimator", help="Node values: trie (paths counted), shrunk, refit, or independent.")
    ] = "trie",
    independent: Annotated[
        bool, typer.Option("--independent", help="Short for --estimator independent, as Medusa's script does.")
    ] = False,
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
    trials: Annotated[
        int, typer.Option(min=0, help="Optuna trials beside the exact search, over all workers; 0 = none.")
    ] = 100,
    unseeded: Annotated[bool, typer.Option("--unseeded", help="Do not start Optuna from the exact optimum.")] = False,
    storage: Annotated[
        str | None,
        typer.Option(help="Keep the study: journal:PATH, sqlite:///PATH (one worker), postgresql://... or mysql://..."),
    ] = None,
    study: Annotated[
        str, typer.Option(help="Name of the study in --storage; workers that name it share it.")
    ] = "mtp-bench",
    measure: Annotated[
        bool, typer.Option("--measure", help="Decode the candidates near the best for real; the fastest is taken.")
    ] = False,
    measure_limit: Annotated[int, typer.Option(min=2, help="Most prompts of --measure, balanced by category.")] = 18,
    measure_candidates: Annotated[int, typer.Option(min=1, help="Most candidates of --measure besides N = 0.")] = 6,
    model: Annotated[str | None, typer.Option("--model", help="For --measure; the run's model when left out.")] = None,
    heads: Annotated[str | None, typer.Option("--heads", help="For --measure; the run's heads when left out.")] = None,
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Topology file; the run's topology.json if left out.")
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Find the tree of at most --budget nodes with the highest predicted speed; exact, with Optuna beside it."""
    from mtp_bench.cli.acceptance import read_measured
    from mtp_bench.cli.categories import parse_weights, weigh, worst_category_and_write
    from mtp_bench.cli.measure import MeasureOptions, check_measurable, check_measured, measure_and_write
    from mtp_bench.cli.operating import pareto_and_write, range_and_write, schedule_and_write
    from mtp_bench.cli.output import emit_json
    from mtp_bench.search.rules.engine_rules import parse_rules

    constraints = parse_rules(rules, engine_rules)
    if kind not in ("auto", "static", "dynamic", "chain"):
        raise InputError(f"unknown kind {kind!r}", where="--kind", fix="use static, dynamic, chain or auto")
    if objective not in (None, *OBJECTIVES):
        raise InputError(f"objective '{objective}'", where="--objective", fix=f"choose {' or '.join(OBJECTIVES)}")
    batches = options.parse_batches(batch)
    estimator = _estimator(estimator, independent)
    contexts = options.parse_sizes(context, "--context", "contexts") if context is not None else ()
    weights = parse_weights(weight)
    measured = weigh(read_measured(profile, acceptance, cost), weights)
    if measure:
        check_measurable(measured, batches, contexts, objective)
    place = contexts[0] if contexts else measured.mean_context if cost is None else None
    kinds: dict[str, Any] = {"kind": kind, "estimator": estimator, "constraints": constraints}
    limits: dict[str, Any] = {"budget": budget, "max_depth": max_depth, "seed": seed, "out": out}
    special = objective in ("worst-category", "pareto") or len(batches) > 1 or len(contexts) > 1
    if storage is not None and (special or constraints.restricts_static):
        raise InputError(
            "only the study beside the exact search of one batch size and context is kept",
            where="--storage",
            fix="leave it out here",
        )
    if special:
        _check_question(objective, batches, contexts, weights, **kinds)
    if objective == "pareto":
        document = pareto_and_write(measured, batches, context=place, trials=trials, **limits)
    elif objective == "worst-category":
        document = worst_category_and_write(measured, context=place, batch=batches[0], trials=trials, **limits)
    elif len(contexts) > 1:
        document = range_and_write(measured, batches, contexts, **kinds, **limits)
    elif len(batches) > 1:
        document = schedule_and_write(measured, batches, context=place, **kinds, **limits)
    else:
        found, document = search_and_write(
            measured, objective=objective, context=place, batch=batches[0], trials=trials, seeded=not unseeded,
            storage=storage, study=study, weights=weights, **kinds, **limits,
        )  # fmt: skip
        if measure:
            race = MeasureOptions(measure_limit, measure_candidates, model, heads, device, seed, device_map)
            document = measure_and_write(found, document, measured, race, out)
    if json_output:
        emit_json(document)
    if measure:
        check_measured(document)


def _check_question(
    objective: str | None,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    weights: dict[str, float],
    kind: str,
    estimator: str,
    constraints: Constraints,
) -> None:
    """Refuse combinations that no search answers."""
    several = len(batches) > 1 or len(contexts) > 1
    if objective == "worst-category" and (several or weights):
        raise InputError(
            "the worst category is searched at one batch size and context, and knows no weights",
            where="--objective worst-category",
            fix="give one --batch, one --context and no --weight",
        )
    if objective in ("worst-category", "pareto") and kind not in ("auto", "static"):
        raise InputError(f"{objective} is searched among static trees", where="--kind", fix="leave --kind out")
    if objective in ("worst-category", "pareto") and (estimator != "trie" or constraints.restricts_static):
        raise InputError(
            "searched among all static trees, by paths counted",
            where=f"--objective {objective}",
            fix="leave out --estimator, --for and --rules",
        )
    if objective == "pareto" and len(contexts) > 1:
        raise InputError("a Pareto front is of one context", where="--context", fix="give one")
    if objective == "tokens":
        raise InputError(
            "the longest step is the same at every batch size and context",
            where="--objective tokens",
            fix="use --objective speed, or one --batch and --context",
        )


def _estimator(name: str, independent: bool) -> str:
    from mtp_bench.search.values.estimators import INDEPENDENT, TRIE, check_estimator

    check_estimator(name)
    if independent and name not in (TRIE, INDEPENDENT):
        raise InputError(f"--independent and --estimator {name}", where="--estimator", fix="give one of the two")
    return INDEPENDENT if independent else name


def search_and_write(
    measured: Measured, *, out: Path | None = None, objective: str | None = None, trials: int = 100,
    weights: dict[str, float] | None = None, **wanted: Any,
) -> tuple[Optimization, dict[str, Any]]:  # fmt: skip
    """Search, print, and write the topology and, unless it goes to a file ``out``, the run's optimize.json."""
    from mtp_bench.cli.categories import compared_with_unweighted
    from mtp_bench.cli.winner import expected_figures, write_winner
    from mtp_bench.progress import progress, running_totals
    from mtp_bench.search.optimize import OptimizeOptions, optimize

    chosen = objective or ("speed" if measured.cost is not None else "tokens")
    with progress("optuna", max(trials, 1), "trials") as advance:
        reached = running_totals(advance)
        found = optimize(
            measured.acceptance,
            measured.cost,
            OptimizeOptions(objective=chosen, trials=trials, **wanted),
            on_trial=lambda done: reached(done, trials),
        )
    document = found.document()
    if weights:
        document |= {"weights": weights, "maximised": f"{chosen}, prompts weighted by category"}
        document["categories"] = compared_with_unweighted(measured, found.topology, found.options)
    write_winner(measured, found.topology, expected_figures(found.best), found.exact.limits, document, out)
    _print(found, document)
    return found, document


def _print(found: Optimization, document: dict[str, Any]) -> None:
    from mtp_bench.cli.categories import print_categories
    from mtp_bench.cli.robustness import print_robustness
    from mtp_bench.cli.rules import echo_rules
    from mtp_bench.topology import draw

    exact, winner = found.exact, found.winner
    if exact.do_not_speculate:
        typer.echo("do not speculate: plain decoding is the fastest on these costs (no tree reaches 1.00x)")
    else:
        typer.echo(draw(found.tree, found.node_values))
        typer.echo(f"best tree: {_figures(winner)}")
    echo_rules(exact)
    if exact.bound_tokens_per_s is not None:
        typer.echo(f"drafts cost by width: this is within {100 * exact.gap:.2f}% of the fastest static tree")
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
            f"tokens_per_step against {held.train_tokens_per_step:.3f} on its own half (gap {held.optimism:+.3f})"
        )
        typer.echo(line + (f"; speedup {held.held_out_speedup:.3f}x" if held.held_out_speedup else ""))
    if found.robustness is not None:
        print_robustness(found.robustness, found.options.estimator)
    if found.optuna is not None:
        study, result = document["optuna"], found.optuna
        typer.echo(
            f"optuna: {study['num_trials']} trials{'' if study['seeded'] else ' unseeded'}"
            f"{f' ({result.retried} of them again, after their worker was lost)' if result.retried else ''}, best "
            f"{result.best.num_nodes} nodes, {100 * result.gap:.2f}% below the exact optimum "
            f"(found by: {result.best.origin})"
        )
    if "categories" in document:
        typer.echo(f"maximised: {document['maximised']}")
        print_categories(document["categories"])
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
