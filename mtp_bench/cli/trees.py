"""``mtp-bench trees``: list the shipped topologies, show one, validate files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mtp_bench.topology import Defect, TopologyDocument

app = typer.Typer(help="List, draw and check topologies.", no_args_is_help=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")]


@app.command("list")
def list_trees(json_output: JsonFlag = False) -> None:
    """List the shipped topologies with their size and source."""
    from mtp_bench.topology import load, named_trees

    documents = {name: load(str(path)) for name, path in named_trees().items()}
    if json_output:
        rows = [_facts(document) | {"name": name} for name, document in documents.items()]
        typer.echo(json.dumps({"trees": rows}, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "N", "depth", "nodes per depth", "tokens_per_step", "source")
    for name, document in documents.items():
        tree = document.tree
        expected = document.expected.get("acceptance_length_incl_bonus")
        table.add_row(
            name, str(tree.num_nodes), str(tree.depth), ",".join(map(str, tree.level_widths)),
            f"{expected:.4f}" if expected else "", document.source.get("project", ""),
        )  # fmt: skip
    # Of a fixed width, like all tables here: in a narrow terminal long lines wrap, where narrow columns would crumble.
    Console(width=110, highlight=False).print(table)
    typer.echo("tokens_per_step: expected by the rates that the tree was made from, where it was made from rates")


@app.command()
def show(
    topology: Annotated[
        str, typer.Argument(help="A file, a run folder, a shipped name, chain:4, dynamic:5,4,12 or none.")
    ],
    json_output: JsonFlag = False,
) -> None:
    """Draw a topology and print what is known about it."""
    from mtp_bench.topology import DynamicTree, draw, load

    document = load(topology)
    if isinstance(document.topology, DynamicTree):
        _show_dynamic(document, json_output)
        return
    if json_output:
        paths = [list(path) for path in document.tree.paths]
        typer.echo(json.dumps(_facts(document) | {"name": topology, "paths": paths}, ensure_ascii=False))
        return
    tree = document.tree
    typer.echo(f"{topology}: {tree.num_nodes} nodes ({tree.rows} rows per step), depth {tree.depth}, {document.method}")
    widths = ", ".join(map(str, tree.level_widths)) or "none"
    typer.echo(f"nodes per depth {widths}; {len(tree.leaves)} leaves; ranks up to {tree.max_rank}")
    typer.echo(f"id {tree.id}")
    for title in ("source", "expected", "limits", "profile"):
        for key, value in getattr(document, title).items():
            typer.echo(f"{title}.{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    typer.echo(f"\n{draw(tree)}")


def _show_dynamic(document: TopologyDocument, json_output: bool) -> None:
    tree = document.topology
    facts = document.as_dict()
    if json_output:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    body = facts["dynamic"]
    typer.echo(
        f"{tree}: the {body['num_nodes']} most probable of a pool of nodes chosen in every step, {document.method}"
    )
    typer.echo(f"depth {body['depth']}, top_k {body['top_k']}, {body['num_nodes'] + 1} rows per step")
    typer.echo(f"id {facts['id']}")


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(help="Topology files (ours or a bare list of paths) or shipped names.")],
    top_k: Annotated[int | None, typer.Option(min=1, help="Candidates that each head offers.")] = None,
    heads: Annotated[int | None, typer.Option(min=0, help="Number of heads: the deepest possible node.")] = None,
    complete_prefixes: Annotated[bool, typer.Option(help="Accept missing parents (lists of leaves).")] = False,
    json_output: JsonFlag = False,
) -> None:
    """List every defect of each file with its JSON pointer; exit code 2 if any of them is an error."""
    limits: dict[str, Any] = {"top_k": top_k, "heads": heads, "complete_prefixes": complete_prefixes}
    reports = [_validate(file, limits) for file in files]
    if json_output:
        typer.echo(json.dumps({"files": reports}, ensure_ascii=False))
    else:
        for report in reports:
            _print_report(report)
    if not all(report["ok"] for report in reports):
        raise typer.Exit(2)


def _validate(file: str, limits: dict[str, Any]) -> dict[str, Any]:
    from mtp_bench.topology.check import find_defects, topology_of
    from mtp_bench.topology.document import read_value
    from mtp_bench.topology.named import named_trees
    from mtp_bench.topology.validate import errors_of

    path = Path(file)
    if not path.exists():
        path = named_trees().get(file, path)
    value = read_value(path)
    defects = find_defects(value, **limits)
    report: dict[str, Any] = {"file": file, "ok": not errors_of(defects), "defects": _as_dicts(defects)}
    if report["ok"]:
        tree = topology_of(value, complete_prefixes=limits["complete_prefixes"])
        given = value["tree"]["paths"] if isinstance(value, dict) and "tree" in value else value
        added = tree.num_nodes - len(given) if isinstance(given, list) else 0
        report |= {"num_nodes": tree.num_nodes, "depth": tree.depth, "id": tree.id, "nodes_added": added}
    return report


def _as_dicts(defects: Sequence[Defect]) -> list[dict[str, str]]:
    return [defect.as_dict() for defect in defects]


def _print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if report["ok"]:
        added = f", {report['nodes_added']} added as missing parents" if report["nodes_added"] else ""
        console.print(f"{escape(report['file'])}: ok, {report['num_nodes']} nodes, depth {report['depth']}{added}")
    else:
        console.print(f"{escape(report['file'])}: cannot be used")
    if report["defects"]:
        table = Table("where", "severity", "what", "what to do")
        for defect in report["defects"]:
            cells = (defect["pointer"] or "(document)", defect["severity"], defect["message"], defect["fix"])
            table.add_row(*map(escape, cells))
        console.print(table)


def _facts(document: TopologyDocument) -> dict[str, Any]:
    tree = document.tree
    return {
        "id": tree.id,
        "method": document.method,
        "num_nodes": tree.num_nodes,
        "depth": tree.depth,
        "level_widths": list(tree.level_widths),
        "leaves": len(tree.leaves),
        "max_rank": tree.max_rank,
        "expected": dict(document.expected),
        "source": dict(document.source),
    }
