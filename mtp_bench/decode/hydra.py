"""Drafting with Hydra heads: level by level, each head seeing the tokens drafted before its own."""

from __future__ import annotations

import torch

from mtp_bench.decode.draft import Drafted, Settled, Which, last_settled
from mtp_bench.decode.levels import levels_of
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.ranking import ordered_topk
from mtp_bench.topology import StaticTree


class HydraDrafter:
    """Drafts the nodes of one static tree; nothing is kept between steps."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, heads: HydraHeads, tree: StaticTree, device: torch.device) -> None:
        self._heads, self._levels = heads, levels_of(tree, device)

    def draft(self, which: Which, settled: Settled) -> Drafted:
        """See ``Drafter``; the last settled feature and token (the root) are read."""
        roots = settled.tokens.gather(1, settled.counts[:, None] - 1)
        seen = self._heads.ground(last_settled(settled.features, settled.counts)[:, None], roots)
        drafted = []
        for head, level in enumerate(self._levels):
            tokens = ordered_topk(self._heads.logits(seen, head), level.top_k)[:, level.parent, level.rank]
            drafted.append(tokens)
            seen = self._heads.ground(seen[:, level.parent[level.expanded]], tokens[:, level.expanded])
        return Drafted(torch.cat(drafted, dim=1))
