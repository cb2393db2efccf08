"""Training data for heads: the base model's hidden states on its own answers, with the tokens that follow.

Position t of an answer stands for a step whose root is output token t: the heads see the hidden state that chose the
root and must guess output tokens t + 1, t + 2, ... (head i guesses t + 1 + i), exactly as in decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import root_states
from mtp_bench.files import atomic_path, sha256_json
from mtp_bench.models.base import BaseModel

PAST_END = -1
FIELDS = ("states", "targets", "answer")


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


def cached_features(
    path: Path,
    base: BaseModel,
    train: Sequence[Answer],
    held_out: Sequence[Answer],
    num_heads: int,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Features, Features]:
    """``collect`` for both parts, kept in ``path`` (safetensors) so that a stopped training need not repeat it."""
    key = sha256_json(
        [base.sha256, str(base.dtype), num_heads, *[[[a.id, a.tokens] for a in p] for p in (train, held_out)]]
    )
    stored = _read(path, key)
    if stored is None:
        stored = (
            collect(base, train, num_heads, on_progress=on_progress),
            collect(base, held_out, num_heads, on_progress=on_progress),
        )
        write_features(path, key, *stored)
    return stored


def write_features(path: Path, key: str, train: Features, held_out: Features) -> None:
    """Store both parts under ``key``, atomically."""
    parts = {"train": train, "held_out": held_out}
    tensors = {f"{name}.{field}": getattr(part, field) for name, part in parts.items() for field in FIELDS}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"key": key})


def _read(path: Path, key: str) -> tuple[Features, Features] | None:
    """The stored parts, None when there are none or they belong to other text."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            if (stored.metadata() or {}).get("key") != key:
                return None
            train, held_out = (
                Features(*[stored.get_tensor(f"{name}.{field}") for field in FIELDS]) for name in ("train", "held_out")
            )
    except SafetensorError:
        return None
    return train, held_out
