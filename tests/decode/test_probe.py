"""The probe passes for sound models and finds wrong masks, positions and kernels."""

from __future__ import annotations

import pytest
import torch
from tiny_models import CASES, SHAPES, WINDOW, prompt_of, tiny_base

from mtp_bench.decode import step as step_module
from mtp_bench.decode.probe import probe_tree
from mtp_bench.errors import CheckFailed

TREE = SHAPES["random-1"]


@pytest.mark.parametrize("length", [6, WINDOW + 9])
@pytest.mark.parametrize(("architecture", "kernel"), CASES)
def test_passes(architecture: str, kernel: str, length: int) -> None:
    result = probe_tree(tiny_base(architecture, kernel), TREE, prompt_of(length))
    assert result.passed
    assert result.greedy_agreement == 1.0
    assert result.attention == kernel


def test_finds_a_causal_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def causal(slots: torch.Tensor, lengths: torch.Tensor, ancestors: torch.Tensor, visible: int) -> torch.Tensor:
        return (torch.arange(visible) <= slots[:, :, None])[:, None]

    monkeypatch.setattr(step_module, "row_mask", causal)
    with pytest.raises(CheckFailed, match="per-path"):
        probe_tree(tiny_base(), TREE, prompt_of(6))


def test_finds_a_missing_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "for_layers", lambda base, mask, *rest, **options: mask)
    with pytest.raises(CheckFailed):
        probe_tree(tiny_base("mistral-window"), TREE, prompt_of(WINDOW + 9))


def test_finds_wrong_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    right = base.hidden_states

    def by_slot(tokens, positions, mask, cache):  # type: ignore[no-untyped-def]
        if cache is not None:
            positions = positions[:, :1] + torch.arange(positions.shape[1])
        return right(tokens, positions, mask, cache)

    object.__setattr__(base, "hidden_states", by_slot)
    with pytest.raises(CheckFailed):
        probe_tree(base, TREE, prompt_of(6))


def test_not_a_number_fails() -> None:
    base = tiny_base()
    with torch.no_grad():
        base.lm_head_weight[0] = float("nan")
    with pytest.raises(CheckFailed):
        probe_tree(base, TREE, prompt_of(6))
