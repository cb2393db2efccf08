"""A topology as tensors on the device, padded to a bucket of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp_bench.topology import StaticTree


@dataclass(frozen=True, eq=False)
class TreeTensors:
    """Static buffers of one topology. R = rows (padding included), D = depth; the first dimension is broadcast over
    the sequences of a batch.

    Attributes:
        tree: the topology.
        parents: int64 [1, R], 0 for the root and padding.
        depths: int64 [1, R], 0 for the root and padding.
        real: bool [1, R], False for padding.
        ancestors: bool [1, R, R], ancestor-or-self; padding sees the root and itself.
        path_rows: int64 [1, R, D + 1], row of the ancestor at each depth; the row itself beyond its own depth.
        draft_depth, draft_rank: int64 [R - 1], which of the heads' tokens each row but the root takes.
        top_k: tokens needed per depth.
    """

    tree: StaticTree
    parents: torch.Tensor
    depths: torch.Tensor
    real: torch.Tensor
    ancestors: torch.Tensor
    path_rows: torch.Tensor
    draft_depth: torch.Tensor
    draft_rank: torch.Tensor
    top_k: int

    @property
    def rows(self) -> int:
        """Rows verified per step, padding included."""
        return int(self.parents.shape[1])

    @property
    def depth(self) -> int:
        """Longest path."""
        return self.tree.depth

    @classmethod
    def build(cls, tree: StaticTree, device: torch.device, *, rows: int | None = None) -> TreeTensors:
        """Tensors for ``tree``, padded to ``rows`` rows with dummy nodes that nothing accepts."""
        rows = max(rows or 0, tree.rows)
        real = torch.arange(rows) < tree.rows
        ancestors = torch.eye(rows, dtype=torch.bool)
        ancestors[:, 0] = True
        ancestors[: tree.rows, : tree.rows] = torch.from_numpy(tree.ancestor_mask.copy())
        path_rows = torch.arange(rows)[:, None].expand(rows, tree.depth + 1).clone()
        known = torch.from_numpy(tree.path_rows.copy())
        path_rows[: tree.rows] = torch.where(known >= 0, known, path_rows[: tree.rows])

        def padded(values: torch.Tensor) -> torch.Tensor:
            return torch.cat([values, values.new_zeros(rows - tree.rows)])

        depths = padded(torch.from_numpy(tree.depths.copy()))
        parents = padded(torch.from_numpy(tree.parents.copy()).clamp(min=0))
        ranks = padded(torch.from_numpy(tree.ranks.copy()).clamp(min=0))
        return cls(
            tree,
            parents[None].to(device),
            depths[None].to(device),
            real[None].to(device),
            ancestors[None].to(device),
            path_rows[None].to(device),
            (depths[1:] - 1).clamp(min=0).to(device),
            ranks[1:].to(device),
            tree.max_rank + 1,
        )
