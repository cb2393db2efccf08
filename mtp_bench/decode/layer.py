"""What drafters with a transformer layer of their own share: its cache over the settled positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.draft import Settled, Which
from mtp_bench.decode.masks import row_mask
from mtp_bench.heads.eagle.draft import EagleConfig
from mtp_bench.models import attention

_NO_MODULE = torch.nn.Identity()  # stands for the module that transformers hands to an attention function


def layer_cache(config: EagleConfig, batch: int, length: int, like: torch.Tensor) -> TreeCache:
    """Zeroed cache of one layer, in the dtype and on the device of ``like``."""
    return TreeCache.zeros((1, 2, batch, config.num_kv_heads, length, config.head_dim), like)


@contextmanager
def sequences(cache: TreeCache, which: Which) -> Iterator[TreeCache]:
    """The cache of some sequences; what is written to it is there when the block ends."""
    if isinstance(which, slice):
        yield cache
    else:
        part = TreeCache(cache.data[:, :, which])
        yield part
        cache.data[:, :, which] = part.data


def settled_rows(cache: TreeCache, settled: Settled) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots int64 [b, E] of the settled tokens, which are their positions too, and their causal mask [b, 1, E, S]."""
    width = settled.tokens.shape[1]
    places = torch.arange(width, device=settled.tokens.device)
    slots = settled.starts[:, None] + places
    causal = torch.ones(width, width, dtype=torch.bool, device=slots.device).tril()
    return slots, row_mask(slots, settled.starts, causal, bucket(settled.longest + width, cache.length))


@dataclass(frozen=True, eq=False)
class CachedAttention:
    """Attention over a one-layer cache, the new rows written to the slots that it was aimed at first.

    Attributes:
        mask: bool [B, 1, R, S].
    """

    cache: TreeCache
    mask: torch.Tensor

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        keys, values = self.cache.update(key, value, 0)
        output, _ = attention.grouped_sdpa(_NO_MODULE, query, keys, values, self.mask)
        return output


def cached_attention(cache: TreeCache, slots: torch.Tensor, mask: torch.Tensor) -> CachedAttention:
    """Attention over a one-layer cache, the new rows written to ``slots`` first."""
    cache.aim(slots, mask.shape[-1])
    return CachedAttention(cache, mask)
