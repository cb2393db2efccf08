"""Topologies: what is verified in one step. The tree, its validation, its JSON, its names and its drawing."""

from __future__ import annotations

from mtp_bench.topology.check import Topology
from mtp_bench.topology.document import TopologyDocument, read_document
from mtp_bench.topology.draw import draw
from mtp_bench.topology.dynamic import DynamicTree
from mtp_bench.topology.named import load, name_of, named_trees, resolve, resolve_topology
from mtp_bench.topology.tree import StaticTree, chain
from mtp_bench.topology.validate import Defect, Path, TopologyError

__all__ = [
    "Defect",
    "DynamicTree",
    "Path",
    "StaticTree",
    "Topology",
    "TopologyDocument",
    "TopologyError",
    "chain",
    "draw",
    "load",
    "name_of",
    "named_trees",
    "read_document",
    "resolve",
    "resolve_topology",
]
