"""Drafting with Hydra heads: level by level, each head seeing the tokens drafted before its own."""

from __future__ import annotations

import torch

from mtp_bench.decode.draft import Drafted, Settled, Which, last_settled
from mtp_bench.decode.layer import cached_attention, layer_cache, sequences, settled_rows
from mtp_bench.decode.levels import levels_of
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.hydra.prefix import PrefixLayer
from mtp_bench.heads.ranking import ordered_topk
from mtp_bench.topology import StaticTree


class HydraDrafter:
    """Drafts the nodes of one static tree, for B sequences; between steps a prefix layer's cache alone is kept."""

    def __init__(self, heads: HydraHeads, tree: StaticTree, batch: int, length: int, device: torch.device) -> None:
        """Args:
        length: slots per sequence of the base model's cache.
        """
        self._heads, self._levels = heads, levels_of(tree, device)
        self.aux_layers = heads.aux_layers
        # A last step may settle more tokens than were asked for.
        self.prefix = None if heads.prefix is None else CachedPrefix(heads.prefix, batch, length + tree.depth)

    def draft(self, which: Which, settled: Settled) -> Drafted:
        """See ``Drafter``; the last settled token is the root."""
        states = settled.features if self.prefix is None else self.prefix.settle(which, settled)
        roots = settled.tokens.gather(1, settled.counts[:, None] - 1)
        seen = self._heads.ground(last_settled(states, settled.counts)[:, None], roots)
        drafted = []
        for head, level in enumerate(self._levels):
            tokens = ordered_topk(self._heads.logits(seen, head), level.top_k)[:, level.parent, level.rank]
            drafted.append(tokens)
            seen = self._heads.ground(seen[:, level.parent[level.expanded]], tokens[:, level.expanded])
        return Drafted(torch.cat(drafted, dim=1))


class CachedPrefix:
    """A prefix layer with its cache over the settled positions; slot t holds position t."""

    def __init__(self, layer: PrefixLayer, batch: int, length: int) -> None:
        self._layer, self._rotary = layer, layer.rotary(length)
        self.cache = layer_cache(layer.config, batch, length, layer.norm.weight)

    def settle(self, which: Which, settled: Settled) -> torch.Tensor:
        """Read what was settled; the layer's outputs [b, E, H]."""
        cosine, sine = self._rotary
        with sequences(self.cache, which) as cache:
            slots, mask = settled_rows(cache, settled)
            attend = cached_attention(cache, slots, mask)
            output: torch.Tensor = self._layer(settled.features, (cosine[slots], sine[slots]), attend)
        return output
