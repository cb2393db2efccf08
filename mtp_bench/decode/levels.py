"""A static tree level by level, for drafts in which a token depends on those before it on its path."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp_bench.topology import StaticTree


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes of one depth.

    Attributes:
        parent: int64 [n], index of each node's parent among the expanded nodes one level up.
        rank: int64 [n].
        expanded: int64 [w], which of the n have children.
        sees: bool [w, expanded nodes down to this level], ancestor-or-self.
        top_k: ranks that are needed.
    """

    parent: torch.Tensor
    rank: torch.Tensor
    expanded: torch.Tensor
    sees: torch.Tensor
    top_k: int


def levels_of(tree: StaticTree, device: torch.device) -> list[Level]:
    """One level per depth of ``tree``."""
    depths, ranks, parents = tree.depths, tree.ranks, tree.parents
    has_children = set(parents[1:].tolist())
    levels: list[Level] = []
    inner: list[int] = []
    above = [0]
    for depth in range(1, tree.depth + 1):
        rows = [row for row in range(1, tree.rows) if depths[row] == depth]
        expanded = [row for row in rows if row in has_children]
        inner += expanded
        sees = torch.from_numpy(tree.ancestor_mask[expanded][:, inner].copy())
        levels.append(
            Level(
                torch.tensor([above.index(int(parents[row])) for row in rows], device=device),
                torch.tensor([int(ranks[row]) for row in rows], device=device),
                torch.tensor([rows.index(row) for row in expanded], dtype=torch.int64, device=device),
                sees.to(device),
                1 + max(int(ranks[row]) for row in rows),
            )
        )
        above = expanded
    return levels
