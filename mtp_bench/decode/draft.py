"""Drafting the coming tree from what verification has settled, for heads of every kind.

Medusa heads guess all depths from one hidden state. An EAGLE layer keeps a KV cache of its own: each step it first
reads the settled tokens with the base model's features (so that nothing it made up itself stays in the cache), then
drafts level by level, every level one pass over those nodes that have children.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.masks import row_mask
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.base import AnyHeads, Heads
from mtp_bench.heads.eagle import Attend, EagleDraft
from mtp_bench.heads.ranking import ordered_topk
from mtp_bench.models import attention
from mtp_bench.topology import StaticTree

Which = slice | torch.Tensor
"""Sequences of a batch: all, or int64 [b]."""


class Settled(NamedTuple):
    """What the last pass of the base model settled, for b sequences; E = tokens settled at most.

    Attributes:
        starts: int64 [b], position of the first newly computed feature.
        tokens: int64 [b, E], the token after each such position; the last one that counts is the new root.
        features: [b, E, F], the base model's features at these positions.
        counts: int64 [b], how many of the E count.
        longest: upper bound of ``starts``, known to the host.
    """

    starts: torch.Tensor
    tokens: torch.Tensor
    features: torch.Tensor
    counts: torch.Tensor
    longest: int


class Drafter(Protocol):
    """Turns what was settled into the tokens of the coming tree."""

    aux_layers: tuple[int, ...]

    def draft(self, which: Which, settled: Settled) -> torch.Tensor:
        """Tokens int64 [b, N] of the tree's nodes in canonical order."""
        ...


def drafter_for(heads: AnyHeads | None, tree: StaticTree, cache: TreeCache) -> Drafter | None:
    """The drafter of these heads for this topology; None where nothing is drafted.

    Args:
        cache: the base model's, whose batch, length and device the draft's cache takes over.
    """
    if tree.depth == 0 or heads is None:
        return None
    if isinstance(heads, EagleDraft):
        return EagleDrafter(heads, tree, cache.batch, cache.length)
    return MedusaDrafter(heads, TreeTensors.build(tree, cache.data.device))


