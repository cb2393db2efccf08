"""Finding a topology by what a user types: a file, a run folder, a shipped tree, ``chain:4``, or ``none``."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.topology.check import Topology
from mtp_bench.topology.document import TopologyDocument, read_document
from mtp_bench.topology.dynamic import DynamicTree, parse_dynamic
from mtp_bench.topology.tree import StaticTree, chain

RUN_TOPOLOGY = "topology.json"


def trees_folder() -> Path:
    """The folder of shipped trees: inside the package when installed as a wheel, else at the top of the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "trees"
    return installed if installed.is_dir() else package.parent / "trees"


def named_trees() -> dict[str, Path]:
    """Shipped trees: name -> file, sorted by name."""
    return {path.stem: path for path in sorted(trees_folder().glob("*.json"))}


@cache
def _load_named(path: Path) -> TopologyDocument:
    return read_document(path)


def load(spec: str) -> TopologyDocument:
    """Find a topology: an existing file or run folder, then a shipped tree, ``chain:K``, ``dynamic:D,K,N``, ``none``.

    Raises:
        InputError: nothing of that name; the message suggests similar names.
        TopologyError: the file has defects.
    """
    path = Path(spec).expanduser()
    if path.is_dir() and (path / RUN_TOPOLOGY).is_file():
        path = path / RUN_TOPOLOGY
    if path.is_file():
        return read_document(path)
    shipped = named_trees()
    if spec in shipped:
        return _load_named(shipped[spec])
    kind, colon, argument = spec.partition(":")
    if spec == "none":
        return TopologyDocument(chain(0))
    if kind == "chain" and colon:
        return TopologyDocument(_parse_chain(spec, argument))
    if kind == "dynamic" and colon:
        return TopologyDocument(parse_dynamic(argument), "eagle2")
    raise _unknown(spec, list(shipped))


def resolve(spec: str) -> StaticTree:
    """The static tree of :func:`load`.

    Raises:
        InputError: also for a dynamic tree.
    """
    return load(spec).tree


def resolve_topology(spec: str) -> Topology:
    """The topology of :func:`load`, of whatever kind."""
    return load(spec).topology


def name_of(topology: Topology) -> str:
    """How a user would type it, as far as it has such a name."""
    if isinstance(topology, DynamicTree):
        return str(topology)
    if topology.num_nodes == 0:
        return "none"
    return f"chain:{topology.depth}" if topology == chain(topology.depth) else f"{topology.num_nodes} nodes"


def _parse_chain(spec: str, argument: str) -> StaticTree:
    if not (argument.isascii() and argument.isdigit() and len(argument) < 7):
        raise InputError(f"{spec!r} is not a chain", where="--topology", fix="write chain:4 for four drafted tokens")
    return chain(int(argument))


def _unknown(spec: str, shipped: list[str]) -> InputError:
    near = difflib.get_close_matches(spec, [*shipped, "chain:4", "none"], n=3, cutoff=0.5)
    looks_like_file = spec.endswith(".json") or "/" in spec
    what = f"no such file: {spec}" if looks_like_file else f"no topology is called {spec!r}"
    hint = f"did you mean {', '.join(near)}? " if near else ""
    fix = f"{hint}give a file, a run folder, a name from 'mtp-bench trees list', chain:K, dynamic:D,K,N or none"
    return InputError(what, where="--topology", fix=fix)
