"""torch's FlexAttention for trees, for ``--attention flex``.

Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels" (arXiv 2412.05496): a mask
is a function, and blocks of keys that no row of a block sees are skipped. On CUDA the kernel is compiled (never run on
a GPU yet).

On a CPU torch's unfused form is used, which holds all scores of a layer. Compiled for changing sizes, torch 2.13's CPU
code does not compile: its template puts in its block sizes by replacing text, ``ks3`` within ``ks36`` too ("error:
'cur_kvSplitSize6' was not declared in this scope"). Compiled for each size anew it is right, but takes 4 to 8 s for
each of them, and then 1.3 to 4.5 times as long as ``grouped_sdpa`` (16 and 64 rows, 1,088 and 4,224 slots).

Registered with transformers as ``flex``; the model stays unpatched.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from mtp_bench.models.compat import register_attention
from mtp_bench.models.compiled import Compiled

NAME = "flex"
BLOCK = 128  # rows and keys; what torch's kernels take by default

_fused = Compiled(flex_attention)
# It is, on purpose, on CPUs only.
warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")


def flex(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with grouped key/value heads.

    Args:
        query: [B, A, R, d]; key, value: [B, K, S, d] with A a multiple of K.
        attention_mask: from ``block_mask``.
        softcap: scores become ``softcap * tanh(score / softcap)`` (Gemma 2).

    Returns:
        [B, R, A, d] and no attention weights.

    Raises:
        ValueError: another mask, or none.
    """
    if not isinstance(attention_mask, BlockMask):
        raise ValueError("flex attends by a block mask only; make one with block_mask")
    attend: Callable[..., Any] = _fused if query.is_cuda else flex_attention
    output = attend(query, key, value, _capped(softcap), attention_mask, scaling, query.shape[1] != key.shape[1])
    return output.transpose(1, 2).contiguous(), None


@functools.cache
def _capped(softcap: float | None) -> Any:
    if softcap is None:
        return None

    def modified(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return modified


def block_mask(mask: torch.Tensor) -> BlockMask:
    """bool [B, 1, R, S] (True = visible) as FlexAttention takes it: what ``create_block_mask`` makes of it, without
    calling a function for every element, and without values that the host would wait for."""
    batch, _, rows, slots = mask.shape
    down, across = -(-rows // BLOCK), -(-slots // BLOCK)
    padded = F.pad(mask, (0, across * BLOCK - slots, 0, down * BLOCK - rows))
    seen = padded.reshape(batch, 1, down, BLOCK, across, BLOCK).sum((3, 5))
    whole = seen == BLOCK * BLOCK

    def visible(b: torch.Tensor, h: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        return mask[b, 0, row, slot]

    return BlockMask.from_kv_blocks(
        *_listed((seen > 0) & ~whole), *_listed(whole), BLOCK, visible, (rows, slots), compute_q_blocks=False
    )


def score_bytes(heads: int, rows: int, slots: int) -> int:
    """What the unfused form takes for one layer: scores in fp32, three and a half times (measured), so four."""
    return 4 * 4 * heads * rows * slots


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of each row of blocks are set (int32), and a permutation with these first, in order."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


register_attention(NAME, flex)
