"""Training of EAGLE draft layers on the base model's own answers, the base model frozen.

Every step drafts several tokens ahead from every position at once (``heads.eagle.unroll``, the training-time test
of EAGLE-3), so that the layer learns to go on from its own output. Loss: sum over passes j of decay^j times the cross
entropy of the draft's distribution against the base model's over the draft vocabulary, at answer positions whose true
token is in it. ``eagle`` (EAGLE-1) adds its feature loss: smooth L1 between output and the base model's next feature,
per channel in units of that channel's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_json
from mtp_bench.heads.eagle.draft import EagleConfig, EagleDraft, Variant, parameter_shapes
from mtp_bench.heads.eagle.unroll import unroll
from mtp_bench.heads.ranking import ranks_of
from mtp_bench.models.base import BaseModel
from mtp_bench.train.accuracy import TOP_KS, HeadAccuracy
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.schedule import make_optimizers, rate_share, resume, save_checkpoint, train_step
from mtp_bench.train.texts import TextBatch, Texts, shuffled, text_groups


@dataclass(frozen=True)
class EagleRecipe:
    """What is trained and how.

    Attributes:
        variant: ``eagle`` or ``eagle3``.
        draft_vocab: tokens the draft chooses from, the most frequent in the training text; 0 = the whole vocabulary,
            through the base model's LM head.
        unroll: passes per training step.
        intermediate_size: of the MLP; 0 = the base model's.
        learning_rate: peak of AdamW, after a linear warm-up and before a cosine decay to a tenth; muon_rate: the
            same of Muon, which trains the matrices (0 = AdamW for all).
        decay: weight of pass j is ``decay ** j``.
        batch: positions per step, prompts included.
        start: hash of the draft that training goes on from, None = a fresh one.
        feature_weight: of EAGLE-1's feature loss; noise: half-width of the uniform noise added to its input features,
            in units of each channel's size.
    """

    variant: Variant = "eagle3"
    draft_vocab: int = 6144
    unroll: int = 4
    intermediate_size: int = 0
    learning_rate: float = 1e-3
    muon_rate: float = 0.02
    decay: float = 0.8
    epochs: float = 3.0
    batch: int = 2048
    feature_weight: float = 1.0
    noise: float = 0.1
    warmup_share: float = 0.05
    weight_decay: float = 0.0
    seed: int = 0
    start: str | None = None


@dataclass(frozen=True)
class TrainedDraft:
    """A draft with its last held-out accuracies (``head`` = depth - 1, along the true text)."""

    draft: EagleDraft
    held_out: list[HeadAccuracy]
    steps: int


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """The layers EAGLE-3 reads: the third, the middle one and the third last, by what enters them."""
    return (2, num_layers // 2, num_layers - 3)


def fresh_eagle(base: BaseModel, recipe: EagleRecipe, texts: Texts) -> EagleDraft:
    """An untrained draft layer for ``base``, attached to it.

    Linear layers are normal with deviation 0.02 (those that end a branch a tenth of it, so that at the start the layer
    hands its input through); norms are one, but for those over the base model's features, which bring every channel to
    unit size (some are a hundred times larger than others, which hinders training); an own LM head starts as the base
    model's rows.
    """
    eagle3, h = recipe.variant == "eagle3", base.hidden_size
    token_map = _draft_vocabulary(texts, recipe.draft_vocab, base.vocab_size)
    config = EagleConfig(
        variant=recipe.variant,
        hidden_size=h,
        target_hidden_size=h,
        intermediate_size=recipe.intermediate_size or int(base.config.intermediate_size),
        num_heads=base.num_attention_heads,
        num_kv_heads=base.num_kv_heads,
        head_dim=base.head_dim,
        vocab_size=base.vocab_size,
        aux_layers=default_aux_layers(base.num_layers) if eagle3 else (),
        rms_eps=float(getattr(base.config, "rms_norm_eps", 1e-6)),
        max_positions=base.max_positions,
        fc_bias=not eagle3,
        own_lm_head=eagle3 and token_map is not None,
        final_norm=eagle3,
        fc_norm=eagle3,
        draft_vocab_size=None if token_map is None else len(token_map),
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    tensors = {name: _fresh(name, shape, generator) for name, shape in parameter_shapes(config).items()}
    if eagle3:
        for place, size in enumerate(_channel_sizes(texts.features).chunk(3)):
            # RMSNorm divides by the size of the whole vector first.
            tensors[f"fc_norm.{place}.weight"] = size.square().mean().sqrt() / size
    else:
        scale = _channel_sizes(texts.hidden)
        tensors["fc.weight"][:, h:] = torch.eye(h)
        tensors["fc.weight"][:, :h] /= scale.mean()
    if token_map is not None:
        tensors["token_map"] = token_map
        if config.own_lm_head:
            tensors["lm_head.weight"] = base.lm_head_weight.detach().float().cpu()[token_map]
    draft = EagleDraft(config, tensors).to(base.device)
    draft.attach(base.embedding_weight, base.lm_head_weight)
    return draft


def _trainable(draft: EagleDraft) -> EagleDraft:
    """A loaded draft in fp32, its weights free to move, all but an embedding of its own."""
    draft.float().requires_grad_(True)
    if draft.embed_tokens is not None:
        draft.embed_tokens.requires_grad_(False)
    return draft


def _fresh(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    deviation = 0.002 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
    return torch.randn(shape, generator=generator) * deviation


def _channel_sizes(states: Tensor, rows: int = 65536) -> Tensor:
    """Root mean square of each channel, float32 [C]."""
    sample = states[:: max(1, len(states) // rows)].float()
    return sample.square().mean(0).sqrt().clamp(min=1e-6)


def _draft_vocabulary(texts: Texts, size: int, vocab_size: int) -> Tensor | None:
    if size <= 0 or size >= vocab_size:
        return None
    answered = torch.cat(
        [
            texts.following[int(start) + int(root) : int(stop)]
            for start, stop, root in zip(texts.offsets[:-1], texts.offsets[1:], texts.roots, strict=True)
        ]
    )
    counts = torch.bincount(answered, minlength=vocab_size)
    seen = int((counts > 0).sum())
    return counts.argsort(descending=True, stable=True)[: min(size, seen)].sort().values


def train_eagle(
    base: BaseModel,
    train: Texts,
    held_out: Texts,
    recipe: EagleRecipe,
    *,
    log: TrainingLog,
    checkpoint: Path,
    start: EagleDraft | None = None,
    evaluations: int = 8,
    on_step: Callable[[int, int, float], None] | None = None,
) -> TrainedDraft:
    """Train a draft layer; resumes from ``checkpoint`` when it is of the same recipe and data.

    Args:
        log: receives losses and held-out accuracies, depth d as head d - 1.
        start: draft to go on from, changed in place; a fresh one when left out.
        evaluations: held-out evaluations, evenly spaced.
        on_step: called with (step, steps, loss).

    Raises:
        InputError: no text, or the loss is not finite.
    """
    if len(train) == 0 or len(held_out) == 0:
        raise InputError("no text to train on", where="--train-prompts", fix="give more prompts")
    draft = fresh_eagle(base, recipe, train) if start is None else _trainable(start)
    groups = text_groups(train, recipe.batch)
    steps = max(1, math.ceil(len(groups) * recipe.epochs))
    inner = [weight for weight in (*draft.layer.parameters(), *draft.fc.parameters()) if weight.dim() == 2]
    rates = {"rate": recipe.learning_rate, "muon_rate": recipe.muon_rate, "weight_decay": recipe.weight_decay}
    optimizers = make_optimizers(draft, inner, **rates)
    key = sha256_json([asdict(recipe), len(train), len(train.following), len(held_out), base.sha256])
    first = resume(checkpoint, key, draft, optimizers)
    log.start(first)
    positions = train.answer_positions / len(groups)
    sizes = _channel_sizes(train.hidden).to(base.device)
    every = max(1, steps // max(1, evaluations))
    for step, group in enumerate(shuffled(groups, recipe.seed, first, steps), start=first):
        share = rate_share(step, steps, recipe.warmup_share)
        losses = _losses(base, draft, train.batch(group), recipe, sizes, step)
        total = torch.stack([recipe.decay**j * loss for j, loss in enumerate(losses)]).sum()
        if not math.isfinite(float(total.detach())):
            raise InputError(f"the loss became {float(total)}", where=f"training step {step}", fix="lower the rate")
        train_step(total, draft, optimizers, share)
        seen = round((step + 1) * positions)
        log.loss(
            step, seen, float(total.detach()), [float(loss.detach()) for loss in losses], share * recipe.learning_rate
        )
        if on_step is not None:
            on_step(step + 1, steps, float(total.detach()))
        if (step + 1) % every == 0 or step + 1 == steps:
            log.held_out(seen, eagle_accuracy(draft, held_out, recipe.unroll))
            save_checkpoint(checkpoint, key, step + 1, draft, optimizers)
            log.flush()
    return TrainedDraft(draft, eagle_accuracy(draft, held_out, recipe.unroll), steps)


def _losses(
    base: BaseModel, draft: EagleDraft, batch: TextBatch, recipe: EagleRecipe, sizes: Tensor, step: int
) -> list[Tensor]:
    """One loss per pass."""
    device = base.device
    following, answered, hidden = (x.to(device) for x in (batch.following, batch.answered, batch.hidden))
    features = batch.features.to(device, torch.float32)
    eagle1 = recipe.variant == "eagle"
    if eagle1 and recipe.noise:
        generator = torch.Generator().manual_seed(recipe.seed * 7919 + step)
        noise = torch.rand(features.shape, generator=generator).to(device) * 2 - 1
        features = features + recipe.noise * sizes * noise
    teacher_rows = base.lm_head_weight if draft.token_map is None else base.lm_head_weight[draft.token_map]
    # The base model's distributions at all answer positions, computed once for all passes; ``row`` finds them again.
    row = answered.flatten().cumsum(0).view_as(answered) - 1
    with torch.no_grad():
        teacher = F.linear(hidden[answered], teacher_rows).float().softmax(-1)
    losses = []
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for j, output in enumerate(unroll(draft, following, features, recipe.unroll)):
            # Slot s of pass j says token s + 2 + j, which the base model chose from its state at s + 1 + j.
            ahead = j + 1
            wanted = draft.draft_ids(following[:, ahead:])
            known = answered[:, ahead:] & answered[:, :-ahead] & (wanted >= 0)
            logits = draft.logits(output[:, :-ahead][known]).float()
            loss = F.cross_entropy(logits, teacher[row[:, ahead:][known]])
            if eagle1:
                off = (output[:, :-ahead][known].float() - hidden[:, ahead:][known].float()) / sizes
                loss = loss + recipe.feature_weight * F.smooth_l1_loss(off, torch.zeros_like(off))
            losses.append(loss)
    return losses


@torch.inference_mode()
def eagle_accuracy(draft: EagleDraft, texts: Texts, depth: int, *, tokens_per_pass: int = 4096) -> list[HeadAccuracy]:
    """Top-k accuracy of each depth along the true text, over all answer positions (entry d is depth d + 1)."""
    hits = torch.zeros(depth, max(TOP_KS) + 1, dtype=torch.int64)
    device, dtype = draft.fc.weight.device, draft.fc.weight.dtype
    for group in text_groups(texts, tokens_per_pass):
        batch = texts.batch(group)
        following, answered = batch.following.to(device), batch.answered.to(device)
        for j, output in enumerate(unroll(draft, following, batch.features.to(device, dtype), depth)):
            known = answered[:, j + 1 :] & answered[:, : -j - 1]
            targets = draft.draft_ids(following[:, j + 1 :][known])
            ranks = ranks_of(draft.logits(output[:, : -j - 1][known]), targets, max(TOP_KS)).long().cpu()
            hits[j] += torch.bincount(torch.where(ranks < 0, max(TOP_KS), ranks), minlength=max(TOP_KS) + 1)
    totals = hits.sum(1)
    return [
        HeadAccuracy(j, {k: float(hits[j, :k].sum() / totals[j].clamp(min=1)) for k in TOP_KS}, int(totals[j]))
        for j in range(depth)
    ]
