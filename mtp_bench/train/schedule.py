"""What every training shares: optimizers, the learning rate over the steps, and checkpoints of a stopped run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mtp_bench.files import atomic_path
from mtp_bench.train.muon import Muon

Optimizers = list[torch.optim.Optimizer]
CLIPPED_NORM = 1.0


def make_optimizers(
    heads: nn.Module, inner: Sequence[nn.Parameter], *, rate: float, muon_rate: float, weight_decay: float
) -> Optimizers:
    """Muon for the matrices inside the heads, AdamW for all else: vectors, and the LM head, whose rows are tokens.

    Args:
        inner: these matrices; rate: peak of AdamW; muon_rate: peak of Muon, 0 = AdamW for everything.
    """
    known = {id(parameter) for parameter in inner} if muon_rate else set()
    rest = [parameter for parameter in heads.parameters() if id(parameter) not in known]
    made: Optimizers = []
    if known:
        made.append(Muon(inner, muon_rate))
    if rest:
        made.append(torch.optim.AdamW(rest, rate, betas=(0.9, 0.95), weight_decay=weight_decay))
    for optimizer in made:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return made


def train_step(loss: torch.Tensor, heads: nn.Module, optimizers: Optimizers, share: float) -> None:
    """Follow the clipped gradient of ``loss`` at ``share`` of the peak rates."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak"]
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(heads.parameters(), CLIPPED_NORM)
    for optimizer in optimizers:
        optimizer.step()


def rate_share(step: int, steps: int, warmup_share: float) -> float:
    """Share of the peak rate: linear warm-up, then a cosine decay to a tenth."""
    warmup = max(1, int(steps * warmup_share))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))


def save_checkpoint(path: Path, key: str, step: int, heads: nn.Module, optimizers: Optimizers) -> None:
    """Write the state after ``step`` steps, atomically; ``key`` names the recipe and the data."""
    state: dict[str, Any] = {
        "key": key,
        "step": step,
        "heads": heads.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def resume(path: Path, key: str, heads: nn.Module, optimizers: Optimizers) -> int:
    """Load the checkpoint of ``key``; return the steps that are done, 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("key") != key:
        return 0
    heads.load_state_dict(state["heads"])
    for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(stored)
    return int(state["step"])
