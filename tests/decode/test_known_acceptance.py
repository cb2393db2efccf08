"""Models whose greedy text is known in closed form: acceptance, end tokens and limits come out exactly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import ONEHOT, onehot_base, onehot_heads, plain_greedy, random_tree

from mtp_bench.decode.accept import accept_greedy
from mtp_bench.decode.answers import Answer
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import StaticTree
from mtp_bench.trace import AcceptanceTable, replay

NO_TREE = StaticTree(())
EVEN = tuple(range(0, ONEHOT, 2))


def chain_of(length: int) -> StaticTree:
    return StaticTree.from_paths([(0,) * depth for depth in range(1, length + 1)])


def decode(
    base: BaseModel, heads: object, tree: StaticTree, new_tokens: int, prompt: tuple[int, ...] = (3, 4)
) -> Generation:
    decoder = Decoder(base, heads, tree, max_length=len(prompt) + new_tokens)  # type: ignore[arg-type]
    return next(iter(decoder.run([Request("x", list(prompt), new_tokens)])))


def known_text(first: int, length: int) -> list[int]:
    return [(first + index) % ONEHOT for index in range(length)]


def with_end_token(base: BaseModel, token: int) -> BaseModel:
    base.model.generation_config.eos_token_id = token
    return replace(base)


def test_text_is_the_known_one() -> None:
    base = onehot_base()
    assert decode(base, None, NO_TREE, 40).tokens == known_text(5, 40) == plain_greedy(base, [3, 4], 40)


def test_perfect_heads_accept_everything() -> None:
    generation = decode(onehot_base(), onehot_heads(3), chain_of(3), 41)
    assert generation.tokens == known_text(5, 41)
    assert generation.accepted == [3] * 10
    assert generation.tokens_in_steps / generation.steps == 4.0


def test_half_right_heads_alternate() -> None:
    base, heads = onehot_base(), onehot_heads(2, good=EVEN)
    generation = decode(base, heads, chain_of(2), 41)
    assert generation.tokens == known_text(5, 41)
    assert generation.accepted == [2, 0] * 10
    assert generation.tokens_in_steps / generation.steps == 2.0


def test_independence_would_misjudge_half_right_heads() -> None:
    base, heads = onehot_base(), onehot_heads(2, good=EVEN)
    tokens = decode(base, None, NO_TREE, 43).tokens
    trace = record_trace(base, heads, [Answer("x", "test", [3, 4], tokens, 0, "length")], top_k=2)
    table = AcceptanceTable.from_trace(trace)
    assert table.measured is not None
    marginal = table.measured.marginal_hit_rate[:, 0]
    assert marginal == pytest.approx([0.5, 0.5], abs=0.02)
    assert 1 + marginal[0] + marginal[0] * marginal[1] == pytest.approx(1.75, abs=0.04)
    assert replay(trace, chain_of(2)).tokens_per_step == pytest.approx(2.0, abs=0.05)


def test_shifted_heads_accept_nothing() -> None:
    generation = decode(onehot_base(), onehot_heads(3, shift=-1), chain_of(3), 21)
    assert generation.tokens == known_text(5, 21)
    assert generation.accepted == [0] * 20


@pytest.mark.parametrize("heads_kind", ["perfect", "half", "shifted"])
@pytest.mark.parametrize("seed", range(4))
def test_lossless_for_random_trees(heads_kind: str, seed: int) -> None:
    options = {"perfect": {}, "half": {"good": EVEN}, "shifted": {"shift": -1}}[heads_kind]
    base, heads = onehot_base(), onehot_heads(4, **options)  # type: ignore[arg-type]
    assert decode(base, heads, random_tree(seed), 50).tokens == known_text(5, 50)


@pytest.mark.parametrize("place", range(4))
def test_end_token_inside_an_accepted_path(place: int) -> None:
    """Whatever row of the path the end token falls on, nothing after it is counted."""
    base = with_end_token(onehot_base(), 12)
    prompt = (8 - place, 9 - place)  # the answer begins at 10 - place and ends at 12
    arms = [decode(base, None, NO_TREE, 64, prompt), decode(base, onehot_heads(3), chain_of(3), 64, prompt)]
    for generation in arms:
        assert generation.tokens == list(range(10 - place, 13))
        assert generation.stopped_by == "eos"
    assert arms[1].steps == (1 if place < 3 else 2) if arms[1].tokens_in_steps else arms[1].steps == 0


def test_end_token_as_first_token() -> None:
    base = with_end_token(onehot_base(), 5)
    for tree, heads in ((NO_TREE, None), (chain_of(3), onehot_heads(3))):
        generation = decode(base, heads, tree, 64)
        assert (generation.tokens, generation.steps, generation.stopped_by) == ([5], 0, "eos")


def test_end_token_can_be_ignored() -> None:
    base = with_end_token(onehot_base(), 7)
    decoder = Decoder(base, onehot_heads(3), chain_of(3), max_length=32)
    generation = next(iter(decoder.run([Request("x", [3, 4], 20, ignore_eos=True)])))
    assert generation.tokens == known_text(5, 20)


@pytest.mark.parametrize("new_tokens", range(1, 12))
def test_overshoot_is_cut(new_tokens: int) -> None:
    base = onehot_base()
    generation = decode(base, onehot_heads(3), chain_of(3), new_tokens)
    assert generation.tokens == known_text(5, new_tokens) == decode(base, None, NO_TREE, new_tokens).tokens
    assert generation.stopped_by == "length"
    # Steps stay as they were: their acceptance is counted before the cut.
    assert generation.accepted == [3] * -(-(new_tokens - 1) // 4)


def test_end_token_frees_its_slot_in_a_batch() -> None:
    base = with_end_token(onehot_base(), 12)
    decoder = Decoder(base, onehot_heads(3), chain_of(3), batch=2, max_length=64)
    requests = [Request(str(first), [first], 40) for first in (9, 11, 3, 13, 0)]
    done = {generation.request.key: generation.tokens for generation in decoder.run(requests)}
    expected = {
        "9": [10, 11, 12],
        "11": [12],
        "3": list(range(4, 13)),
        "13": [14, 15, *range(13)],
        "0": list(range(1, 13)),
    }
    assert done == expected


def test_padding_accepts_nothing_when_token_zero_is_the_choice() -> None:
    """Rows of padding hold some token, and the base model's choice everywhere may well be that token."""
    tree = TreeTensors.build(chain_of(2), torch.device("cpu"), rows=8)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    choices = torch.zeros(1, 8, dtype=torch.int64)
    assert accept_greedy(tokens, choices, tree).accepted.tolist() == [2]
    tokens[0, 1] = 5
    assert accept_greedy(tokens, choices, tree).accepted.tolist() == [0]
    assert accept_greedy(tokens, choices, tree).row.tolist() == [0]


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_equals_a_walk_of_the_tree(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tree = random_tree(seed, depth=4, top_k=4)
    tensors = TreeTensors.build(tree, torch.device("cpu"), rows=70)
    tokens, choices = (torch.from_numpy(draw.integers(0, 2, (6, 70))) for _ in range(2))
    outcome = accept_greedy(tokens, choices, tensors)
    for sequence in range(6):
        best: tuple[int, ...] = ()
        for path in tree.paths:
            rows = [0, *[tree.row_of(path[:depth]) for depth in range(1, len(path) + 1)]]
            agreed = all(tokens[sequence, row] == choices[sequence, above] for above, row in itertools.pairwise(rows))
            if agreed and len(path) > len(best):
                best = path
        length = int(outcome.accepted[sequence])
        assert length == len(best)
        row = int(outcome.row[sequence])
        emitted = outcome.emitted[sequence, : length + 1].tolist()
        assert emitted[:-1] == [int(tokens[sequence, int(r)]) for r in tree.path_rows[row][1 : length + 1]]
        assert emitted[-1] == int(choices[sequence, row])
