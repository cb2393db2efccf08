"""Tree decoding is exact in fp32: same text as plain greedy decoding, same steps as the replay, same cache."""

from __future__ import annotations

import pytest
import torch
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, answers_of, decode
from tiny_models import (
    CASES,
    DEPTH,
    SHAPES,
    TOP_K,
    VOCAB,
    onehot_base,
    onehot_heads,
    plain_greedy,
    prompt_of,
    random_heads,
    random_tree,
    stock_cache,
    tiny_base,
)

from mtp_bench.decode import prefill as prefill_module
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import InputError
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import StaticTree
from mtp_bench.trace import replay


@pytest.mark.parametrize(("architecture", "kernel"), CASES)
def test_text_equals_plain_greedy(architecture: str, kernel: str) -> None:
    base = tiny_base(architecture, kernel)
    heads = random_heads(base)
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    assert [g.tokens for g in decode(base, None, NO_TREE)] == expected
    accepted = 0
    for seed in range(3):
        generations = decode(base, heads, random_tree(seed, max_nodes=40))
        assert [g.tokens for g in generations] == expected
        accepted += sum(sum(g.accepted) for g in generations)
    assert accepted > 10, "a test where nothing is accepted shows nothing"


@pytest.mark.parametrize(("architecture", "kernel"), CASES)
def test_cache_equals_fresh_prefill_after_every_step(architecture: str, kernel: str) -> None:
    base = tiny_base(architecture, kernel)
    heads = random_heads(base)
    # Every token at depth 1, so that something is accepted in every step.
    cover = [(rank,) for rank in range(VOCAB)] + [(a, b) for a in range(VOCAB) for b in range(4)]
    tree = TreeTensors.build(StaticTree.from_paths(cover), base.device)
    prompt = PROMPTS[1]
    cache = TreeCache.allocate(base, batch=1, length=200)
    stepper = TreeStepper(base, heads, tree, cache)
    text = prompt + stepper.prefill([0], [prompt])
    accepted = 0
    while len(text) < len(prompt) + 24:
        count, *emitted = stepper.step(len(text) - 1).tolist()[0]
        text += emitted[: count + 1]
        accepted += count
        cached = len(text) - 1
        assert stepper.lengths.tolist() == [cached]
        assert stepper.tokens[0, 0] == text[-1]
        fresh = stock_cache(base, text[:cached])
        torch.testing.assert_close(cache.data[:, :, 0, :, :cached], fresh, atol=1e-5, rtol=1e-5)
    assert accepted >= 8


@pytest.mark.parametrize("kind", ["own", "shared", "base", "map"])
def test_replayed_steps_equal_live_steps(kind: str) -> None:
    base = tiny_base()
    heads = random_heads(base, kind)
    plain = decode(base, None, NO_TREE)
    trace = record_trace(base, heads, answers_of(plain), top_k=TOP_K)
    assert (trace.ranks >= 0).any()
    for name, tree in SHAPES.items():
        live = decode(base, heads, tree)
        assert [g.tokens for g in live] == [g.tokens for g in plain], name
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist(), name


@pytest.mark.parametrize(("architecture", "kernel"), CASES)
def test_replay_of_every_architecture(architecture: str, kernel: str) -> None:
    base = tiny_base(architecture, kernel)
    heads = random_heads(base, "map")
    trace = record_trace(base, heads, answers_of(decode(base, None, NO_TREE)), top_k=TOP_K)
    for seed in range(10, 13):
        tree = random_tree(seed)
        live = decode(base, heads, tree)
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist()


