"""Training data for draft layers that read whole texts: the base model's features at every position, prompts included.

(Medusa heads read single positions; their data is ``features``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import forced_passes
from mtp_bench.files import atomic_path, sha256_json
from mtp_bench.models.base import BaseModel

FIELDS = ("following", "features", "hidden", "offsets", "roots")


@dataclass(frozen=True, eq=False)
class Texts:
    """n texts of T positions in all, each without its last token.

    Attributes:
        following: int64 [T], the token after each position.
        features: [T, F] what the draft reads, or [T, 0] where that is ``hidden``.
        hidden: [T, H] final hidden states.
        offsets: int64 [n + 1], where each text begins.
        roots: int64 [n], first position within each text from which an answer token was chosen.
    """

    following: torch.Tensor
    features: torch.Tensor
    hidden: torch.Tensor
    offsets: torch.Tensor
    roots: torch.Tensor

    def __len__(self) -> int:
        return len(self.roots)

    @property
    def answer_positions(self) -> int:
        """Positions that belong to answers."""
        return int((self.offsets.diff() - self.roots).sum())

    def batch(self, texts: Sequence[int]) -> TextBatch:
        """Some of the texts, padded to the longest."""
        spans = [slice(int(self.offsets[i]), int(self.offsets[i + 1])) for i in texts]
        longest = max(span.stop - span.start for span in spans)
        places = torch.arange(longest)

        def padded(rows: torch.Tensor) -> torch.Tensor:
            missing = [longest - (span.stop - span.start) for span in spans]
            shape = (0, 0) * (rows.dim() - 1)
            return torch.stack([F.pad(rows[span], (*shape, 0, m)) for span, m in zip(spans, missing, strict=True)])

        lengths = torch.tensor([span.stop - span.start for span in spans])
        answered = (places >= self.roots[list(texts)][:, None]) & (places < lengths[:, None])
        hidden = padded(self.hidden)
        features = padded(self.features) if self.features.shape[1] else hidden
        return TextBatch(padded(self.following), features, hidden, answered)


@dataclass(frozen=True, eq=False)
class TextBatch:
    """B padded texts: ``following`` int64 [B, L], ``features`` [B, L, F], ``hidden`` [B, L, H], and ``answered`` bool
    [B, L], the positions from which answer tokens were chosen."""

    following: torch.Tensor
    features: torch.Tensor
    hidden: torch.Tensor
    answered: torch.Tensor


def text_groups(texts: Texts, tokens_per_batch: int) -> list[list[int]]:
    """Texts grouped by similar length, each group padded to no more than ``tokens_per_batch`` positions."""
    lengths = texts.offsets.diff().tolist()
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(texts)), key=lambda i: (lengths[i], i)):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > tokens_per_batch:
            groups.append([])
        groups[-1].append(index)
    return groups


def shuffled(groups: Sequence[list[int]], seed: int, first: int, steps: int) -> Iterator[list[int]]:
    """The groups of steps ``first`` to ``steps - 1``: every epoch is a seeded permutation of all groups."""
    for step in range(first, steps):
        epoch, place = divmod(step, len(groups))
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        yield groups[int(torch.randperm(len(groups), generator=generator)[place])]


def collect_texts(
    base: BaseModel,
    answers: Sequence[Answer],
    aux_layers: Sequence[int],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Texts:
    """Force ``answers`` through the base model; those without text are left out.

    Args:
        on_progress: called with the number of positions done since the last call.
    """
    kept = [answer for answer in answers if answer.tokens]
    lengths = [len(answer.prompt) + len(answer.tokens) - 1 for answer in kept]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    total = int(offsets[-1])
    following = torch.empty(total, dtype=torch.int64)
    features = torch.empty(total, base.hidden_size * len(aux_layers), dtype=base.dtype)
    hidden = torch.empty(total, base.hidden_size, dtype=base.dtype)
    for forced in forced_passes(base, kept, aux_layers=aux_layers):
        for place, index in enumerate(forced.indices):
            rows = slice(int(offsets[index]), int(offsets[index + 1]))
            own = slice(0, lengths[index])
            following[rows], hidden[rows] = forced.following[place, own].cpu(), forced.hidden[place, own].cpu()
            if aux_layers:
                features[rows] = forced.features[place, own].cpu()
            if on_progress is not None:
                on_progress(lengths[index])
    roots = torch.tensor([len(answer.prompt) - 1 for answer in kept], dtype=torch.int64)
    return Texts(following, features, hidden, offsets, roots)


def cached_texts(
    path: Path,
    base: BaseModel,
    parts: Sequence[Sequence[Answer]],
    aux_layers: Sequence[int],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> list[Texts]:
    """``collect_texts`` for each part, kept in ``path`` (safetensors) so that a stopped training need not repeat it."""
    content = [[[a.id, a.prompt, a.tokens] for a in part] for part in parts]
    key = sha256_json([base.sha256, str(base.dtype), list(aux_layers), content])
    stored = _read(path, key, len(parts))
    if stored is None:
        stored = [collect_texts(base, part, aux_layers, on_progress=on_progress) for part in parts]
        tensors = {f"{i}.{field}": getattr(part, field) for i, part in enumerate(stored) for field in FIELDS}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata={"key": key})
    return stored


def _read(path: Path, key: str, parts: int) -> list[Texts] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            if (stored.metadata() or {}).get("key") != key:
                return None
            return [Texts(*[stored.get_tensor(f"{i}.{field}") for field in FIELDS]) for i in range(parts)]
    except SafetensorError:
        return None
