"""One static KV cache, written in place; after acceptance one gather moves the accepted rows.

Layout ``[layers, 2, B, kv_heads, S, head_dim]`` in one allocation, so that moving accepted rows is a single indexing
operation over all layers. A model split over devices has one such part for each run of layers on one device. Nothing
here grows during decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from mtp_bench.models.base import BaseModel
from mtp_bench.models.compat import Cache

LENGTH_BUCKET = 64
# Never seen: a view of really all slots would be contiguous, for which compiled code would be compiled once more.
SPARE_SLOTS = 1


def bucket(slots: int, limit: int) -> int:
    """Slots rounded up to a bucket, so that shapes repeat; at most ``limit``."""
    return min(-(-slots // LENGTH_BUCKET) * LENGTH_BUCKET, limit)


def write_rows(data: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Write keys and values [B, K, R, d] of one layer to slots int64 [B, R] of ``data``."""
    _write(data[layer, 0], data[layer, 1], keys, values, slots)


def _write(
    keys: torch.Tensor, values: torch.Tensor, new_keys: torch.Tensor, new_values: torch.Tensor, slots: torch.Tensor
) -> None:
    if len(keys) == 1:
        keys.index_copy_(2, slots[0], new_keys)
        values.index_copy_(2, slots[0], new_values)
    else:
        sequence = torch.arange(len(keys), device=keys.device)[:, None]
        keys[sequence, :, slots] = new_keys.transpose(1, 2)
        values[sequence, :, slots] = new_values.transpose(1, 2)


# Opaque to the compiler, which would otherwise copy the whole cache in every layer to keep the write pure.
compiled_write = torch.library.custom_op("mtp_bench::write_rows", write_rows, mutates_args=("data",))


class TreeCache(Cache):
    """A transformers cache whose rows are written to slots the decoder chooses.

    Before a forward pass, call ``aim(slots, visible)``: row r of sequence b is written to slot ``slots[b, r]``, and
    attention sees the first ``visible`` slots.
    """

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.data = data
        self.visible = self.length
        # Made once: a view costs microseconds, and a step would make four per layer.
        self._layers = [(layer[0], layer[1]) for layer in data]
        self.slots = torch.empty(0)

    @classmethod
    def allocate(cls, base: BaseModel, *, batch: int, length: int) -> TreeCache:
        """Zeroed cache for ``batch`` sequences of up to ``length`` slots (tree rows included), where the layers run."""

        def part(layers: int, device: torch.device) -> TreeCache:
            shape = (layers, 2, batch, base.num_kv_heads, length, base.head_dim)
            return TreeCache.zeros(shape, base.lm_head_weight, device)

        if set(base.layer_devices) == {base.device}:
            return part(base.num_layers, base.device)
        return SplitCache([part(len(list(run)), device) for device, run in groupby(base.layer_devices)])

    @classmethod
    def zeros(
        cls, shape: tuple[int, int, int, int, int, int], like: torch.Tensor, device: torch.device | None = None
    ) -> TreeCache:
        """Zeroed cache of this layout, in the dtype of ``like`` and on its device unless another is named."""
        *front, length, width = shape
        return cls(torch.zeros(*front, length + SPARE_SLOTS, width, dtype=like.dtype, device=device or like.device))

    @property
    def parts(self) -> Sequence[TreeCache]:
        """The caches of its runs of layers that lie on one device: here only itself."""
        return (self,)

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.data.shape[2]

    @property
    def length(self) -> int:
        """Slots per sequence."""
        return self.data.shape[4] - SPARE_SLOTS

    def sequence(self, index: int) -> TreeCache:
        """A view of one sequence, sharing memory."""
        return TreeCache(self.data[:, :, index : index + 1])

    def aim(self, slots: torch.Tensor, visible: int) -> None:
        """Choose where the next pass writes (int64 [B, R]) and how many slots it sees."""
        self.slots = slots
        self.visible = visible

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, K, R, d] keys and values of one layer; return [B, K, visible, d] views."""
        if torch.compiler.is_compiling():
            compiled_write(self.data, key_states, value_states, self.slots, layer_idx)
            keys, values = self.data[layer_idx, 0], self.data[layer_idx, 1]
        else:
            keys, values = self._layers[layer_idx]
            _write(keys, values, key_states, value_states, self.slots)
        return keys[:, :, : self.visible], values[:, :, : self.visible]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots ``source`` to ``target`` (int64 [B, D] each) in every layer; the sources are read first."""
        if self.batch == 1:
            rows = self.data.index_select(4, source[0])
            self.data.index_copy_(4, target[0], rows)
        else:
            sequence = torch.arange(self.batch, device=self.data.device)[:, None]
            self.data[:, :, sequence, :, target] = self.data[:, :, sequence, :, source]

    def take_over(self, sequences: list[int], other: TreeCache) -> None:
        """Copy all slots of ``other`` to the first ones of ``sequences``, one for each of its own."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.data[:, :, sequences, :, : other.length] = theirs.data[:, :, :, :, : other.length]

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        """Slots seen by the next pass; positions are always given, so this only informs mask helpers."""
        return 0

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Length and offset of the keys; masks are always given, so this is never used to build one."""
        return self.visible, 0


class SplitCache(TreeCache):
    """The cache of a model split over devices: its parts, of successive layers each, lie where the layers run.

    Slots may come from any device.
    """

    def __init__(self, parts: Sequence[TreeCache]) -> None:
        Cache.__init__(self, layers=[])
        self._parts = tuple(parts)
        self.visible = self.length
        # Part of each layer, and its number in it.
        self._places = [(part, layer) for part in self._parts for layer in range(len(part.data))]

    @property
    def parts(self) -> Sequence[TreeCache]:
        """See ``TreeCache``."""
        return self._parts

    @property
    def batch(self) -> int:
        """See ``TreeCache``."""
        return self._parts[0].batch

    @property
    def length(self) -> int:
        """See ``TreeCache``."""
        return self._parts[0].length

    def sequence(self, index: int) -> TreeCache:
        """See ``TreeCache``."""
        return SplitCache([part.sequence(index) for part in self._parts])

    def aim(self, slots: torch.Tensor, visible: int) -> None:
        """See ``TreeCache``; each part gets the slots on its own device."""
        self.visible = visible
        for part in self._parts:
            part.aim(slots.to(part.data.device), visible)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``TreeCache``."""
        part, layer = self._places[layer_idx]
        return part.update(key_states, value_states, layer)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See ``TreeCache``; one gather for each part."""
        for part in self._parts:
            part.move(source.to(part.data.device), target.to(part.data.device))