def test_trace_ranks_are_those_of_the_drafts() -> None:
    base = tiny_base()
    heads = random_heads(base, "map")
    answers = answers_of(decode(base, None, NO_TREE))
    trace = record_trace(base, heads, answers, top_k=TOP_K)
    answer, ranks = answers[1], trace.select([1]).ranks
    for position in range(0, len(answer.tokens), 5):
        text = answer.prompt + answer.tokens[:position]
        hidden = base.hidden_states(torch.tensor([text]), torch.arange(len(text))[None], None, None)[:, -1]
        proposed = heads.propose(hidden, DEPTH, TOP_K)[0].tolist()
        for depth in range(1, DEPTH + 1):
            after = answer.tokens[position + depth : position + depth + 1]
            expected = proposed[depth - 1].index(after[0]) if after and after[0] in proposed[depth - 1] else -1
            assert ranks[position, depth - 1] == expected


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma3"])
def test_batch_with_refill_equals_single(architecture: str, batch: int) -> None:
    base = tiny_base(architecture)
    heads = random_heads(base)
    prompts = [prompt_of(length, seed) for seed, length in enumerate((4, 19, 9, 1, 13, 9, 30))]
    tree = random_tree(1, max_nodes=30)
    single = decode(base, heads, tree, prompts)
    batched = decode(base, heads, tree, prompts, batch=batch)
    assert [g.tokens for g in batched] == [g.tokens for g in single]
    assert [g.accepted for g in batched] == [g.accepted for g in single]


@pytest.mark.parametrize("batch", [1, 2])
def test_padding_rows_change_nothing(batch: int) -> None:
    base = tiny_base()
    heads = random_heads(base)
    for name in ("single", "gap", "random-1"):
        tree = SHAPES[name]
        bare = decode(base, heads, tree, batch=batch)
        padded = decode(base, heads, tree, batch=batch, rows=64)
        assert [g.tokens for g in padded] == [g.tokens for g in bare]
        assert [g.accepted for g in padded] == [g.accepted for g in bare]
    assert [g.tokens for g in decode(base, None, NO_TREE, rows=8)] == [g.tokens for g in decode(base, None, NO_TREE)]


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma3"])
def test_prefill_in_chunks(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base(architecture)
    prompts = [prompt_of(33, 5), prompt_of(31, 6)]
    tree = TreeTensors.build(SHAPES["star"], base.device)

    def filled(sequences: list[int]) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        cache = TreeCache.allocate(base, batch=2, length=64)
        stepper = TreeStepper(base, random_heads(base), tree, cache)
        firsts = [first for one in sequences for first in stepper.prefill([one], [prompts[one]])]
        if not sequences:
            firsts = stepper.prefill([0, 1], prompts)
        return firsts, stepper.tokens, cache.data[:, :, :, :, :31]

    whole = filled([])
    monkeypatch.setattr(prefill_module, "PREFILL_CHUNK", 8)
    for pieces in (filled([]), filled([0, 1])):
        assert pieces[0] == whole[0]
        assert torch.equal(pieces[1], whole[1])
        torch.testing.assert_close(pieces[2], whole[2], atol=1e-5, rtol=1e-5)


def test_idle_slot_of_a_batch_stays_in_its_place() -> None:
    """A finished sequence whose stale drafts go on being accepted must not run out of the cache."""
    # Two cycles; the heads are perfect on one and useless on the other.
    successor = [(t + 1) % 8 for t in range(8)] + [8 + (t + 1) % 8 for t in range(8)]
    base = onehot_base(successor)
    heads = onehot_heads(3, good=tuple(range(8)), successor=successor)
    decoder = Decoder(base, heads, StaticTree.from_paths([(0,), (0, 0), (0, 0, 0)]), batch=2, max_length=64)
    done = {g.request.key: g for g in decoder.run([Request("easy", [1], 6), Request("hard", [8], 60)])}
    assert done["hard"].steps == 59
    assert done["hard"].tokens == [8 + (1 + t) % 8 for t in range(60)]


def test_refusals() -> None:
    base = tiny_base()
    with pytest.raises(InputError, match="needs heads"):
        Decoder(base, None, SHAPES["single"], max_length=32)
    with pytest.raises(InputError, match="4 deep, the heads draft only 2"):
        Decoder(base, random_heads(base, num_heads=2), SHAPES["chain"], max_length=32)
    with pytest.raises(InputError, match="positions"):
        list(Decoder(base, None, NO_TREE, max_length=16).run([Request("long", prompt_of(10), 10)]))
    cache = TreeCache.allocate(base, batch=1, length=16)
    with pytest.raises(InputError, match="slots"):
        Decoder(base, random_heads(base), SHAPES["star"], max_length=16, cache=cache)
