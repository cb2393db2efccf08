"""Ranking against a stable sort, with many ties, in every dtype."""

from __future__ import annotations

import pytest
import torch

from mtp_bench.heads.ranking import ordered_topk, ranks_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tied_logits(dtype: torch.dtype, vocabulary: int = 97) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(6, vocabulary, generator=generator) * 2).round() / 2
    logits[0, 3:9] = -0.0
    logits[0, 9:12] = 0.0
    logits[1, 5] = float("-inf")
    logits[2, 5] = float("inf")
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [97, 70_000])
def test_topk_is_the_stable_descending_sort(dtype: torch.dtype, vocabulary: int) -> None:
    logits = tied_logits(dtype, vocabulary)
    expected = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    assert torch.equal(ordered_topk(logits, 25), expected[:, :25])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_is_the_place_in_topk(dtype: torch.dtype) -> None:
    logits = tied_logits(dtype)
    top = ordered_topk(logits, 10)
    for row in range(len(logits)):
        ids = torch.arange(logits.shape[1])
        ranks = ranks_of(logits[row].expand(len(ids), -1), ids, 10)
        expected = torch.full((len(ids),), -1, dtype=torch.int16)
        expected[top[row]] = torch.arange(10, dtype=torch.int16)
        assert torch.equal(ranks, expected)


def test_unknown_token_and_nan_are_misses() -> None:
    logits = torch.tensor([[1.0, 2.0], [float("nan"), 2.0]])
    assert ranks_of(logits, torch.tensor([-1, 0]), 2).tolist() == [-1, -1]
