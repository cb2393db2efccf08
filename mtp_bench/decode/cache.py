"""One static KV cache, written in place; after acceptance one gather moves the accepted rows.

Layout ``[layers, 2, B, kv_heads, S, head_dim]`` in one allocation, so that moving accepted rows is a single indexing
operation over all layers. Nothing here grows during decoding.
"""

from __future__ import annotations

from typing import Any

import torch

from mtp_bench.models.base import BaseModel
from mtp_bench.models.compat import Cache

LENGTH_BUCKET = 64


def bucket(slots: int, limit: int) -> int:
    """Slots rounded up to a bucket, so that shapes repeat; at most ``limit``."""
    return min(-(-slots // LENGTH_BUCKET) * LENGTH_BUCKET, limit)


class TreeCache(Cache):
    """A transformers cache whose rows are written to slots the decoder chooses.

    Before a forward pass, call ``aim(slots, visible)``: row r of sequence b is written to slot ``slots[b, r]``, and
    attention sees the first ``visible`` slots.
    """

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.data = data
        self.visible = data.shape[4]
        self._slots = torch.empty(0)
        self._sequence = torch.arange(data.shape[2], device=data.device)[:, None]

    @classmethod
    def allocate(cls, base: BaseModel, *, batch: int, length: int) -> TreeCache:
        """Zeroed cache for ``batch`` sequences of up to ``length`` slots (tree rows included)."""
        shape = (base.num_layers, 2, batch, base.num_kv_heads, length, base.head_dim)
        return cls(torch.zeros(shape, dtype=base.dtype, device=base.device))

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.data.shape[2]

    @property
    def length(self) -> int:
        """Slots per sequence."""
        return self.data.shape[4]

    def sequence(self, index: int) -> TreeCache:
        """A view of one sequence, sharing memory."""
        return TreeCache(self.data[:, :, index : index + 1])

    def aim(self, slots: torch.Tensor, visible: int) -> None:
        """Choose where the next pass writes (int64 [B, R]) and how many slots it sees."""
        self._slots = slots
        self.visible = visible

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, K, R, d] keys and values of one layer; return [B, K, visible, d] views."""
        keys, values = self.data[layer_idx]
        if self.batch == 1:
            keys.index_copy_(2, self._slots[0], key_states)
            values.index_copy_(2, self._slots[0], value_states)
        else:
            keys[self._sequence, :, self._slots] = key_states.transpose(1, 2)
            values[self._sequence, :, self._slots] = value_states.transpose(1, 2)
        return keys[:, :, : self.visible], values[:, :, : self.visible]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots ``source`` to ``target`` (int64 [B, D] each) in every layer; the sources are read first."""
        if self.batch == 1:
            rows = self.data.index_select(4, source[0])
            self.data.index_copy_(4, target[0], rows)
        else:
            self.data[:, :, self._sequence, :, target] = self.data[:, :, self._sequence, :, source]

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        """Slots seen by the next pass; positions are always given, so this only informs mask helpers."""
        return 0

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Length and offset of the keys; masks are always given, so this is never used to build one."""
        return self.visible, 0
