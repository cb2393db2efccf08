"""Recording the rank trace: teacher-forced passes over the text give every position's ranks at every depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import forced_passes, root_rows, root_states
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.eagle.unroll import unroll
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.ranking import ranks_of
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.dynamic import dynamic_places
from mtp_bench.trace import RankTrace

Ranks = npt.NDArray[np.int16]
Recorded = tuple[int, Ranks, dict[int, Ranks]]
"""Index of an answer, its ranks [L, D], and its places in the pools of dynamic trees [L, D, D] by top_k."""


@torch.inference_mode()
def record_trace(
    base: BaseModel,
    heads: AnyHeads,
    answers: Sequence[Answer],
    *,
    top_k: int = 10,
    dynamic_top_ks: Sequence[int] = (),
    on_progress: Callable[[int], None] | None = None,
) -> RankTrace:
    """Ranks of the true tokens for every position of every answer with text.

    Answers without text (dropped as loops) are left out.

    Args:
        top_k: ranks below this are recorded, others are misses.
        dynamic_top_ks: record what dynamic trees with each of these would hold too (EAGLE drafts only).
        on_progress: called with the number of positions done since the last call.
    """
    kept = [answer for answer in answers if answer.tokens]
    ranks: list[Ranks] = [np.empty(0, np.int16)] * len(kept)
    pools: dict[int, list[Ranks]] = {k: [np.empty(0, np.int16)] * len(kept) for k in dynamic_top_ks}
    if isinstance(heads, EagleDraft):
        recorded = _eagle_ranks(base, heads, kept, top_k, dynamic_top_ks)
    elif isinstance(heads, HydraHeads):
        recorded = _hydra_ranks(base, heads, kept, top_k)
    else:
        assert isinstance(heads, MedusaHeads)
        recorded = _medusa_ranks(base, heads, kept, top_k)
    for index, own, own_pools in recorded:
        ranks[index] = own
        for k, pool in own_pools.items():
            pools[k][index] = pool
        if on_progress is not None:
            on_progress(len(own))
    lengths = [len(answer.tokens) for answer in kept]
    return RankTrace(
        ranks=np.concatenate(ranks) if ranks else np.empty((0, heads.max_depth), dtype=np.int16),
        pools={k: np.concatenate(parts) for k, parts in pools.items() if parts},
        prompt_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        top_k=top_k,
        prompt_ids=tuple(answer.id for answer in kept),
        categories=tuple(answer.category for answer in kept),
    )


def _medusa_ranks(base: BaseModel, heads: MedusaHeads, answers: Sequence[Answer], top_k: int) -> Iterator[Recorded]:
    for indices, states in root_states(base, answers):
        for index, piece in zip(indices, states, strict=True):
            yield index, _ranks_of(heads, piece, answers[index].tokens, top_k), {}


def _hydra_ranks(base: BaseModel, heads: HydraHeads, answers: Sequence[Answer], top_k: int) -> Iterator[Recorded]:
    """Every head sees the true tokens before its own."""
    for forced in forced_passes(base, answers, aux_layers=heads.aux_layers):
        states = heads.states(forced.features)
        for place, index in enumerate(forced.indices):
            seen = states[place, root_rows(answers[index])]
            text = torch.tensor(answers[index].tokens, device=seen.device)
            ranks = torch.full((len(text), heads.num_heads), -1, dtype=torch.int16)
            for head in range(min(heads.num_heads, len(text) - 1)):
                rows = len(text) - head - 1
                # Row t: the root is token t, and head tokens have been drafted behind it.
                seen = heads.ground(seen[:rows], text[head : head + rows])
                ranks[:rows, head] = ranks_of(heads.logits(seen, head), text[head + 1 :], top_k).cpu()
            yield index, ranks.numpy(), {}


def _eagle_ranks(
    base: BaseModel, draft: EagleDraft, answers: Sequence[Answer], top_k: int, dynamic_top_ks: Sequence[int]
) -> Iterator[Recorded]:
    """All starts and depths of a batch of texts by ``max_depth`` batched draft passes (see ``unroll``)."""
    for forced in forced_passes(base, answers, aux_layers=draft.aux_layers):
        ranks = [torch.full((len(answers[i].tokens), draft.max_depth), -1, dtype=torch.int16) for i in forced.indices]
        for step, output in enumerate(unroll(draft, forced.following, forced.features, draft.max_depth)):
            for place, index in enumerate(forced.indices):
                targets = torch.tensor(answers[index].tokens[step + 1 :], device=base.device)
                logits = draft.logits(output[place, root_rows(answers[index])][: len(targets)])
                ranks[place][: len(targets), step] = ranks_of(logits, draft.draft_ids(targets), top_k).cpu()
        for place, index in enumerate(forced.indices):
            pools = dynamic_places(draft, forced, place, answers[index], dynamic_top_ks) if dynamic_top_ks else {}
            yield index, ranks[place].numpy(), pools


def _ranks_of(heads: MedusaHeads, states: torch.Tensor, tokens: list[int], top_k: int) -> Ranks:
    """int16 [L, D]: row t, column d - 1 is the rank of token t + d under head d - 1 at root t; -1 past the end."""
    length = len(tokens)
    ranks = torch.full((length, heads.num_heads), -1, dtype=torch.int16)
    targets = torch.tensor(tokens, device=states.device)
    for head in range(min(heads.num_heads, length - 1)):
        rows = length - head - 1
        ranks[:rows, head] = heads.ranks(states[:rows], head, targets[head + 1 :], top_k).cpu()
    recorded: Ranks = ranks.numpy()
    return recorded
