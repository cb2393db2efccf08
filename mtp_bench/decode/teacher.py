"""Teacher-forced passes: the base model's hidden states along known texts, many positions at once.

Verification reproduces these states (up to rounding), because a tree row attends to nothing but its own past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.prefill import prefill
from mtp_bench.models.base import BaseModel

TOKENS_PER_PASS = 2048


class ForcedPass(NamedTuple):
    """A batch of texts (prompt and answer) forced through the base model, but for their last tokens.

    Attributes:
        indices: which answers.
        following: int64 [B, L], the token after each position, 0 beyond a text.
        hidden: [B, L, H] final hidden states; features: [B, L, F], see ``BaseModel.features``.
    """

    indices: list[int]
    following: torch.Tensor
    hidden: torch.Tensor
    features: torch.Tensor


@torch.inference_mode()
def forced_passes(
    base: BaseModel,
    answers: Sequence[Answer],
    *,
    aux_layers: Sequence[int] = (),
    tokens_per_pass: int = TOKENS_PER_PASS,
) -> Iterator[ForcedPass]:
    """Force all answers that have text; grouped by similar length, so the order is not that of ``answers``."""
    for group in _groups(answers, tokens_per_pass):
        texts = [answers[index].prompt + answers[index].tokens for index in group]
        longest = max(len(text) for text in texts)
        padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=base.device)
        # The last token is never fed: what follows it is not known.
        cache = TreeCache.allocate(base, batch=len(group), length=longest - 1)
        hidden, features = prefill(base, cache, padded[:, :-1], aux_layers=aux_layers)
        yield ForcedPass(group, padded[:, 1:], hidden, features)


def root_states(
    base: BaseModel, answers: Sequence[Answer], *, tokens_per_pass: int = TOKENS_PER_PASS
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Hidden states from which each output token of each answer was chosen.

    Yields:
        indices of a group's answers, and for each its states [L, H]: row t chose output token t.
    """
    for forced in forced_passes(base, answers, tokens_per_pass=tokens_per_pass):
        rows = [root_rows(answers[index]) for index in forced.indices]
        yield forced.indices, [forced.hidden[place, own] for place, own in enumerate(rows)]


def root_rows(answer: Answer) -> slice:
    """Positions whose hidden states chose the tokens of ``answer``, one for each."""
    start = len(answer.prompt) - 1
    return slice(start, start + len(answer.tokens))


def forward(base: BaseModel, tokens: torch.Tensor, *, chunk: int | None = None) -> torch.Tensor:
    """Causal pass over int64 [B, P] tokens from an empty cache, in chunks: hidden states [B, P, H]."""
    cache = TreeCache.allocate(base, batch=tokens.shape[0], length=tokens.shape[1])
    return prefill(base, cache, tokens, chunk=chunk)[0]


def _groups(answers: Sequence[Answer], tokens_per_pass: int) -> Iterator[list[int]]:
    lengths = [len(answer.prompt) + len(answer.tokens) for answer in answers]
    order = sorted((i for i, answer in enumerate(answers) if answer.tokens), key=lambda i: (lengths[i], i))
    group: list[int] = []
    for index in order:
        if group and (len(group) + 1) * lengths[index] > tokens_per_pass:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
