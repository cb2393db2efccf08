"""Teacher-forced passes: the base model's hidden states along known texts, many positions at once.

Verification reproduces these states (up to rounding), because a tree row attends to nothing but its own past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.step import prefill_hidden
from mtp_bench.models.base import BaseModel

TOKENS_PER_PASS = 2048


@torch.inference_mode()
def root_states(
    base: BaseModel, answers: Sequence[Answer], *, tokens_per_pass: int = TOKENS_PER_PASS
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Hidden states from which each output token of each answer was chosen.

    Answers are grouped by similar length, so the order of groups is not that of ``answers``.

    Yields:
        indices of the group's answers, and for each its states [L, H]: row t chose output token t.
    """
    for group in _groups(answers, tokens_per_pass):
        # The last token is never fed: what follows it is not known.
        texts = [answers[index].prompt + answers[index].tokens[:-1] for index in group]
        longest = max(len(text) for text in texts)
        tokens = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=base.device)
        hidden = forward(base, tokens)
        pieces = []
        for place, index in enumerate(group):
            start = len(answers[index].prompt) - 1
            pieces.append(hidden[place, start : start + len(answers[index].tokens)])
        yield group, pieces


def forward(base: BaseModel, tokens: torch.Tensor, *, chunk: int | None = None) -> torch.Tensor:
    """Causal pass over int64 [B, P] tokens from an empty cache, in chunks: hidden states [B, P, H]."""
    cache = TreeCache.allocate(base, batch=tokens.shape[0], length=tokens.shape[1])
    return torch.cat(list(prefill_hidden(base, cache, tokens, chunk=chunk)), dim=1)


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
