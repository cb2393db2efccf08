"""What commands print as their result, on stdout."""

from __future__ import annotations

import json
from typing import Any

import typer


def emit_json(document: Any) -> None:
    """The one JSON document of ``--json``, as the last line of stdout."""
    typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
