"""``mtp-bench import``: turn another program's tree into a topology file of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def import_(
    file: Annotated[Path, typer.Argument(help="List of paths, branching vector, vLLM token tree, or a file of ours.")],
    out: Annotated[Path | None, typer.Option(help="File to write; stdout when left out.")] = None,
    format_: Annotated[str, typer.Option("--format", help="What the file holds: medusa or vllm.")] = "medusa",
    method: Annotated[str, typer.Option(help="Which heads draft the tree (medusa, eagle, ...).")] = "medusa",
    complete_prefixes: Annotated[bool, typer.Option(help="Add missing parents (lists of leaves).")] = False,
    clip_depth: Annotated[int | None, typer.Option(min=1, help="Drop nodes deeper than this.")] = None,
    clip_rank: Annotated[int | None, typer.Option(min=0, help="Drop nodes below a rank above this.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")] = False,
) -> None:
    """Read a list of paths, a dense branching vector or (--format vllm) a string of tuples; write our JSON."""
    from mtp_bench.engines import IMPORTERS
    from mtp_bench.errors import InputError
    from mtp_bench.files import read_text, sha256_bytes
    from mtp_bench.topology import TopologyDocument
    from mtp_bench.topology.check import METHODS

    if format_ not in IMPORTERS:
        raise InputError(f"no importer for {format_!r}", where="--format", fix=f"use one of: {', '.join(IMPORTERS)}")
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}", where="--method", fix=f"use one of: {', '.join(METHODS)}")
    text = read_text(file)
    imported = IMPORTERS[format_].parse(text, str(file), complete_prefixes)
    source = {"imported_from": file.name, "format": format_, "sha256": sha256_bytes(text.encode())}
    tree = imported.tree.clip(max_depth=clip_depth, max_rank=clip_rank)
    document = TopologyDocument(tree, method, source=source)
    if out is None:
        typer.echo(document.dumps(), nl=False)
    else:
        document.write(out)
    dropped = imported.tree.num_nodes - tree.num_nodes
    notes = [*imported.notes, *([f"clipping dropped {dropped} of {imported.tree.num_nodes} nodes"] if dropped else [])]
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"imported {tree.num_nodes} nodes, depth {tree.depth}", err=True)
    if json_output:
        target = str(out) if out else None
        facts = {"id": tree.id, "num_nodes": tree.num_nodes, "depth": tree.depth}
        typer.echo(json.dumps(facts | {"out": target, "notes": notes}, ensure_ascii=False))
