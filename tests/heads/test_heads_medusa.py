"""The heads' arithmetic against a plain per-head computation, and the draft vocabulary."""

from __future__ import annotations

import checkpoints as made
import pytest
import torch

from mtp_bench.errors import InputError
from mtp_bench.heads.base import Heads
from mtp_bench.heads.medusa.heads import MedusaHeads

MAP = torch.tensor([7, 2, 19, 11, 0])


def heads_of(kind: str, token_map: torch.Tensor | None = None, bias: bool = True) -> MedusaHeads:
    tensors = made.v01()
    rows = slice(None) if token_map is None else token_map
    weight = torch.stack(
        [torch.stack([tensors[f"{i}.{j}.linear.weight"] for i in range(made.N)]) for j in range(made.L)]
    )
    biases = torch.stack([torch.stack([tensors[f"{i}.{j}.linear.bias"] for i in range(made.N)]) for j in range(made.L)])
    lm = {
        "own": torch.stack([tensors[f"{i}.{made.L}.weight"][rows] for i in range(made.N)]),
        "shared": tensors[f"0.{made.L}.weight"][rows],
        "base": None,
    }[kind]
    heads = MedusaHeads(weight, biases if bias else None, lm_head=kind, lm_weight=lm, token_map=token_map)
    heads.attach(made.base_lm_head())
    return heads.requires_grad_(False)


def oracle(kind: str, x: torch.Tensor, i: int, rows) -> torch.Tensor:
    tensors = made.v01()
    lm = {"own": tensors[f"{i}.{made.L}.weight"], "shared": tensors[f"0.{made.L}.weight"], "base": made.base_lm_head()}
    return made.oracle_logits(x, i, lm=lm[kind][rows])


@pytest.mark.parametrize("kind", ["own", "shared", "base"])
@pytest.mark.parametrize("token_map", [None, MAP])
@pytest.mark.parametrize("batch", [1, 2, 70])
def test_logits_and_proposals_match_the_plain_computation(kind: str, token_map, batch: int) -> None:
    heads, x = heads_of(kind, token_map), torch.randn(batch, made.H)
    rows = slice(None) if token_map is None else token_map
    assert isinstance(heads, Heads)
    for depth in (1, made.N):
        proposed = heads.propose(x, depth, 4)
        assert proposed.shape == (batch, depth, 4)
        assert proposed.dtype == torch.int64
        for i in range(depth):
            expected = oracle(kind, x, i, rows)
            torch.testing.assert_close(heads.logits(x, i), expected, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(heads.all_logits(x, depth)[i], expected, rtol=1e-4, atol=1e-3)
            best = expected.topk(4, dim=-1).indices
            assert torch.equal(proposed[:, i], best if token_map is None else token_map[best])


def test_any_leading_shape() -> None:
    heads, x = heads_of("own"), torch.randn(2, 5, made.H)
    torch.testing.assert_close(heads.logits(x, 1)[1, 3], heads.logits(x[1, 3], 1))
    assert heads.hidden(x, 0).shape == x.shape


def test_without_bias() -> None:
    heads, x = heads_of("own", bias=False), torch.randn(3, made.H)
    torch.testing.assert_close(heads.all_logits(x)[2], heads.logits(x, 2), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(heads.logits(x, 2), heads_of("own").logits(x, 2))


@pytest.mark.parametrize("token_map", [None, MAP])
def test_ranks_agree_with_proposals(token_map) -> None:
    heads, x = heads_of("base", token_map), torch.randn(50, made.H)
    targets = torch.randint(0, made.V, (50,))
    proposed = heads.propose(x, made.N, 4)
    for i in range(made.N):
        ranks = heads.ranks(x, i, targets, 4)
        for row, target, rank in zip(proposed[:, i], targets, ranks, strict=True):
            assert (row == target).nonzero().flatten().tolist() == ([] if rank < 0 else [int(rank)])


def test_unreduced_base_rows_are_borrowed_not_copied() -> None:
    weight = torch.nn.Parameter(made.base_lm_head())
    heads = heads_of("base")
    heads.attach(weight)
    assert heads.lm_rows.data_ptr() == weight.data_ptr()
    assert heads.num_parameters == made.N * made.L * (made.H * made.H + made.H)
    assert "lm_weight" not in heads.state_dict()


def test_counts_of_own_matrices() -> None:
    heads = heads_of("own", MAP)
    assert heads.num_parameters == made.N * made.L * (made.H * made.H + made.H) + made.N * len(MAP) * made.H
    assert heads.num_bytes == 4 * heads.num_parameters + 8 * len(MAP)
    assert heads.draft_vocab_size == heads.meta.draft_vocab_size == len(MAP)


def test_moving_the_module_moves_the_borrowed_rows() -> None:
    heads = heads_of("base", MAP).to(torch.bfloat16)
    assert heads.lm_rows.dtype == torch.bfloat16
    assert heads.propose(torch.randn(2, made.H), 3, 2).shape == (2, 3, 2)


@pytest.mark.parametrize("kind", ["own", "shared", "base"])
def test_proposing_never_looks_at_a_value(kind: str) -> None:
    """On the meta device a branch on a value or a copy to the host raises: what a CUDA graph cannot hold either."""
    heads = heads_of(kind, MAP).to("meta")
    assert heads.propose(torch.empty(4, made.H, device="meta"), 2, 3).shape == (4, 2, 3)


def test_a_nan_hidden_state_still_gives_legal_tokens() -> None:
    proposed = heads_of("base", MAP).propose(torch.full((1, made.H), float("nan")), made.N, 3)
    assert set(proposed.flatten().tolist()) <= set(MAP.tolist())


def test_attach_refuses_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="hidden size 8, the base model 9"):
        heads_of("base").attach(torch.zeros(made.V, 9))
    with pytest.raises(InputError, match="token_map holds 19, the base has 10"):
        heads_of("base", MAP).attach(torch.zeros(10, made.H))
    with pytest.raises(InputError, match="none was given"):
        heads_of("base").attach(None)


@pytest.mark.parametrize("kind", ["own", "shared", "base"])
def test_fresh_heads_start_as_the_base_lm_head_and_learn(kind: str) -> None:
    weight = made.base_lm_head()
    heads = MedusaHeads.fresh(num_heads=2, num_layers=2, base_lm_head_weight=weight, lm_head=kind, token_map=MAP)
    x = torch.randn(16, made.H)
    torch.testing.assert_close(heads.all_logits(x)[1], x @ weight[MAP].T, rtol=0.05, atol=0.1)
    again = MedusaHeads.fresh(num_heads=2, num_layers=2, base_lm_head_weight=weight, lm_head=kind, token_map=MAP)
    assert torch.equal(heads.block_weight, again.block_weight)

    target = torch.randint(0, len(MAP), (2, 16))
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(heads.all_logits(x).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(weight, made.base_lm_head())
