"""``mtp-bench inspect``: what a folder or file is, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    path: Annotated[
        str | None,
        typer.Argument(help="A model or heads folder, a weight file, a model's alias, or the name of shipped heads."),
    ] = None,
    aliases: Annotated[bool, typer.Option("--aliases", help="List the model names that --model knows.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")] = False,
) -> None:
    """Tell what a path is: its heads, layers, parameters, bytes, and for which base model."""
    from mtp_bench.errors import InputError

    if aliases:
        _list_aliases(json_output)
        return
    if path is None:
        raise InputError("nothing to inspect", where="PATH", fix="give a folder or file, or --aliases")
    from mtp_bench.heads.inspection import describe, inspect_path
    from mtp_bench.heads.shipped import shipped_heads
    from mtp_bench.models.aliases import known

    if known(path) and not Path(path).exists():
        _show_alias(path, json_output)
        return
    found = inspect_path(shipped_heads(path) or Path(path))
    if json_output:
        for warning in found.heads.warnings if found.heads else ():
            typer.echo(f"warning {warning}", err=True)
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        typer.echo(describe(found))


def _show_alias(alias: str, json_output: bool) -> None:
    """What the table of aliases knows of a model: nothing is fetched."""
    from mtp_bench.models.aliases import ALIASES, config_dict

    shape, config = ALIASES[alias.lower()], config_dict(alias)
    if json_output:
        facts = {"alias": alias, "hub_id": shape.hub_id, "parameters": shape.parameters, "config": config}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    typer.echo(f"{alias}: alias of the base model {shape.hub_id}")
    typer.echo(f"  parameters: {shape.parameters / 1e9:.2f}B")
    for name, value in config.items():
        typer.echo(f"  {name}: {value}")


def _list_aliases(json_output: bool) -> None:
    from mtp_bench.models.aliases import ALIASES

    if json_output:
        rows = [{"alias": a, "hub_id": s.hub_id, "parameters": s.parameters} for a, s in ALIASES.items()]
        typer.echo(json.dumps({"aliases": rows}))
        return
    for alias, shape in ALIASES.items():
        typer.echo(f"{alias:<26}{shape.parameters / 1e9:>7.2f}B  {shape.hub_id}")
