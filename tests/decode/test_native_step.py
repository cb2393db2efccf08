"""The kernels' acceptance and cache moves do what torch's operations do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import random_tree, tiny_base

from mtp_bench.decode.accept import accept_greedy
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.native_step import native_accept, native_move
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models.native.library import compiler

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans(), st.integers(0, 5))
def test_acceptance(seed: int, batch: int, mixed: bool, padding: int) -> None:
    """Two tokens only, so that much is accepted and siblings are often equal."""
    generator = torch.Generator().manual_seed(seed)
    trees = [random_tree(seed + i, max_nodes=2 + (seed + i) % 20) for i in range(batch if mixed else 1)]
    rows = max(tree.rows for tree in trees) + padding
    if mixed:
        tensors = TreeTensors.mixed(trees, CPU, rows=rows, batch=batch)
        for index in range(batch - 1):  # the last slot is still free
            tensors.assign(index, trees[index])
    else:
        tensors = TreeTensors.build(trees[0], CPU, rows=rows)
    tokens, choices = torch.randint(0, 2, (2, batch, rows), generator=generator)
    for mine, expected in zip(
        native_accept(tokens, choices, tensors), accept_greedy(tokens, choices, tensors), strict=True
    ):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves(batch: int, dtype: torch.dtype) -> None:
    """Into slots that are sources of others too, and in a part of a larger cache."""
    base = tiny_base()
    generator = torch.Generator().manual_seed(0)
    whole = TreeCache.allocate(base, batch=4, length=40)
    data = torch.randn(whole.data.shape, generator=generator).to(dtype)
    mine, expected = (TreeCache(data.clone()[:, :, 1 : 1 + batch]) for _ in range(2))
    source = torch.tensor([[5, 9, 9, 12], [2, 3, 4, 5], [30, 20, 10, 0]])[:batch]
    target = torch.tensor([[4, 5, 6, 7], [1, 2, 3, 4], [0, 1, 2, 3]])[:batch]
    native_move(mine, source, target)
    expected.move(source, target)
    assert torch.equal(mine.data, expected.data)
    assert not torch.equal(mine.data, data[:, :, 1 : 1 + batch])
