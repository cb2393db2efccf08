"""``mtp-bench export``: write a topology in the format of another engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def export(
    to: Annotated[str, typer.Option("--to", help="Engine whose format to write: medusa.")],
    topology: Annotated[
        str | None,
        typer.Option(help="A file, a run folder, a shipped name or chain:4; the newest run's topology when left out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; stdout when left out.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")] = False,
) -> None:
    """Write a topology so that another engine loads it; refuses what the engine cannot hold."""
    from mtp_bench.engines import EXPORTERS
    from mtp_bench.errors import InputError
    from mtp_bench.files import write_text
    from mtp_bench.topology import load

    if to not in EXPORTERS:
        raise InputError(f"no exporter for {to!r}", where="--to", fix=f"use one of: {', '.join(EXPORTERS)}")
    spec = topology if topology is not None else str(newest_topology(Path("results")))
    document = load(spec)
    exported = EXPORTERS[to].export(document)
    if out is None:
        typer.echo(exported.text, nl=False)
    else:
        write_text(out, exported.text)
    for note in exported.notes:
        typer.echo(f"note: {note}", err=True)
    summary = f"{document.tree.num_nodes} nodes of {spec} for {to} (read by {EXPORTERS[to].reads})"
    typer.echo(f"exported {summary}" + (f" to {out}" if out else ""), err=True)
    if json_output:
        target = str(out) if out else None
        facts = {"to": to, "topology": spec, "out": target, "id": document.tree.id, "notes": list(exported.notes)}
        typer.echo(json.dumps(facts, ensure_ascii=False))


def newest_topology(results: Path) -> Path:
    """The ``topology.json`` that was written last among the runs in ``results``.

    Raises:
        InputError: there is none.
    """
    from mtp_bench.errors import InputError
    from mtp_bench.topology.named import RUN_TOPOLOGY

    found = list(results.glob(f"*/{RUN_TOPOLOGY}"))
    if not found:
        fix = "run mtp-bench optimize-tree first, or name one with --topology"
        raise InputError("no run with a topology", where=f"{results}/", fix=fix)
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path))
