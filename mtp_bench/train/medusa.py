"""Medusa-1 training: the base model frozen, the heads taught to guess its own greedy text.

Loss = sum over heads k of decay^k times the cross entropy of head k's draft vocabulary against the true token, or
against a mixture of it with the base model's own distribution there (``teacher_share``), which says more per token; a
token outside the draft vocabulary cannot be drafted and is left out of the loss (but counts as a miss in the accuracy).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_json
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.train.accuracy import HeadAccuracy, accuracy
from mtp_bench.train.features import PAST_END, Features
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.schedule import make_optimizers, rate_share, resume, save_checkpoint, train_step


@dataclass(frozen=True)
class MedusaRecipe:
    """What is trained and how.

    Attributes:
        num_heads, num_layers: heads, and residual blocks per head.
        lm_head: ``base`` (borrowed, frozen), ``shared`` (one trained for all heads) or ``own`` (one each).
        draft_vocab: tokens the heads choose from, the most frequent in the training text; 0 = the whole vocabulary.
        learning_rate: peak of AdamW, after a linear warm-up and before a cosine decay to a tenth; muon_rate: the
            same of Muon, which trains the blocks' matrices (0 = AdamW for all).
        decay: weight of head k in the loss is ``decay ** k``.
        batch: positions per step.
        start: hash of the heads that training goes on from, None = fresh ones.
        teacher_share: share of the base model's distribution in the targets, 0 = the true tokens only.
        scale_inputs: train weights for inputs scaled to unit size per channel (folded back into plain weights at the
            end). Hidden states hold channels a hundred times larger than others, which hinder training else.
    """

    num_heads: int = 4
    num_layers: int = 1
    lm_head: str = "base"
    draft_vocab: int = 0
    learning_rate: float = 1e-3
    muon_rate: float = 0.02
    decay: float = 0.8
    epochs: float = 2.0
    batch: int = 2048
    teacher_share: float = 0.0
    scale_inputs: bool = True
    warmup_share: float = 0.05
    weight_decay: float = 0.0
    seed: int = 0
    start: str | None = None


@dataclass(frozen=True)
class TrainedHeads:
    """Heads with their last held-out accuracies."""

    heads: MedusaHeads
    held_out: list[HeadAccuracy]
    steps: int
    tokens_seen: int


def draft_vocabulary(features: Features, size: int, vocab_size: int) -> torch.Tensor | None:
    """The ``size`` most frequent target tokens, ascending by id (fewer where fewer occur); None for ``size`` 0."""
    if size <= 0 or size >= vocab_size:
        return None
    targets = features.targets[:, 0]
    counts = torch.bincount(targets[targets != PAST_END], minlength=vocab_size)
    seen = int((counts > 0).sum())
    return counts.argsort(descending=True, stable=True)[: min(size, seen)].sort().values


def fresh_medusa(base: BaseModel, recipe: MedusaRecipe, train: Features) -> MedusaHeads:
    """Untrained heads for ``base``, over the most frequent tokens of ``train`` where the recipe says so."""
    return MedusaHeads.fresh(
        num_heads=recipe.num_heads,
        num_layers=recipe.num_layers,
        base_lm_head_weight=base.lm_head_weight.float(),
        lm_head=recipe.lm_head,  # type: ignore[arg-type]
        token_map=draft_vocabulary(train, recipe.draft_vocab, base.vocab_size),
        seed=recipe.seed,
    )


def train_medusa(
    base: BaseModel,
    train: Features,
    held_out: Features,
    recipe: MedusaRecipe,
    *,
    log: TrainingLog,
    checkpoint: Path,
    start: MedusaHeads | None = None,
    evaluations: int = 12,
    on_step: Callable[[int, int, float], None] | None = None,
) -> TrainedHeads:
    """Train heads; resumes from ``checkpoint`` when it is of the same recipe and data.

    Args:
        log: receives losses and held-out accuracies.
        start: heads to go on from, changed in place; fresh ones when left out.
        evaluations: held-out evaluations, evenly spaced.
        on_step: called with (step, steps, loss).

    Raises:
        InputError: no training positions, or the loss is not finite.
    """
    if len(train) == 0 or len(held_out) == 0:
        raise InputError("no text to train on", where="--train-prompts", fix="give more prompts")
    heads = start.float().requires_grad_(True) if start is not None else fresh_medusa(base, recipe, train)
    token_map = heads.token_map
    teacher_rows = base.lm_head_weight if token_map is None else base.lm_head_weight[token_map]
    if recipe.scale_inputs:
        scale_inputs(heads, train.states)
    steps = max(1, math.ceil(len(train) * recipe.epochs / recipe.batch))
    inner = [weight for name, weight in heads.named_parameters() if "block_weight" in name]
    rates = {"rate": recipe.learning_rate, "muon_rate": recipe.muon_rate, "weight_decay": recipe.weight_decay}
    optimizers = make_optimizers(heads, inner, **rates)
    key = sha256_json([asdict(recipe), len(train), len(held_out), base.sha256])
    first = resume(checkpoint, key, heads, optimizers)
    log.start(first)
    every = max(1, steps // max(1, evaluations))
    for step in range(first, steps):
        share = rate_share(step, steps, recipe.warmup_share)
        rows = _batch_rows(len(train), step, recipe)
        total, per_head = _losses(heads, train, rows, teacher_rows, recipe)
        loss = float(total.detach())
        if not math.isfinite(loss):
            raise InputError(f"the loss became {loss}", where=f"training step {step}", fix="lower --learning-rate")
        train_step(total, heads, optimizers, share)
        log.loss(step, (step + 1) * recipe.batch, loss, per_head, share * recipe.learning_rate)
        if on_step is not None:
            on_step(step + 1, steps, loss)
        if (step + 1) % every == 0 or step + 1 == steps:
            log.held_out((step + 1) * recipe.batch, accuracy(heads, held_out))
            save_checkpoint(checkpoint, key, step + 1, heads, optimizers)
            log.flush()
    if recipe.scale_inputs:
        for name in _scaled_parameters(heads):
            parametrize.remove_parametrizations(heads, name, leave_parametrized=True)
    return TrainedHeads(heads, accuracy(heads, held_out), steps, steps * recipe.batch)


class _ColumnScale(nn.Module):
    """``weight = trained / scale`` per input channel, so that the optimizer sees unit-size inputs."""

    scale: torch.Tensor

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, trained: torch.Tensor) -> torch.Tensor:
        """The plain weight."""
        return trained / self.scale

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """The trained form of a plain weight."""
        return weight * self.scale


def scale_inputs(heads: MedusaHeads, states: torch.Tensor, *, rows: int = 65536) -> None:
    """Re-express the heads' weights for inputs divided by their root mean square over ``states`` [T, H]."""
    sample = states[:: max(1, len(states) // rows)].float()
    scale = sample.square().mean(0).sqrt().clamp(min=1e-6).to(heads.block_weight.device)
    for name in _scaled_parameters(heads):
        # unsafe=True: the check that right_inverse fits would run on a copy; a test holds it instead.
        parametrize.register_parametrization(heads, name, _ColumnScale(scale), unsafe=True)


def _scaled_parameters(heads: MedusaHeads) -> list[str]:
    return ["block_weight"] if heads.lm_head == "base" else ["block_weight", "lm_weight"]


def _losses(
    heads: MedusaHeads, train: Features, rows: torch.Tensor, teacher_rows: torch.Tensor, recipe: MedusaRecipe
) -> tuple[torch.Tensor, list[float]]:
    """The weighted sum, and the loss of each head."""
    batch, device = train.take(rows), heads.block_weight.device
    tokens = batch.targets.to(device)
    targets = torch.where(tokens == PAST_END, PAST_END, heads.draft_ids(tokens.clamp(min=0)))
    # bf16 products with fp32 weights and sums: what AMX and tensor cores are fast at.
    with torch.autocast(device.type, dtype=torch.bfloat16):
        states = heads.all_hidden(batch.states.to(device, torch.float32))
    losses = []
    total = torch.zeros((), device=device)
    for head in range(heads.num_heads):
        lm_rows = heads.lm_rows[head] if heads.lm_head == "own" else heads.lm_rows
        known = targets[:, head] != PAST_END
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = F.linear(states[head][known], lm_rows).float()
        wanted: torch.Tensor = targets[known, head]
        if recipe.teacher_share:
            # The state that chose the token after next is that many rows on, in the same answer.
            teacher = train.states[rows[known.cpu()] + 1 + head].to(device)
            wanted = mix_targets(F.linear(teacher, teacher_rows), wanted, recipe.teacher_share)
        loss = F.cross_entropy(logits, wanted)
        losses.append(float(loss.detach()))
        total = total + recipe.decay**head * loss
    return total, losses


def mix_targets(teacher_logits: torch.Tensor, tokens: torch.Tensor, share: float) -> torch.Tensor:
    """Target distributions: ``share`` of the teacher's over the draft vocabulary, the rest on the true token.

    Args:
        teacher_logits: [R, V']; tokens: int64 [R] draft ids.

    Returns:
        float32 [R, V'], rows summing to 1.
    """
    mixed = share * teacher_logits.float().softmax(-1)
    return mixed.scatter_add(1, tokens[:, None], torch.full_like(mixed[:, :1], 1 - share))


def _batch_rows(total: int, step: int, recipe: MedusaRecipe) -> torch.Tensor:
    """Rows of one step: epochs are seeded permutations, so that a resumed run sees the same batches."""
    start = step * recipe.batch
    rows: list[torch.Tensor] = []
    while sum(len(piece) for piece in rows) < min(recipe.batch, total):
        epoch, offset = divmod(start + sum(len(piece) for piece in rows), total)
        order = _epoch_order(total, recipe.seed, epoch)
        rows.append(order[offset : offset + recipe.batch - sum(len(piece) for piece in rows)])
    return torch.cat(rows)


_ORDERS: dict[tuple[int, int, int], torch.Tensor] = {}


def _epoch_order(total: int, seed: int, epoch: int) -> torch.Tensor:
    key = (total, seed, epoch)
    if key not in _ORDERS:
        _ORDERS.clear()
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        _ORDERS[key] = torch.randperm(total, generator=generator)
    return _ORDERS[key]
