"""A topology as tensors on the device, padded to a bucket of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from mtp_bench.topology import DynamicTree, StaticTree, Topology


@dataclass(frozen=True, eq=False)
class TreeTensors:
    """Buffers of one topology. R = rows (padding included), D = depth; the first dimension is 1, broadcast over the
    sequences of a batch, for a static tree, and B where every sequence has a tree of its own: a dynamic tree, or one
    of several static ones (``mixed``).

    Attributes:
        tree: what is drafted: the topology, or the union of the mixed ones.
        parents: int64 [B or 1, R], 0 for the root and padding.
        depths: int64 [B or 1, R], 0 for the root and padding.
        real: bool [B or 1, R], False for padding.
        ancestors: bool [B or 1, R, R], ancestor-or-self; padding sees the root and itself.
        path_rows: int64 [B or 1, R, D + 1], row of the ancestor at each depth; the row itself beyond its own depth.
        nodes: int64 [B, R - 1], which drafted node each row below the root holds (any, for padding); None = the nodes
            are drafted in row order.
    """

    tree: Topology
    parents: torch.Tensor
    depths: torch.Tensor
    real: torch.Tensor
    ancestors: torch.Tensor
    path_rows: torch.Tensor
    nodes: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows verified per step, padding included."""
        return int(self.parents.shape[1])

    @property
    def depth(self) -> int:
        """Longest path."""
        return self.tree.depth

    @classmethod
    def build(cls, tree: Topology, device: torch.device, *, rows: int | None = None, batch: int = 1) -> TreeTensors:
        """Tensors for ``tree``, padded to ``rows`` rows with dummy nodes that nothing accepts.

        Args:
            batch: sequences; only a dynamic tree has tensors for each, all rows below the root padding until drafted.
        """
        rows = max(rows or 0, tree.rows)
        if isinstance(tree, DynamicTree):
            return cls._blank(tree, device, rows, batch)
        return cls._static(tree, device, rows, tree.depth)

    @classmethod
    def mixed(
        cls, trees: Iterable[StaticTree], device: torch.device, *, rows: int | None = None, batch: int = 1
    ) -> TreeTensors:
        """Tensors of a batch whose every sequence uses one of ``trees``; below the root is padding until ``assign``.

        Their union is drafted, of which each sequence takes its own nodes: drafting costs what the union costs, and
        verification what the largest tree costs.
        """
        members = list(trees)
        union = StaticTree.from_paths({path for tree in members for path in tree.paths})
        rows = max(rows or 0, *(tree.rows for tree in members))
        nodes = torch.zeros(batch, rows - 1, dtype=torch.int64, device=device)
        return replace(cls._blank(union, device, rows, batch), nodes=nodes)

    def assign(self, sequence: int, tree: StaticTree) -> None:
        """Let one sequence use ``tree``, which is one of the mixed ones.

        Raises:
            KeyError: it is not.
        """
        assert self.nodes is not None
        assert isinstance(self.tree, StaticTree)
        member, nodes = _member(self.tree, tree, self.parents.device, self.rows)
        self.put(slice(sequence, sequence + 1), member)
        self.nodes[sequence] = nodes

    @classmethod
    def _static(cls, tree: StaticTree, device: torch.device, rows: int, depth: int) -> TreeTensors:
        real = torch.arange(rows) < tree.rows
        ancestors = torch.eye(rows, dtype=torch.bool)
        ancestors[:, 0] = True
        ancestors[: tree.rows, : tree.rows] = torch.from_numpy(tree.ancestor_mask.copy())
        path_rows = torch.arange(rows)[:, None].expand(rows, depth + 1).clone()
        known = torch.from_numpy(tree.path_rows.copy())
        own = path_rows[: tree.rows, : tree.depth + 1]
        own.copy_(torch.where(known >= 0, known, own))
        missing = rows - tree.rows
        depths, parents = (torch.from_numpy(values.copy()).clamp(min=0) for values in (tree.depths, tree.parents))
        parts = (torch.nn.functional.pad(values, (0, missing)) for values in (parents, depths))
        return cls(tree, *(part[None].to(device) for part in (*parts, real, ancestors, path_rows)))

    @classmethod
    def _blank(cls, tree: Topology, device: torch.device, rows: int, batch: int) -> TreeTensors:
        none = torch.zeros(batch, rows, dtype=torch.int64, device=device)
        ancestors = torch.eye(rows, dtype=torch.bool, device=device)
        ancestors[:, 0] = True
        path_rows = torch.arange(rows, device=device)[None, :, None].repeat(batch, 1, tree.depth + 1)
        real = none.bool()
        real[:, 0] = True  # the root is always there, in a slot that no request has filled yet too
        return cls(tree, none, none.clone(), real, ancestors.repeat(batch, 1, 1), path_rows)

    def put(self, which: slice | torch.Tensor, drafted: TreeTensors) -> None:
        """Take over the trees that were drafted for some sequences; rows beyond theirs stay padding."""
        rows = drafted.rows
        for mine, theirs in ((self.parents, drafted.parents), (self.depths, drafted.depths), (self.real, drafted.real)):
            mine[which, :rows] = theirs
        self.ancestors[which, :rows, :rows] = drafted.ancestors
        self.path_rows[which, :rows] = drafted.path_rows


@lru_cache(maxsize=256)
def _member(union: StaticTree, tree: StaticTree, device: torch.device, rows: int) -> tuple[TreeTensors, torch.Tensor]:
    """``tree`` padded to ``rows``, and its nodes among those of ``union``, int64 [rows - 1]."""
    nodes = torch.zeros(rows - 1, dtype=torch.int64)
    nodes[: tree.num_nodes] = torch.tensor([union.row_of(path) - 1 for path in tree.paths], dtype=torch.int64)
    return TreeTensors._static(tree, device, rows, union.depth), nodes.to(device)
