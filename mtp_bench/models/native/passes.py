"""What one pass of layers hands to the kernels: rows, cache, masks and scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from mtp_bench.models.native.library import Mask, Model, Pass, library

MASK_KINDS = ("full_attention", "sliding_attention")


class SlottedCache(Protocol):
    """What the kernels need of a KV cache.

    Attributes:
        data: [layers, 2, B, K, S, d] with the last dimension contiguous.
        slots: int64 [B, R], where the coming rows go.
        visible: slots that they see.
    """

    data: torch.Tensor
    slots: torch.Tensor
    visible: int


@contextmanager
def native_pass(
    model: Model,
    rotary: tuple[torch.Tensor, torch.Tensor],
    turns: torch.Tensor,
    mask: Any,
    cache: SlottedCache,
    empty: Callable[..., torch.Tensor],
) -> Iterator[Pass]:
    """A pass over the rows whose slots the cache was aimed at; what it points to lives as long as the block.

    Args:
        rotary: cosines and sines [positions, d].
        turns: int64 [B, R], which of these each row takes.
        mask: bool [B or 1, 1, R, S], one per kind of layers, or None for rows that see every slot.
        empty: makes tensors in the model's dtype.
    """
    batch, rows = cache.slots.shape
    threads, lanes, total = torch.get_num_threads(), int(library().mtp_lanes()), batch * rows
    # Contiguous, and named so that none is freed before the block ends.
    read = [part.contiguous() for part in (cache.slots, *rotary, turns)]
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim
    sizes = (model.hidden, model.hidden, heads, model.heads * model.head_dim, model.inner)
    scratch = [empty(total, size) for size in sizes]
    scores = torch.empty(threads, library().mtp_queries(), cache.visible + lanes)
    yield Pass(
        batch, rows, cache.visible, threads,
        None, *(tensor.data_ptr() for tensor in read),
        cache.data.data_ptr(), *cache.data.stride()[:5],
        (Mask * 2)(*_masks(mask)), None, 0, None, None,
        *(tensor.data_ptr() for tensor in (*scratch, scores)),
    )  # fmt: skip


def _masks(mask: Any) -> list[Mask]:
    """One for each of ``MASK_KINDS``.

    Raises:
        TypeError: they are not bool; the kernels would read something else.
    """
    of_kind = [mask.get(kind) for kind in MASK_KINDS] if isinstance(mask, dict) else [mask, mask]
    if any(one is not None and one.dtype != torch.bool for one in of_kind):
        raise TypeError("the kernels read bool masks")
    return [
        Mask(None, 0, 0) if one is None else Mask(one.data_ptr(), one.stride(0) if len(one) > 1 else 0, one.stride(2))
        for one in of_kind
    ]
