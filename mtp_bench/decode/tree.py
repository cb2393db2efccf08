"""A topology as tensors on the device, padded to a bucket of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp_bench.topology import DynamicTree, StaticTree, Topology


@dataclass(frozen=True, eq=False)
class TreeTensors:
    """Buffers of one topology. R = rows (padding included), D = depth; the first dimension is 1, broadcast over the
    sequences of a batch, for a static tree, and B for a dynamic one, whose every sequence has a tree of its own.

    Attributes:
        tree: the topology.
        parents: int64 [B or 1, R], 0 for the root and padding.
        depths: int64 [B or 1, R], 0 for the root and padding.
        real: bool [B or 1, R], False for padding.
        ancestors: bool [B or 1, R, R], ancestor-or-self; padding sees the root and itself.
        path_rows: int64 [B or 1, R, D + 1], row of the ancestor at each depth; the row itself beyond its own depth.
    """

    tree: Topology
    parents: torch.Tensor
    depths: torch.Tensor
    real: torch.Tensor
    ancestors: torch.Tensor
    path_rows: torch.Tensor

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
            batch: sequences; only a dynamic tree has tensors for each, all rows padding until it is drafted.
        """
        rows = max(rows or 0, tree.rows)
        if isinstance(tree, DynamicTree):
            return cls._blank(tree, device, rows, batch)
        return cls._static(tree, device, rows)

    @classmethod
    def _static(cls, tree: StaticTree, device: torch.device, rows: int) -> TreeTensors:
        real = torch.arange(rows) < tree.rows
        ancestors = torch.eye(rows, dtype=torch.bool)
        ancestors[:, 0] = True
        ancestors[: tree.rows, : tree.rows] = torch.from_numpy(tree.ancestor_mask.copy())
        path_rows = torch.arange(rows)[:, None].expand(rows, tree.depth + 1).clone()
        known = torch.from_numpy(tree.path_rows.copy())
        path_rows[: tree.rows] = torch.where(known >= 0, known, path_rows[: tree.rows])
        missing = rows - tree.rows
        depths, parents = (torch.from_numpy(values.copy()).clamp(min=0) for values in (tree.depths, tree.parents))
        parts = (torch.nn.functional.pad(values, (0, missing)) for values in (parents, depths))
        return cls(tree, *(part[None].to(device) for part in (*parts, real, ancestors, path_rows)))

    @classmethod
    def _blank(cls, tree: DynamicTree, device: torch.device, rows: int, batch: int) -> TreeTensors:
        none = torch.zeros(batch, rows, dtype=torch.int64, device=device)
        ancestors = torch.eye(rows, dtype=torch.bool, device=device)
        ancestors[:, 0] = True
        path_rows = torch.arange(rows, device=device)[None, :, None].repeat(batch, 1, tree.depth + 1)
        return cls(tree, none, none.clone(), none.bool(), ancestors.repeat(batch, 1, 1), path_rows)

    def put(self, which: slice | torch.Tensor, drafted: TreeTensors) -> None:
        """Take over the trees that were drafted for some sequences; rows beyond theirs stay padding."""
        rows = drafted.rows
        for mine, theirs in ((self.parents, drafted.parents), (self.depths, drafted.depths), (self.real, drafted.real)):
            mine[which, :rows] = theirs
        self.ancestors[which, :rows, :rows] = drafted.ancestors
        self.path_rows[which, :rows] = drafted.path_rows
