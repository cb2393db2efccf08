"""What an engine can load, as rules on a topology: what breaks which rule, and how large a tree may grow within them.

The rules of single engines are in :mod:`mtp_bench.search.rules.engine_rules`; the search that keeps them is
:func:`mtp_bench.search.rules.constrained.constrained_search`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.topology import DynamicTree, StaticTree, Topology

NUMBERS = ("max_nodes", "max_depth", "max_children", "max_width", "top_k")
SWITCHES = ("contiguous", "uniform", "chain")


@dataclass(frozen=True)
class DynamicRules:
    """What an engine asks of the triple (depth, top_k, num_nodes) beyond the pool's capacity.

    Args:
        full_chain: with top_k 1 the number of nodes is the depth.
        linear_capacity: ``depth <= num_nodes <= top_k * depth``, tighter than the pool.
    """

    full_chain: bool = False
    linear_capacity: bool = False

    def violations(self, tree: DynamicTree) -> Iterator[str]:
        """What ``tree`` breaks."""
        if self.full_chain and tree.top_k == 1 and tree.num_nodes != tree.depth:
            yield f"with top_k 1 there are as many nodes as steps: {tree.depth}, not {tree.num_nodes}"
        if self.linear_capacity and not tree.depth <= tree.num_nodes <= tree.top_k * tree.depth:
            most = tree.top_k * tree.depth
            yield f"{tree.num_nodes} nodes, but depth <= nodes <= top_k * depth asks for {tree.depth} to {most}"


@dataclass(frozen=True)
class Constraints:
    """Rules that a topology must keep; None = no limit. Decoding without speculation (N = 0) breaks none of them.

    Args:
        max_nodes: N, the root excluded.
        max_depth: of the tree.
        max_children: children of one node, whatever their ranks.
        max_width: nodes of one level.
        top_k: ranks must be below it.
        contiguous: siblings have the ranks 0, 1, 2, ... without a gap.
        uniform: all nodes of a level have the same number of children, the best ones (so ``contiguous`` too).
        chain: static trees are chains of the best token at each depth; dynamic trees are none of its business.
        rows_multiple: N + 1 must be a multiple of it.
        dynamic: what dynamic trees must keep; None = the engine loads none.
        name: of the engine, for messages.

    Raises:
        InputError: a limit below its least sensible value.
    """

    max_nodes: int | None = None
    max_depth: int | None = None
    max_children: int | None = None
    max_width: int | None = None
    top_k: int | None = None
    contiguous: bool = False
    uniform: bool = False
    chain: bool = False
    rows_multiple: int = 1
    dynamic: DynamicRules | None = field(default=DynamicRules())
    name: str = ""

    def __post_init__(self) -> None:
        for rule in (*NUMBERS, "rows_multiple"):
            value = getattr(self, rule)
            least = 0 if rule in ("max_nodes", "max_depth") else 1
            if value is not None and value < least:
                raise InputError(f"{rule} of {value}", where="constraints", fix=f"give a number of at least {least}")

    @property
    def restricts_static(self) -> bool:
        """Whether there is a static tree that breaks a rule."""
        return bool(self.document())

    def allows(self, topology: Topology) -> bool:
        """Whether no rule is broken."""
        return not self.violations(topology)

    def violations(self, topology: Topology) -> tuple[str, ...]:
        """What is wrong with ``topology``, one sentence a rule; empty when it keeps all of them."""
        if not topology.num_nodes:
            return ()
        special = self._dynamic(topology) if isinstance(topology, DynamicTree) else self._static(topology)
        return (*self._common(topology), *special)

    def _common(self, topology: Topology) -> Iterator[str]:
        for rule, what in (("max_nodes", topology.num_nodes), ("max_depth", topology.depth)):
            limit = getattr(self, rule)
            if limit is not None and what > limit:
                yield f"{what} exceeds {rule} {limit}"
        if topology.rows % self.rows_multiple:
            yield f"{topology.rows} rows (N + 1) are no multiple of {self.rows_multiple}"
        if self.top_k is not None and topology.max_rank >= self.top_k:
            yield f"rank {topology.max_rank} is not below top_k {self.top_k}"

    def _static(self, tree: StaticTree) -> Iterator[str]:
        most, widest = int(tree.children_counts.max()), max(tree.level_widths)
        if self.chain and not tree.is_chain:
            yield "it is no chain"
        if self.max_children is not None and most > self.max_children:
            yield f"a node has {most} children, more than max_children {self.max_children}"
        if self.max_width is not None and widest > self.max_width:
            yield f"a level has {widest} nodes, more than max_width {self.max_width}"
        if (self.contiguous or self.uniform) and not contiguous_siblings(tree):
            yield "sibling ranks leave a gap: they must be 0, 1, 2, ..."
        if self.uniform and not tree.uniform_levels:
            yield "nodes of one level differ in their number of children"

    def _dynamic(self, tree: DynamicTree) -> Iterator[str]:
        if self.dynamic is None:
            yield f"{self.name or 'the engine'} loads no dynamic tree"
            return
        if self.max_children is not None and tree.top_k > self.max_children:
            yield f"top_k {tree.top_k} exceeds max_children {self.max_children}"
        widest = min(tree.num_nodes, tree.top_k if tree.depth == 1 else tree.top_k**2)
        if self.max_width is not None and widest > self.max_width:
            yield f"a level may hold {widest} nodes, more than max_width {self.max_width}"
        yield from self.dynamic.violations(tree)

    def and_also(self, other: Constraints) -> Constraints:
        """Both sets of rules: of two limits the smaller, of two multiples their least common one."""
        merged: dict[str, Any] = {}
        for rule in NUMBERS:
            given = [limit for limit in (getattr(self, rule), getattr(other, rule)) if limit is not None]
            merged[rule] = min(given, default=None)
        merged |= {rule: getattr(self, rule) or getattr(other, rule) for rule in SWITCHES}
        return replace(self, **merged, rows_multiple=lcm(self.rows_multiple, other.rows_multiple))

    def document(self) -> dict[str, Any]:
        """The rules that are set, for the ``--json`` documents."""
        rules = {rule: getattr(self, rule) for rule in (*NUMBERS, *SWITCHES)}
        if self.rows_multiple > 1:
            rules["rows_multiple"] = self.rows_multiple
        return {rule: value for rule, value in rules.items() if value is not None and value is not False}

    def __str__(self) -> str:
        rules = [name if value is True else f"{name}={value}" for name, value in self.document().items()]
        return f"{self.name}: " * bool(self.name) + (", ".join(rules) or "none for static trees")


UNCONSTRAINED = Constraints()


def contiguous_siblings(tree: StaticTree) -> bool:
    """Whether every node's children have the ranks 0, 1, 2, ... without a gap."""
    nodes = set(tree.paths)
    return all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in nodes for path in tree.paths)
