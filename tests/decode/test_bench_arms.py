"""All arms of a bench decode the same text and count it alike."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tiny_decoding import NO_TREE, answers_of, decode
from tiny_models import (
    ONEHOT,
    SHAPES,
    onehot_base,
    onehot_heads,
    plain_greedy,
    prompt_of,
    random_eagle,
    random_heads,
    tiny_base,
)

from mtp_bench.decode import bench as bench_module
from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import (
    ENGINE_BASELINE,
    HF_BASELINE,
    HF_LOOKUP,
    HF_STATIC,
    Contender,
    first_divergence,
    hf_generate,
    is_near_tie,
    run_bench,
)
from mtp_bench.decode.generate import Request
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import DynamicTree, StaticTree


def answers_for(base: BaseModel, count: int = 2, length: int = 12) -> list[Answer]:
    prompts = [prompt_of(4 + 3 * index, index, base.vocab_size) for index in range(count)]
    return [Answer(str(i), "test", p, plain_greedy(base, p, length), 0, "length") for i, p in enumerate(prompts)]


def contenders(heads: AnyHeads, trees: dict[str, StaticTree]) -> dict[str, Contender]:
    return {name: Contender(tree, heads) for name, tree in trees.items()}


@pytest.mark.parametrize(("architecture", "kernel"), [("llama", "grouped_sdpa"), ("gemma2", "eager")])
def test_every_arm_gives_the_same_text(architecture: str, kernel: str) -> None:
    base = tiny_base(architecture, kernel)
    answers = answers_for(base)
    trees = {name: SHAPES[name] for name in ("single", "gap", "random-1")}
    progress: list[tuple[int, int]] = []
    rows = run_bench(
        base,
        contenders(random_heads(base), trees),
        answers,
        repeats=2,
        on_progress=lambda done, all_: progress.append((done, all_)),
    )
    arms = [ENGINE_BASELINE, HF_BASELINE, *trees]
    assert Counter(row.arm for row in rows) == dict.fromkeys(arms, 4)
    assert progress == [(done, 20) for done in range(1, 21)]
    for row in rows:
        assert (row.first_divergence, row.tie) == (None, False)
        assert (row.tokens, row.tokens_in_steps) == (12, 11)
        assert row.steps <= 11
        assert row.decode_s > 0
        assert row.prefill_s > 0
    assert {row.steps for row in rows if row.arm in (ENGINE_BASELINE, HF_BASELINE)} == {11}
    assert base.attention == kernel


def test_totals_are_equal_with_an_end_token_in_the_text() -> None:
    """The base stops at its end token; no arm counts anything after it, or over the limit."""
    base = onehot_base()
    base.model.generation_config.eos_token_id = 12
    prompt = [4]
    answer = Answer("x", "test", prompt, list(range(5, 13)), 0, "eos")
    longer = Answer("y", "test", prompt, [*range(5, 13), 0, 0, 0], 0, "length")
    chain = SHAPES["chain"].clip(max_depth=3)
    rows = run_bench(base, contenders(onehot_heads(3), {"chain": chain}), [answer, longer], repeats=1)
    assert {(row.arm, row.tokens) for row in rows} == {(arm, 8) for arm in (ENGINE_BASELINE, HF_BASELINE, "chain")}
    assert {row.steps for row in rows if row.arm == "chain"} == {2}
    assert all(row.first_divergence is None for row in rows)


def test_generation_settings_of_the_checkpoint_do_not_bend_the_baseline() -> None:
    """Many checkpoints bring a repetition penalty or sampling settings; the baseline is plain greedy."""
    base = onehot_base()
    settings = base.model.generation_config
    settings.repetition_penalty, settings.no_repeat_ngram_size, settings.suppress_tokens = 5.0, 2, [7]
    settings.do_sample, settings.temperature, settings.top_k, settings.num_beams = True, 3.0, 5, 2
    generation = hf_generate(base, Request("x", [3], 2 * ONEHOT + 3))
    assert generation.tokens == [(4 + index) % ONEHOT for index in range(2 * ONEHOT + 3)]


def test_arms_share_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    allocated = []
    allocate = bench_module.TreeCache.allocate
    monkeypatch.setattr(
        bench_module.TreeCache, "allocate", lambda base, **shape: allocated.append(shape) or allocate(base, **shape)
    )
    run_bench(
        base, contenders(random_heads(base), {"gap": SHAPES["gap"]}), answers_for(base, 1), repeats=1, with_hf=False
    )
    assert len(allocated) == 1


def test_order_of_arms_is_seeded() -> None:
    base = tiny_base()
    answers = answers_for(base, 1, 3)
    rows = [run_bench(base, {}, answers, repeats=1, with_hf=False, seed=seed)[0] for seed in (0, 0)]
    assert rows[0].tokens == rows[1].tokens == 3


@pytest.mark.parametrize(
    ("tokens", "reference", "expected"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1], [1, 2], 1),
        ([1, 2, 3], [1, 2], 2),
        ([], [5], 0),
    ],
)
def test_first_divergence(tokens: list[int], reference: list[int], expected: int | None) -> None:
    assert first_divergence(tokens, reference) == expected


@pytest.mark.parametrize(("gap", "tie"), [(0.0, True), (1e-7, True), (1e-3, False), (0.5, False)])
def test_near_tie(gap: float, tie: bool) -> None:
    base = onehot_base()
    with torch.no_grad():
        # After token 3 the second best token's logit is this share below the best one's.
        base.lm_head_weight[9, 3] = 1.0 - gap
    assert is_near_tie(base, [1, 2], [3, 4], 1) is tie
    assert not is_near_tie(base, [1, 2], [3, 4], 2)


def test_prompt_lookup_is_an_arm_of_its_own() -> None:
    """A text that repeats itself is what it is good at; its first pass may emit several tokens."""
    base = onehot_base()
    prompt = [*range(ONEHOT), *range(ONEHOT)]
    answer = Answer("x", "test", prompt, [i % ONEHOT for i in range(24)], 0, "length")
    rows = {row.arm: row for row in run_bench(base, {}, [answer], repeats=1, with_lookup=True)}
    lookup, plain = rows[HF_LOOKUP], rows[HF_BASELINE]
    assert (lookup.first_divergence, lookup.tokens, plain.tokens) == (None, 24, 24)
    assert lookup.steps < plain.steps == 23
    assert 1 <= lookup.first_tokens <= 24
    assert (lookup.tokens_in_steps, plain.tokens_in_steps) == (24 - lookup.first_tokens, 23)


def test_the_static_cache_of_generate_is_an_arm_of_its_own() -> None:
    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE))
    rows = run_bench(base, {}, answers, repeats=1, with_static=True)
    static = [row for row in rows if row.arm == HF_STATIC]
    assert [row.tokens for row in static] == [len(answer.tokens) for answer in answers]
    assert all(row.first_divergence is None for row in static)
    assert {row.arm for row in run_bench(base, {}, answers, repeats=1)} == {ENGINE_BASELINE, HF_BASELINE}


def test_heads_of_several_kinds_in_one_bench() -> None:
    base = tiny_base()
    both = {
        "medusa": Contender(SHAPES["gap"], random_heads(base)),
        "eagle": Contender(SHAPES["gap"], random_eagle(base, "eagle")),
        "dynamic": Contender(DynamicTree(3, 3, 9), random_eagle(base)),
    }
    rows = run_bench(base, both, answers_for(base), repeats=1, with_hf=False)
    assert {row.arm for row in rows} == {ENGINE_BASELINE, *both}
    assert all(row.first_divergence is None for row in rows)
