"""What every training shares: the learning rate over the steps, and a checkpoint from which a stopped run goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from mtp_bench.files import atomic_path


def learning_rate(peak: float, step: int, steps: int, warmup_share: float) -> float:
    """Linear warm-up, then a cosine decay to a tenth of ``peak``."""
    warmup = max(1, int(steps * warmup_share))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def save_checkpoint(path: Path, key: str, step: int, heads: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state after ``step`` steps, atomically; ``key`` names the recipe and the data."""
    state: dict[str, Any] = {"key": key, "step": step, "heads": heads.state_dict(), "optimizer": optimizer.state_dict()}
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def resume(path: Path, key: str, heads: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint of ``key``; return the steps that are done, 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("key") != key:
        return 0
    heads.load_state_dict(state["heads"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
