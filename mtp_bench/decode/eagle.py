"""Drafting with an EAGLE layer, which keeps a KV cache of its own.

Each step it first reads the settled tokens with the base model's features, so that nothing it made up itself stays in
the cache; then it drafts level by level, every level one pass over those nodes that are expanded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.draft import Drafted, Settled, Which, last_settled
from mtp_bench.decode.dynamic import Best, expand, select
from mtp_bench.decode.layer import cached_attention, layer_cache, sequences, settled_rows
from mtp_bench.decode.levels import levels_of
from mtp_bench.decode.masks import row_mask
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.ranking import best_of, ordered_topk
from mtp_bench.models.compiled import compiled
from mtp_bench.models.engines import Engine
from mtp_bench.topology import DynamicTree, StaticTree


class EagleDrafter(ABC):
    """An EAGLE layer with its cache, for B sequences."""

    def __init__(
        self, draft: EagleDraft, batch: int, length: int, depth: int, expanded: int, engine: Engine = "eager"
    ) -> None:
        """Args:
        length: slots per sequence of the base model's cache.
        depth: levels drafted; expanded: nodes expanded over all of them.
        """
        # A last step may settle more tokens than were asked for, and drafts behind them all the same.
        length += depth + expanded
        self._draft = draft
        self.aux_layers = draft.aux_layers
        config, weight = draft.config, draft.fc.weight
        self._forward: Callable[..., torch.Tensor] = draft
        self._best: Best = draft.best
        self._top: Callable[[torch.Tensor, int], torch.Tensor] = draft.top
        if engine == "compiled":
            self._forward = compiled(draft, "forward")
            logits = compiled(draft, "logits")
            self._best = lambda output, top_k: best_of(logits(output), top_k)
            self._top = lambda output, top_k: ordered_topk(logits(output), top_k)
        self.cache = layer_cache(config, batch, length, weight)
        self._places = torch.arange(expanded, device=weight.device)
        self._rotary = draft.rotary(length)

    def draft(self, which: Which, settled: Settled) -> Drafted:
        """See ``Drafter``. Settled slots come first, drafted ones behind them, which the next call overwrites."""
        with sequences(self.cache, which) as cache:
            output = self._settle(cache, settled)
            width = settled.tokens.shape[1]
            visible = bucket(settled.longest + width + len(self._places), cache.length)
            return self._drafted(_Behind(self, cache, settled.starts + settled.counts, visible), output)

    @abstractmethod
    def _drafted(self, behind: _Behind, output: torch.Tensor) -> Drafted:
        """The coming tree, from the output [b, 1, H] of the root's slot."""

    def _settle(self, cache: TreeCache, settled: Settled) -> torch.Tensor:
        """Read the settled tokens; outputs [b, 1, H] of the last one of each sequence."""
        slots, mask = settled_rows(cache, settled)
        hidden = self._draft.fuse(settled.features)
        output = self.run(cache, settled.tokens, hidden, slots, slots, mask)
        return last_settled(output, settled.counts)[:, None]

    def run(
        self,
        cache: TreeCache,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layer over int64 [b, R] tokens, writing to ``slots``; [b, R, H]."""
        cosine, sine = self._rotary
        attend = cached_attention(cache, slots, mask)
        return self._forward(tokens, hidden, (cosine[positions], sine[positions]), attend)


@dataclass(frozen=True, eq=False)
class _Behind:
    """Passes over drafted nodes, in slots behind the settled ones; int64 [b] ``lengths`` of those."""

    drafter: EagleDrafter
    cache: TreeCache
    lengths: torch.Tensor
    visible: int

    def run(
        self, tokens: torch.Tensor, hidden: torch.Tensor, level: int, first: int, sees: torch.Tensor
    ) -> torch.Tensor:
        """Expand nodes of one level.

        Args:
            tokens: int64 [b, w]; hidden: [b, w, H], their parents' feedback.
            level: depth of the nodes.
            first: how many nodes were expanded before them.
            sees: bool [w, first + w] or [b, w, first + w], ancestor-or-self among all nodes expanded so far.
        """
        every_slot = self.lengths[:, None] + self.drafter._places[: sees.shape[-1]]
        slots = every_slot[:, first:]
        mask = row_mask(every_slot, self.lengths, sees, self.visible)
        positions = (self.lengths + level - 1)[:, None].expand_as(slots)
        return self.drafter.run(self.cache, tokens, hidden, slots, positions, mask)


class StaticEagleDrafter(EagleDrafter):
    """Drafts the nodes of one static tree."""

    def __init__(self, draft: EagleDraft, tree: StaticTree, batch: int, length: int, engine: Engine = "eager") -> None:
        self._levels = levels_of(tree, draft.fc.weight.device)
        super().__init__(draft, batch, length, tree.depth, sum(len(level.expanded) for level in self._levels), engine)

    def _drafted(self, behind: _Behind, output: torch.Tensor) -> Drafted:
        draft, drafted, first = self._draft, [], 0
        for depth, level in enumerate(self._levels, start=1):
            best = self._top(output, level.top_k)
            tokens = draft.target_ids(best)[:, level.parent, level.rank]
            drafted.append(tokens)
            if depth < len(self._levels):
                hidden = draft.feedback(output)[:, level.parent[level.expanded]]
                output = behind.run(tokens[:, level.expanded], hidden, depth, first, level.sees)
                first += len(level.expanded)
        return Drafted(torch.cat(drafted, dim=1))


class DynamicEagleDrafter(EagleDrafter):
    """Drafts a pool of nodes and keeps the most probable ones, in every step anew."""

    def __init__(self, draft: EagleDraft, tree: DynamicTree, batch: int, length: int, engine: Engine = "eager") -> None:
        super().__init__(draft, batch, length, tree.depth, (tree.depth - 1) * tree.top_k, engine)
        self._tree = tree

    def _drafted(self, behind: _Behind, output: torch.Tensor) -> Drafted:
        depth, top_k = self._tree.depth, self._tree.top_k
        return select(expand(self._draft, output, depth, top_k, behind.run, self._best), self._tree)
