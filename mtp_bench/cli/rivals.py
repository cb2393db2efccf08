"""``mtp-bench evaluate --against optimum``: given trees against the best tree of their size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtp_bench.cli.command_line import command_line
from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.search.rivals import Rivalry
    from mtp_bench.topology import Topology

MOST_LINES = 20


def compare_with_optimum(
    measured: Measured, topologies: dict[str, Topology], highlight: list[str], *, out: Path | None, **place: Any
) -> dict[str, Any]:
    """Compare, print, and write ``trees.csv``, ``optimum.csv``, ``rivals.json`` and the plot to ``out``."""
    from mtp_bench.search.rivals import against_optimum
    from mtp_bench.topology import StaticTree
    from mtp_bench.trace import RankTrace

    if not isinstance(measured.acceptance, RankTrace):
        raise InputError("paired comparisons need a trace", where="--against", fix="give --profile with a run")
    trees = {name: one for name, one in topologies.items() if isinstance(one, StaticTree)}
    found = against_optimum(trees, measured.acceptance, measured.cost, **place)
    document = {
        "schema": "mtp-bench/rivals",
        "version": 1,
        "command": command_line(),
        "run": str(measured.run.path) if measured.run else None,
        "summary": found.summary(),
        "highlight": [name for name in highlight if name in trees],
        "fastest": found.fastest.document() if found.fastest else None,
        "trees": [rival.document() for rival in found.rivals],
        "optimum": [one.document() for one in found.curve],
    }
    if out is not None:
        _write(document, out)
    _print(found)
    return document


def _write(document: dict[str, Any], out: Path) -> None:
    from mtp_bench.files import write_json
    from mtp_bench.report.rivals import write_rivals

    tables = {"trees", "optimum"}
    write_json(out / "rivals.json", {key: value for key, value in document.items() if key not in tables})
    write_rivals(document, out)


def _print(found: Rivalry) -> None:
    for rival in found.rivals[:MOST_LINES]:
        one, peer, difference = rival.evaluation, rival.optimum, rival.evaluation.difference_tokens_per_step
        text = f"{rival.name}: {one.num_nodes} nodes"
        if one.num_nodes < rival.given_nodes:
            text += f" (of {rival.given_nodes}; the rest lies beyond the heads' depth or ranks)"
        text += f", {one.tokens_per_step:.4f} tokens_per_step; the best of {peer.num_nodes}: {peer.tokens_per_step:.4f}"
        if difference is not None:
            low, high = difference.bounds
            text += f", {difference.value:+.4f} to it [{low:+.4f}, {high:+.4f}]: {rival.verdict}"
        text += f"; {rival.nodes_to_match} nodes are enough for as much"
        typer.echo(text)
    if len(found.rivals) > MOST_LINES:
        typer.echo(f"... and {len(found.rivals) - MOST_LINES} more (--out writes all)")
    facts = found.summary()
    above = "none" if facts["never_above_the_optimum_on_all_positions"] else "SOME"
    typer.echo(
        f"{facts['trees']} trees against the best of their size: {above} above it over all positions; by replay "
        f"{facts['replay_below_the_optimum']} below it, with a paired 95% interval that excludes zero for "
        f"{facts['interval_excludes_zero']} (ties {facts['ties']}, the same tree {facts['same_tree']}, above "
        f"{facts['interval_favours_the_tree']}); with the best chosen on the other half of the prompts "
        f"{facts['held_out_interval_excludes_zero']} (above {facts['held_out_interval_favours_the_tree']})"
    )
    given = found.fastest_rival
    if found.fastest is not None and given is not None and given.to_fastest is not None:
        share, (low, high) = given.to_fastest.value, given.to_fastest.bounds
        typer.echo(
            f"speed: the optimum has {found.fastest.num_nodes} nodes, predicted "
            f"{found.fastest.speedup_predicted:.3f}x; the fastest given tree is {given.name} "
            f"({given.evaluation.num_nodes} nodes), {share:.3f} of its speed [{low:.3f}, {high:.3f}]; "
            f"{facts['slower_than_the_fastest']} of {facts['with_known_cost']} with a known cost are really slower"
        )
