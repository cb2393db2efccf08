"""Recording the rank trace: one teacher-forced pass over the text gives every position's ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import root_states
from mtp_bench.heads.medusa import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.trace import RankTrace


@torch.inference_mode()
def record_trace(
    base: BaseModel,
    heads: MedusaHeads,
    answers: Sequence[Answer],
    *,
    top_k: int = 10,
    on_progress: Callable[[int], None] | None = None,
) -> RankTrace:
    """Ranks of the true tokens for every position of every answer with text.

    Answers without text (dropped as loops) are left out.

    Args:
        top_k: ranks below this are recorded, others are misses.
        on_progress: called with the number of positions done since the last call.
    """
    kept = [answer for answer in answers if answer.tokens]
    ranks: list[np.ndarray] = [np.empty(0)] * len(kept)
    for indices, states in root_states(base, kept):
        for index, piece in zip(indices, states, strict=True):
            ranks[index] = _ranks_of(heads, piece, kept[index].tokens, top_k)
            if on_progress is not None:
                on_progress(len(piece))
    lengths = [len(answer.tokens) for answer in kept]
    return RankTrace(
        ranks=np.concatenate(ranks) if ranks else np.empty((0, heads.num_heads), dtype=np.int16),
        prompt_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        top_k=top_k,
        prompt_ids=tuple(answer.id for answer in kept),
        categories=tuple(answer.category for answer in kept),
    )


def _ranks_of(heads: MedusaHeads, states: torch.Tensor, tokens: list[int], top_k: int) -> np.ndarray:
    """int16 [L, D]: row t, column d - 1 is the rank of token t + d under head d - 1 at root t; -1 past the end."""
    length = len(tokens)
    ranks = torch.full((length, heads.num_heads), -1, dtype=torch.int16)
    targets = torch.tensor(tokens, device=states.device)
    for head in range(min(heads.num_heads, length - 1)):
        rows = length - head - 1
        ranks[:rows, head] = heads.ranks(states[:rows], head, targets[head + 1 :], top_k).cpu()
    return ranks.numpy()
