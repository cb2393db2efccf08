"""What ``optimize-tree`` says about the rules it searched under."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mtp_bench.search import ExactResult


def echo_rules(exact: ExactResult) -> None:
    """Print the rules, how far the result is proven, and the optimum without them; nothing where there were none."""
    from mtp_bench.search.rules.constrained import ConstrainedResult
    from mtp_bench.search.rules.engine_rules import ENGINE_RULES

    if not isinstance(exact, ConstrainedResult) or exact.bound is None:
        return
    bound = exact.bound
    scored = f", {exact.scored} scored" if exact.scored else ""
    proof = "no tree within the rules is better" if exact.proven else "a better one within the rules may exist"
    typer.echo(f"rules ({exact.constraints}): {exact.method}{scored}; {proof}")
    speed = "" if bound.speedup is None else f", predicted {bound.speedup:.3f}x"
    typer.echo(
        f"without them (all positions): {bound.num_nodes} nodes, depth {bound.depth}, "
        f"{bound.tokens_per_step:.3f} tokens_per_step{speed}; the rules cost {100 * exact.lost:.2f}% of "
        f"{'speed' if exact.objective == 'speed' else 'tokens_per_step'}"
    )
    engine = ENGINE_RULES.get(exact.constraints.name)
    if engine is not None:
        typer.echo(f"rules read in: {engine.source}")
        if engine.caution:
            typer.echo(f"note: {engine.caution}")
