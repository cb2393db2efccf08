"""Muon: its orthogonalised update against the polar factor from an SVD, and what it trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mtp_bench.train.muon import Muon, orthogonalised
from mtp_bench.train.schedule import make_optimizers, rate_share, train_step


@pytest.mark.parametrize("shape", [(8, 8), (24, 6), (6, 24), (2, 3, 8, 8)])
def test_the_update_keeps_singular_vectors_and_levels_singular_values(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 37.0
    update = orthogonalised(matrices)
    assert update.shape == matrices.shape
    values = torch.linalg.svdvals(update)
    assert values.median() > 0.6
    assert values.max() < 1.4
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    polar = left @ right
    cosine = (update * polar).sum((-2, -1)) / update.norm(dim=(-2, -1)) / polar.norm(dim=(-2, -1))
    assert cosine.min() > 0.9


def test_a_stack_is_updated_matrix_by_matrix() -> None:
    stack = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    one_by_one = torch.stack([orthogonalised(matrix) for matrix in stack])
    torch.testing.assert_close(orthogonalised(stack), one_by_one, atol=2e-2, rtol=2e-2)


def test_matrices_go_to_muon_and_all_else_to_adamw() -> None:
    layer = nn.Linear(4, 3)
    muon, adam = make_optimizers(layer, [layer.weight], rate=1e-3, muon_rate=2e-2, weight_decay=0.0)
    assert isinstance(muon, Muon)
    assert muon.param_groups[0]["params"] == [layer.weight]
    assert isinstance(adam, torch.optim.AdamW)
    assert adam.param_groups[0]["params"] == [layer.bias]
    (alone,) = make_optimizers(layer, [layer.weight], rate=1e-3, muon_rate=0.0, weight_decay=0.0)
    assert isinstance(alone, torch.optim.AdamW)
    assert len(alone.param_groups[0]["params"]) == 2


def test_a_linear_map_is_learned() -> None:
    generator = torch.Generator().manual_seed(2)
    wanted, inputs = torch.randn(6, 6, generator=generator), torch.randn(256, 6, generator=generator)
    layer = nn.Linear(6, 6)
    optimizers = make_optimizers(layer, [layer.weight], rate=1e-2, muon_rate=0.2, weight_decay=0.0)
    losses = []
    for step in range(200):
        loss = (layer(inputs) - inputs @ wanted.T).square().mean()
        losses.append(float(loss.detach()))
        train_step(loss, layer, optimizers, rate_share(step, 200, 0.05))
    assert losses[-1] < 1e-2 * losses[0]
