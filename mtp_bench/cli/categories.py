"""``optimize-tree`` with categories: weights, the worst category, and what each category gains or loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.search.optimize import OptimizeOptions
    from mtp_bench.topology import Topology


def parse_weights(texts: Sequence[str] | None) -> dict[str, float]:
    """``["coding=3"]`` -> {"coding": 3.0}.

    Raises:
        InputError: not of that form, or a category twice.
    """
    weights: dict[str, float] = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            name = ""
        if not name or name in weights:
            raise InputError(f"{text!r} is no weight", where="--weight", fix="write e.g. --weight coding=3, once each")
        weights[name] = weight
    return weights


def weigh(measured: Measured, weights: dict[str, float]) -> Measured:
    """The same with every prompt counted as its category's weight says.

    Raises:
        InputError: an unknown category, or no trace to weight.
    """
    from mtp_bench.trace import RankTrace

    if not weights:
        return measured
    if not isinstance(measured.acceptance, RankTrace):
        raise InputError(
            "an acceptance table knows no categories", where="--weight", fix="search on a profiled run or a trace.npz"
        )
    provenance = measured.provenance | {"category_weights": weights}
    return replace(measured, acceptance=measured.acceptance.weighted(weights), provenance=provenance)


def compared_with_unweighted(measured: Measured, chosen: Topology, options: OptimizeOptions) -> list[dict[str, Any]]:
    """By category, the replay of ``chosen`` beside the best topology of all prompts counted alike."""
    from mtp_bench.search.by_category.categories import compare_categories
    from mtp_bench.search.optimize import best_of_kinds
    from mtp_bench.trace import RankTrace

    assert isinstance(measured.acceptance, RankTrace)
    plain = replace(measured.acceptance, weights=None)
    reference = best_of_kinds(plain, measured.cost, replace(options, trials=0))
    assert reference is not None  # only a search that must draft can find nothing
    cost = measured.cost if options.objective == "speed" else None
    lines = compare_categories(
        plain, cost, chosen, reference.topology, context=options.context, batch=options.batch, seed=options.seed
    )
    return [one.document() for one in lines]


def print_categories(lines: list[dict[str, Any]]) -> None:
    """One line per category."""
    from rich.console import Console
    from rich.table import Table

    table = Table("category", "prompts", "tokens_per_step", "predicted speedup", "against the unweighted optimum")
    for one in lines:
        speedup, gain = one["speedup_predicted"], one["gain"]
        table.add_row(
            one["category"], str(one["prompts"]), f"{one['tokens_per_step']:.3f}",
            "" if speedup is None else f"{speedup:.3f}x",
            "" if gain is None
            else f"{100 * (gain['value'] - 1):+.1f}% [{100 * (gain['low'] - 1):+.1f}, {100 * (gain['high'] - 1):+.1f}]",
        )  # fmt: skip
    Console(width=110, highlight=False).print(table)


def worst_category_and_write(
    measured: Measured, *, budget: int, max_depth: int | None, context: int | None, batch: int, trials: int,
    seed: int, out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Maximise the slowest category's speed, print, and write as any search for one tree does."""
    from mtp_bench.cli.winner import expected_figures, write_winner
    from mtp_bench.search.by_category.worst_category import held_out_worst, worst_category, worst_category_optuna
    from mtp_bench.search.evaluate import evaluate
    from mtp_bench.search.optimize import OptimizeOptions
    from mtp_bench.trace import RankTrace

    if not isinstance(measured.acceptance, RankTrace):
        raise InputError(
            "an acceptance table knows no categories",
            where="--objective worst-category",
            fix="search on a profiled run or a trace.npz",
        )
    trace, cost = measured.acceptance, measured.cost
    limits: dict[str, Any] = {"max_nodes": budget, "max_depth": max_depth, "context": context, "batch": batch}
    found = worst_category(trace, cost, **limits)
    winner = evaluate(found.tree, trace, cost, context=context, batch=batch, seed=seed)
    question = OptimizeOptions(
        budget, max_depth, context, batch, "tokens" if cost is None else "speed", kind="static", seed=seed
    )
    lines = compared_with_unweighted(measured, found.tree, question)
    place = {"budget": budget, "context": context, "batch": batch}
    document: dict[str, Any] = {"objective": "worst-category", **place, **winner.document(), "kind": "static"}
    document |= {"worst_category": found.document(), "categories": lines, "optuna_worst_category": None}
    document["held_out_worst_category"] = held_out_worst(trace, cost, seed=seed, **limits)
    if trials:
        tree, value = worst_category_optuna(trace, cost, trials=trials, seed=seed, **limits)
        study = {"trials": trials, "seeded": False, "value": value, "num_nodes": tree.num_nodes, "depth": tree.depth}
        document["optuna_worst_category"] = study | {
            "gap": 1 - value / found.value,
            "gap_to_bound": 1 - value / found.bound,
        }
    write_winner(measured, found.tree, expected_figures(winner), {"max_nodes": budget}, document, out)
    _print_worst(document)
    return document


def _print_worst(document: dict[str, Any]) -> None:
    one = document["worst_category"]
    other, held, study = (
        one["unweighted_optimum"],
        document["held_out_worst_category"],
        document["optuna_worst_category"],
    )
    typer.echo(f"maximised: {one['maximised']}")
    typer.echo(
        f"best tree: {document['num_nodes']} nodes, depth {document['depth']}: {one['value']:.4f} ({one['category']}); "
        f"no tree exceeds {one['upper_bound']:.4f}, so at most {100 * one['gap_to_bound']:.3f}% are left"
    )
    typer.echo(
        f"the unweighted optimum ({other['num_nodes']} nodes, depth {other['depth']}) has {other['value']:.4f} "
        f"({other['category']})"
    )
    if study:
        typer.echo(f"optuna, unseeded: {study['trials']} trials, {100 * study['gap']:.2f}% below the tree above")
    if held:
        typer.echo(
            f"held out (chosen on one half of the prompts, replayed on the other), least of any category: "
            f"{held['worst_category']:.4f}; the unweighted optimum chosen likewise: {held['unweighted']:.4f}"
        )
    print_categories(document["categories"])
    if "topology" in document:
        typer.echo(f"topology: {document['topology']}")