class MedusaDrafter:
    """Medusa heads: one product per depth, whatever the tree."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, heads: Heads, tree: TreeTensors) -> None:
        self._heads, self._tree = heads, tree

    def draft(self, which: Which, settled: Settled) -> torch.Tensor:
        """See ``Drafter``; only the last settled feature is read."""
        last = _last(settled.features, settled.counts)
        proposed = self._heads.propose(last, self._tree.depth, self._tree.top_k)
        return proposed[:, self._tree.draft_depth, self._tree.draft_rank]


@dataclass(frozen=True, eq=False)
class _Level:
    """Nodes of one depth.

    Attributes:
        parent: int64 [n], index of each node's parent among the expanded nodes one level up.
        rank: int64 [n].
        expanded: int64 [w], which of the n have children.
        sees: bool [w, all expanded nodes of the tree], ancestor-or-self.
        top_k: ranks that are needed.
    """

    parent: torch.Tensor
    rank: torch.Tensor
    expanded: torch.Tensor
    sees: torch.Tensor
    top_k: int


def _levels(tree: StaticTree, device: torch.device) -> list[_Level]:
    """One level per depth of ``tree``."""
    depths, ranks, parents = tree.depths, tree.ranks, tree.parents
    inner = [row for row in range(1, tree.rows) if row in set(parents.tolist())]
    levels = []
    above = [0]
    for depth in range(1, tree.depth + 1):
        rows = [row for row in range(1, tree.rows) if depths[row] == depth]
        expanded = [row for row in rows if row in inner]
        sees = torch.from_numpy(tree.ancestor_mask[expanded][:, inner].copy()) if expanded else torch.zeros(0, 0)
        levels.append(
            _Level(
                torch.tensor([above.index(int(parents[row])) for row in rows], device=device),
                torch.tensor([int(ranks[row]) for row in rows], device=device),
                torch.tensor([rows.index(row) for row in expanded], dtype=torch.int64, device=device),
                sees.to(device),
                1 + max(int(ranks[row]) for row in rows),
            )
        )
        above = expanded
    return levels


class EagleDrafter:
    """An EAGLE layer with its cache, for B sequences and one static tree."""

    def __init__(self, draft: EagleDraft, tree: StaticTree, batch: int, length: int) -> None:
        """Args:
        length: slots per sequence of the base model's cache.
        """
        # A last step may settle more tokens than were asked for, and drafts behind them all the same.
        length += tree.depth + tree.num_nodes
        self._draft = draft
        self.aux_layers = draft.aux_layers
        config, weight = draft.config, draft.fc.weight
        shape = (1, 2, batch, config.num_kv_heads, length, config.head_dim)
        self.cache = TreeCache(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
        self._levels = _levels(tree, weight.device)
        self._inner = sum(len(level.expanded) for level in self._levels)
        self._offsets = torch.arange(self._inner, device=weight.device)
        self._rotary = draft.rotary(length)

    def draft(self, which: Which, settled: Settled) -> torch.Tensor:
        """See ``Drafter``. Settled slots come first, drafted ones behind them, which the next call overwrites."""
        whole = isinstance(which, slice)
        cache = self.cache if whole else TreeCache(self.cache.data[:, :, which])
        output = self._settle(cache, settled)
        tokens = self._expand(cache, settled, output)
        if not whole:
            self.cache.data[:, :, which] = cache.data
        return tokens

    def _settle(self, cache: TreeCache, settled: Settled) -> torch.Tensor:
        """Read the settled tokens; outputs [b, 1, H] of the last one of each sequence."""
        width = settled.tokens.shape[1]
        places = torch.arange(width, device=settled.tokens.device)
        slots = settled.starts[:, None] + places
        causal = torch.ones(width, width, dtype=torch.bool, device=slots.device).tril()
        visible = bucket(settled.longest + width, cache.length)
        mask = row_mask(slots, settled.starts, causal, visible)
        hidden = self._draft.fuse(settled.features)
        output = self._pass(cache, settled.tokens, hidden, slots, slots, mask)
        return _last(output, settled.counts)[:, None]

    def _expand(self, cache: TreeCache, settled: Settled, output: torch.Tensor) -> torch.Tensor:
        draft, lengths = self._draft, settled.starts + settled.counts
        drafted, done = [], 0
        every_slot = lengths[:, None] + self._offsets
        visible = bucket(settled.longest + settled.tokens.shape[1] + self._inner, cache.length)
        for depth, level in enumerate(self._levels, start=1):
            best = ordered_topk(draft.logits(output), level.top_k)
            tokens = draft.target_ids(best)[:, level.parent, level.rank]
            drafted.append(tokens)
            if len(level.expanded) == 0:
                break
            mask = row_mask(every_slot, lengths, level.sees, visible)
            slots = every_slot[:, done : done + len(level.expanded)]
            positions = (lengths + depth - 1)[:, None].expand_as(slots)
            hidden = draft.feedback(output)[:, level.parent[level.expanded]]
            output = self._pass(cache, tokens[:, level.expanded], hidden, slots, positions, mask)
            done += len(level.expanded)
        return torch.cat(drafted, dim=1)

    def _pass(
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
        cache.aim(slots, mask.shape[-1])
        output: torch.Tensor = self._draft(
            tokens, hidden, (cosine[positions], sine[positions]), cached_attention(cache, mask)
        )
        return output


def cached_attention(cache: TreeCache, mask: torch.Tensor) -> Attend:
    """Attention over a one-layer cache, the new rows written to it first."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = cache.update(key, value, 0)
        output, _ = attention.grouped_sdpa(torch.nn.Identity(), query, keys, values, mask)
        return output

    return attend


def _last(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[b, E, X] -> [b, X], the last entry that counts."""
    return values[torch.arange(len(counts), device=counts.device), counts - 1]
