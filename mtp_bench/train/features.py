"""Training data for heads: the base model's hidden states on its own answers, with the tokens that follow.

Position t of an answer stands for a step whose root is output token t: the heads see the hidden state that chose the
root and must guess output tokens t + 1, t + 2, ... (head i guesses t + 1 + i), exactly as in decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import root_states
from mtp_bench.models.base import BaseModel

PAST_END = -1


@dataclass(frozen=True, eq=False)
class Features:
    """T positions of P answers.

    Attributes:
        states: [T, H] in the base model's dtype, on the CPU.
        targets: int64 [T, n]; ``targets[t, i]`` is the token head i must guess, -1 past the end of the answer.
        answer: int64 [T], index of the answer each position belongs to.
    """

    states: torch.Tensor
    targets: torch.Tensor
    answer: torch.Tensor

    def __len__(self) -> int:
        return len(self.answer)

    def take(self, rows: torch.Tensor) -> Features:
        """The positions at ``rows``."""
        return Features(self.states[rows], self.targets[rows], self.answer[rows])


def targets_of(tokens: Sequence[int], num_heads: int) -> torch.Tensor:
    """int64 [L, num_heads]: for each root position the tokens that follow it, -1 past the end."""
    padded = torch.tensor([*tokens, *[PAST_END] * num_heads], dtype=torch.int64)
    return padded[1:].unfold(0, num_heads, 1)[: len(tokens)]


def collect(
    base: BaseModel, answers: Sequence[Answer], num_heads: int, *, on_progress: Callable[[int], None] | None = None
) -> Features:
    """Teacher-forced hidden states of every answer's positions.

    Args:
        on_progress: called with the number of positions done since the last call.
    """
    total = sum(len(answer.tokens) for answer in answers)
    states = torch.empty(total, base.hidden_size, dtype=base.dtype)
    targets = torch.empty(total, num_heads, dtype=torch.int64)
    owner = torch.empty(total, dtype=torch.int64)
    row = 0
    for indices, hidden in root_states(base, answers):
        for index, piece in zip(indices, hidden, strict=True):
            stop = row + len(piece)
            states[row:stop] = piece.cpu()
            targets[row:stop] = targets_of(answers[index].tokens, num_heads)
            owner[row:stop] = index
            if on_progress is not None:
                on_progress(len(piece))
            row = stop
    return Features(states, targets, owner)
