"""Files that hold many trees: a JSON object of name -> paths, or name -> branching of a dense tree.

Medusa's published trees and the history of dense trees they were found in are kept so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.files import read_text
from mtp_bench.topology.check import Topology
from mtp_bench.topology.named import resolve_topology
from mtp_bench.topology.shapes import uniform_tree
from mtp_bench.topology.tree import StaticTree


def resolve_all(spec: str) -> dict[str, Topology]:
    """What a user named, by name: the trees of a file of many, else the one topology of :func:`resolve_topology`.

    Raises:
        InputError: nothing of that name, or an entry that is no tree.
        TopologyError: a tree with defects.
    """
    entries = _entries(Path(spec).expanduser())
    if entries is None:
        return {spec: resolve_topology(spec)}
    return {name: _tree(value, f"{spec}#/{name}") for name, value in entries.items()}


def _entries(path: Path) -> dict[str, Any] | None:
    """The file's object, if it is one of lists; topology files and all else are None."""
    if not path.is_file() or path.suffix != ".json":
        return None
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None  # the reader of single topologies says what is wrong
    many = isinstance(value, dict) and bool(value) and all(isinstance(entry, list) for entry in value.values())
    return value if many else None


def _tree(value: list[Any], where: str) -> StaticTree:
    try:
        if value and all(type(item) is int for item in value):
            return uniform_tree(value)
        return StaticTree.from_paths(value)
    except InputError as error:
        raise InputError(error.what, where=where, fix=error.fix) from error
