"""Medusa choices: a bare JSON list of paths, which Medusa, EAGLE-1 and their descendants share.

Older Medusa described a dense tree by its branching alone: ``[3, 2, 1]`` is three children of the root, two below each
of them, one below each of those. Lists that name only the leaves occur too. All three are read.
"""

from __future__ import annotations

import itertools
import json

from mtp_bench.engines.base import Exported, Exporter, Imported, Importer
from mtp_bench.errors import InputError
from mtp_bench.topology.document import TopologyDocument
from mtp_bench.topology.tree import StaticTree
from mtp_bench.topology.validate import MAX_DEPTH, TopologyError, errors_of, find_path_defects

# Medusa's code takes the ten best tokens of each head and addresses them as depth * 10 + rank: rank 10 would silently
# read the next head's best token.
TOP_K = 10
MAX_DENSE_NODES = 65_536


def export_choices(document: TopologyDocument) -> Exported:
    """The paths in canonical order, as one line of JSON.

    Raises:
        InputError: the tree is empty, or uses a rank that Medusa would read from the wrong head.
    """
    tree = document.tree
    if not tree.num_nodes:
        raise InputError(
            "the topology has no nodes, which Medusa choices cannot express",
            where="--to medusa",
            fix="decode without Medusa instead: this topology means that speculation does not pay",
        )
    if tree.max_rank >= TOP_K:
        raise InputError(
            f"rank {tree.max_rank} is used, but Medusa drafts ranks 0 to {TOP_K - 1} and would silently take a token "
            "of the next head",
            where="--to medusa",
            fix=f"clip the tree: mtp-bench import FILE --clip-rank {TOP_K - 1} --out NEW.json",
        )
    paths = [list(path) for path in tree.paths]
    notes = [defect.message for defect in find_path_defects(paths) if defect.code == "sibling-gap"]
    return Exported(json.dumps(paths) + "\n", tuple(notes))


def parse_choices(text: str, where: str, complete_prefixes: bool = False) -> Imported:
    """Read a list of paths, a dense branching vector, or a topology file of ours (to clip it, say).

    Raises:
        InputError: not JSON, or no tree.
        TopologyError: listing every defect of the paths.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        fix = "a Python literal such as [(0,), (1,)] is read with --format vllm"
        raise InputError(f"not JSON: {error}", where=where, fix=fix) from error
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return _dense(value, where)
    if isinstance(value, dict):
        return Imported(TopologyDocument.from_value(value, where=where, complete_prefixes=complete_prefixes).tree)
    return tree_from_paths(value, where, complete_prefixes)


def tree_from_paths(value: object, where: str, complete_prefixes: bool) -> Imported:
    """Check a parsed list of paths and build its tree, saying how many parents were added."""
    defects = find_path_defects(value, complete_prefixes=complete_prefixes)
    if errors_of(defects):
        raise TopologyError(defects, where=where)
    assert isinstance(value, (list, tuple))
    tree = StaticTree.from_paths(value, complete_prefixes=complete_prefixes)
    added = tree.num_nodes - len(value)
    notes = [f"added {added} missing parent{'' if added == 1 else 's'}"] if added else []
    return Imported(tree, (*notes, *(defect.message for defect in defects)))


def _dense(branching: list[int], where: str) -> Imported:
    widths = list(itertools.accumulate(branching, lambda width, children: width * children))
    if min(branching) < 1 or len(branching) > MAX_DEPTH or sum(widths) > MAX_DENSE_NODES:
        raise InputError(
            "a list of numbers is read as the branching of each level, which must be at least 1, "
            f"with at most {MAX_DENSE_NODES} nodes in all",
            where=where,
            fix="for a list of paths write every path as a list: [[0], [1], [0, 0]]",
        )
    levels = [itertools.product(*map(range, branching[: depth + 1])) for depth in range(len(branching))]
    tree = StaticTree.from_paths(list(itertools.chain.from_iterable(levels)))
    assert tree.level_widths == tuple(widths)
    notes = [f"read as a dense tree with branching {branching}: {tree.num_nodes} nodes"]
    if branching[0] == 1 and max(branching) > 1:
        notes.append("the earliest Medusa versions put a 1 for the root first; if yours did, leave that 1 out")
    return Imported(tree, tuple(notes))


EXPORTER = Exporter("medusa", "FasterDecoding/Medusa with sparse choices, EAGLE-1 code", export_choices)
IMPORTER = Importer("medusa", parse_choices)
