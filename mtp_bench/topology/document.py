"""A topology with what is known about it, and its JSON file (format ``mtp-bench/topology`` 1.0).

The file is written byte for byte the same for the same content, one level of the tree per line or so, so that it
diffs well. Its schema is ``topology.schema.json`` beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.files import read_json, write_text
from mtp_bench.topology.check import FORMAT, MAJOR, METADATA, MINOR, Topology, derived_facts, find_defects, topology_of
from mtp_bench.topology.dynamic import DynamicTree
from mtp_bench.topology.tree import StaticTree
from mtp_bench.topology.validate import TopologyError, errors_of

LINE_WIDTH = 110


@dataclass(frozen=True)
class TopologyDocument:
    """A tree and its provenance; all mappings hold plain JSON values.

    Attributes:
        topology: what is verified.
        method: which kind of heads drafts it (``medusa``, ``eagle``, ...).
        expected: expected figures; each key names its convention, e.g. ``acceptance_length_incl_bonus``.
        profile: where the figures come from: model, heads, prompts, device, dtype, versions, acceptance rule.
        limits: what the search was bound by, e.g. ``max_nodes``.
        source: for trees that others published or that were derived: project, licence, reference (free text).
    """

    topology: Topology
    method: str = "medusa"
    expected: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def tree(self) -> StaticTree:
        """The topology where only a static tree will do.

        Raises:
            InputError: it is a dynamic tree.
        """
        if isinstance(self.topology, DynamicTree):
            raise InputError(
                f"{self.topology} is a dynamic tree, which has no fixed paths",
                where="--topology",
                fix="give a static tree here",
            )
        return self.topology

    @classmethod
    def from_value(cls, value: object, *, where: str = "", complete_prefixes: bool = False) -> TopologyDocument:
        """Build a document from parsed JSON: ours, or a bare list of paths.

        Raises:
            TopologyError: listing every defect.
        """
        defects = find_defects(value, complete_prefixes=complete_prefixes)
        if errors_of(defects):
            raise TopologyError(defects, where=where)
        topology = topology_of(value, complete_prefixes=complete_prefixes)
        if not isinstance(value, dict):
            return cls(topology)
        return cls(topology, value["method"], **{key: value.get(key, {}) for key in METADATA})

    def as_dict(self) -> dict[str, Any]:
        """The JSON document. Decoding without speculation (N = 0) is written as a chain of 0 tokens."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": f"{MAJOR}.{MINOR}",
            "id": self.topology.id,
            "method": self.method,
        }
        if isinstance(self.topology, DynamicTree):
            document |= {"kind": "dynamic_tree", "dynamic": self.topology.as_dict()}
        elif self.tree.num_nodes:
            paths = [list(path) for path in self.tree.paths]
            document |= {"kind": "static_tree", "tree": {"paths": paths} | derived_facts(self.tree)}
        else:
            document |= {"kind": "chain", "chain": {"num_tokens": 0}}
        return document | {key: dict(getattr(self, key)) for key in METADATA if getattr(self, key)}

    def dumps(self) -> str:
        """The text of the file; the same content gives the same bytes.

        Raises:
            ValueError: a figure is NaN or infinite.
        """
        return _pretty(self.as_dict(), 0) + "\n"

    def write(self, path: FilePath) -> None:
        """Write the file atomically.

        Raises:
            InputError: it cannot be written.
        """
        write_text(FilePath(path), self.dumps())


def read_document(path: FilePath, *, complete_prefixes: bool = False) -> TopologyDocument:
    """Read a topology file: our JSON, or a bare list of paths.

    Raises:
        InputError: missing or not JSON.
        TopologyError: listing every defect.
    """
    return TopologyDocument.from_value(read_value(FilePath(path)), where=str(path), complete_prefixes=complete_prefixes)


def read_value(path: FilePath) -> object:
    """Parse a JSON file that may be hostile.

    Raises:
        InputError: missing, unreadable or not JSON.
    """
    try:
        value: object = read_json(path)
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise InputError(f"not a usable JSON file: {error}", where=str(path)) from error
    return value


def _pretty(value: Any, indent: int) -> str:
    """JSON with every short value on one line and long lists filled like text."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    nested = isinstance(value, (dict, list)) and bool(value)
    if not nested or (indent and len(line) + indent <= LINE_WIDTH):
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        items = [
            f"{pad}{json.dumps(key, ensure_ascii=False)}: {_pretty(item, indent + 2)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    lines = _fill([_pretty(item, indent + 2) for item in value], LINE_WIDTH - indent - 2)
    return "[\n" + ",\n".join(pad + text for text in lines) + "\n" + " " * indent + "]"


def _fill(items: list[str], width: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) < width and "\n" not in item:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return lines
