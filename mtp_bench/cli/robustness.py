"""What ``optimize-tree`` prints about its estimators and about how firm the chosen size is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mtp_bench.search.robustness.chosen_size import ChosenSizes
    from mtp_bench.search.robustness.comparison import Compared
    from mtp_bench.search.robustness.summary import Robustness
    from mtp_bench.search.values.refit import Refit
    from mtp_bench.trace import Interval


FIRST = "trie"  # what the others are compared with


def print_robustness(found: Robustness, estimator: str) -> None:
    """The estimators' table, the rounds of a refit, and the line on the chosen size."""
    _print_estimators(found.estimators, estimator)
    better = _faster(found.estimators) if estimator == FIRST else None
    if better is not None:
        name, ratio = better
        gain, low, high = (100 * (value - 1) for value in (ratio.value, *ratio.bounds))
        typer.echo(
            f"held out, {name} is faster than {FIRST} by {gain:.1f}% [{low:.1f}, {high:.1f}]: try --estimator {name}"
        )
    if found.refit is not None:
        typer.echo(f"refit: {_rounds(found.refit)}")
    if found.sizes is not None:
        typer.echo(_sizes(found.sizes))


def _faster(compared: list[Compared]) -> tuple[str, Interval] | None:
    """The estimator whose tree replays faster than the first one's here, and for certain does so held out."""
    here = compared[0].tokens_per_s
    found = [
        (one.estimator, one.held_out_speed_ratio)
        for one in compared
        if one.held_out_speed_ratio is not None and one.tokens_per_s is not None and here is not None
        if one.held_out_speed_ratio.low > 1 and one.tokens_per_s > here
    ]
    return max(found, key=lambda one: one[1].value, default=None)


def _print_estimators(compared: list[Compared], estimator: str) -> None:
    from rich.console import Console
    from rich.table import Table

    headers = ("estimator", "N (halves)", "depth", "own estimate", "replay", "tokens/s", "train", "held out", "gap")
    table = Table(*headers, "held out - trie's", "its speed")
    for one in compared:
        difference, ratio = one.held_out_difference, one.held_out_speed_ratio
        table.add_row(
            one.estimator + (" *" if one.estimator == estimator else ""),
            f"{one.num_nodes} ({one.num_nodes_halves[0]}, {one.num_nodes_halves[1]})",
            str(one.depth),
            f"{one.tokens_per_step_estimated:.3f} ({100 * one.estimate_error:+.1f}%)",
            f"{one.tokens_per_step:.3f}",
            "" if one.tokens_per_s is None else f"{one.tokens_per_s:.2f}",
            f"{one.train_tokens_per_step:.3f}",
            f"{one.held_out_tokens_per_step:.3f}",
            f"{one.optimism:+.3f}",
            "" if difference is None else f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]",
            "" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
        )
    Console(width=150, highlight=False).print(table)
    typer.echo(
        "tokens_per_step by estimator (* = searched with); own estimate: what it promises, against its tree's replay; "
        "train and held out: chosen on half of the prompts; its speed: held out, over that of the trie's trees"
    )


def _rounds(found: Refit) -> str:
    names = ["all positions", *(f"round {place}" for place in range(1, len(found.rounds)))]
    said = []
    for name, one in zip(names, found.rounds, strict=True):
        speed = f", {one.tokens_per_s:.2f} tokens/s" if one.tokens_per_s else ""
        said.append(f"{name}: {one.num_nodes} nodes, {one.tokens_per_step:.3f} tokens_per_step{speed}")
    return "; ".join(said) + f"; kept: {names[found.best]}"


def _sizes(found: ChosenSizes) -> str:
    low, high = found.num_nodes_ci
    return (
        f"chosen size: {found.resamples} resamples of the prompts (seed {found.seed}) choose {found.best} nodes again "
        f"in {100 * found.same_size:.0f}%, a size within 1% of it in {100 * found.within_band:.0f}%, "
        f"{low} to {high} nodes in 95%; 95% of their sizes cost at most {100 * found.loss_95:.1f}% here"
    )
