"""What an exporter and an importer are. Each engine has one module; a table in the package lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mtp_bench.topology.document import TopologyDocument
from mtp_bench.topology.tree import StaticTree


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of the engine's file, and what its reader should know (losses, limits)."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exporter:
    """Writes one engine's format.

    Attributes:
        engine: name for ``--to``.
        reads: the versions of the engine that load the format, as known when this was written.
        export: raises InputError where the format cannot hold the tree.
    """

    engine: str
    reads: str
    export: Callable[[TopologyDocument], Exported]


@dataclass(frozen=True, slots=True)
class Imported:
    """A tree read from an engine's format, and how the text was understood."""

    tree: StaticTree
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Importer:
    """Reads one engine's format from the text of a file.

    Attributes:
        engine: name for ``--format``.
        parse: called with the text, the name of its file (for errors) and whether missing parents are to be added;
            raises InputError or TopologyError.
    """

    engine: str
    parse: Callable[[str, str, bool], Imported]
