"""Decoding in batches: passes are those that replay foretells, text is that of single decoding, parts add up."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_decoding import NO_TREE, answers_of, decode
from tiny_models import SHAPES, TOP_K, prompt_of, random_eagle, random_heads, tiny_base

from mtp_bench.decode import memory
from mtp_bench.decode.bench import ENGINE_BASELINE, Contender
from mtp_bench.decode.budget import HOST, PARTS, step_budget
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.memory import memory_need
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.throughput import run_throughput
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import DynamicTree, Topology
from mtp_bench.trace import batch_passes, mean_longest_context, replay

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((4, 19, 9, 1, 13, 9, 30, 6, 2))]
BATCHES = (1, 2, 4)
BLOCK = 5


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
def test_passes_are_foretold_exactly(kind: str) -> None:
    base = tiny_base()
    heads: AnyHeads = random_heads(base) if kind == "medusa" else random_eagle(base, kind)
    trees: dict[str, Topology] = {"chain": SHAPES["chain"], "wide": SHAPES["random-63"]}
    answers = answers_of(decode(base, None, NO_TREE, PROMPTS))
    trace = record_trace(base, heads, answers, top_k=TOP_K)
    rows = run_throughput(
        base, {name: Contender(tree, heads) for name, tree in trees.items()}, answers, BATCHES, block=BLOCK
    )
    assert len(rows) == len(BATCHES) * 2 * (1 + len(trees))
    fewer = 0
    for row in rows:
        steps = replay(trace, trees.get(row.arm, NO_TREE)).steps.tolist()[BLOCK * row.block :][:BLOCK]
        assert row.requests == len(steps)
        assert row.steps == sum(steps)
        assert row.passes == batch_passes(steps, row.batch)
        assert row.differing == 0
        assert row.tokens == sum(len(answer.tokens) - 1 for answer in answers[BLOCK * row.block :][:BLOCK])
        fewer += row.arm != ENGINE_BASELINE and row.steps < row.tokens
    assert fewer, "a test where nothing is accepted shows nothing"


def test_what_is_done_beside_the_decoding_is_not_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, beside = [0.0], Counter[tuple[str, int]]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work(arm: str, batch: int) -> None:
        beside[arm, batch] += 1
        now[0] += 1000.0

    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE, PROMPTS))
    contenders = {"chain": Contender(SHAPES["chain"], random_heads(base))}
    rows = run_throughput(base, contenders, answers, BATCHES, block=BLOCK, beside=work)
    assert {row.decode_s for row in rows} == {0.0}
    assert beside == {(arm, batch): len(PROMPTS) for arm in (ENGINE_BASELINE, "chain") for batch in BATCHES}


def test_arms_of_a_batch_size_take_turns() -> None:
    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE, PROMPTS))
    heads = random_heads(base)
    contenders = {name: Contender(SHAPES[name], heads) for name in ("chain", "random-63")}
    ends: list[tuple[str, int]] = []
    run_throughput(base, contenders, answers, BATCHES, block=BLOCK, beside=lambda arm, batch: ends.append((arm, batch)))
    arms = {ENGINE_BASELINE, *contenders}
    turns = [ends[start : start + len(arms)] for start in range(0, len(ends), len(arms))]
    assert len(turns) == len(PROMPTS) * len(BATCHES)
    for turn in turns:
        assert {arm for arm, _ in turn} == arms
        assert len({batch for _, batch in turn}) == 1
    assert len({tuple(arm for arm, _ in turn) for turn in turns}) > 2, "always the same order"


def test_a_cache_for_every_arm_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE, PROMPTS[:4]))
    contenders = {"chain": Contender(SHAPES["chain"], random_heads(base))}
    one = memory_need(base, batch=4, length=64, rows=8).total
    monkeypatch.setattr(memory, "available_bytes", lambda device: 3 * one)
    run_throughput(base, contenders, answers, (4,), block=4)
    many = {f"{n}": contenders["chain"] for n in range(40)}
    with pytest.raises(InputError, match=r"164 x .* slots of cache take"):
        run_throughput(base, many, answers, (4,), block=4)


@pytest.mark.parametrize(
    ("steps", "batch", "passes"),
    [([], 3, 0), ([5], 1, 5), ([5, 2, 3], 1, 10), ([5, 2, 3], 2, 5), ([5, 2, 4], 2, 6), ([1, 1, 1, 1, 9], 2, 11)],
)
def test_passes_of_a_queue(steps: list[int], batch: int, passes: int) -> None:
    assert batch_passes(steps, batch) == passes


@pytest.mark.parametrize("batch", BATCHES)
def test_contexts_of_a_queue_are_those_of_decoding(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[int] = []
    step = TreeStepper.step

    def watched(self: TreeStepper, longest: int) -> torch.Tensor:
        contexts.append(longest)
        return step(self, longest)

    monkeypatch.setattr(TreeStepper, "step", watched)
    lengths = [2 + 5 * index % 7 for index in range(len(PROMPTS))]
    decoder = Decoder(tiny_base(), None, NO_TREE, batch=batch, max_length=60)
    requests = [
        Request(str(i), prompt, n, ignore_eos=True) for i, (prompt, n) in enumerate(zip(PROMPTS, lengths, strict=True))
    ]
    done = list(decoder.run(requests))
    assert {len(one.tokens) for one in done} == set(lengths)
    told = mean_longest_context([len(prompt) for prompt in PROMPTS], [n - 1 for n in lengths], batch)
    assert told == pytest.approx(sum(contexts) / len(contexts))


@pytest.mark.parametrize("topology", [NO_TREE, SHAPES["full-3-2-1"], DynamicTree(3, 2, 4)])
def test_the_parts_of_a_step(topology: Topology) -> None:
    base = tiny_base()
    [answer] = answers_of(decode(base, None, NO_TREE, PROMPTS[:1]))
    budget = step_budget(base, {"arm": Contender(topology, random_eagle(base))}, answer)["arm"]
    assert tuple(budget) == PARTS
    assert budget["verify"] > budget["accept"] > 0
    assert budget["draft"] > 0
    if not topology.num_nodes:
        assert budget["draft"] < 0.1 * budget["verify"], "nothing is drafted"
    assert 0 < budget[HOST] < sum(budget.values())


@pytest.mark.parametrize(
    ("part", "name"),
    [("draft", "draft"), ("verify", "verify"), ("accept", "accept"), ("cache move", "settle")],
)
def test_each_part_is_told_from_the_others(part: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    [answer] = answers_of(decode(base, None, NO_TREE, PROMPTS[:1]))
    plain = getattr(TreeStepper, name)

    def slow(*arguments: object) -> object:
        time.sleep(0.03)
        return plain(*arguments)

    monkeypatch.setattr(TreeStepper, name, slow)
    arms = {"arm": Contender(SHAPES["random-63"], random_heads(base))}
    budget = step_budget(base, arms, answer)["arm"]
    assert budget[part] >= 30
    assert max(budget, key=lambda one: budget[one]) == part


def test_an_end_token_ends_no_request() -> None:
    """A text that leaves the recorded one would else give its arm less to do than the others and the prediction."""
    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE, PROMPTS))
    base.model.generation_config.eos_token_id = answers[0].tokens[1]
    base = replace(base)  # what it knows of end tokens is kept
    assert base.eos_ids == {answers[0].tokens[1]}
    rows = run_throughput(base, {}, answers, (2,), block=len(answers))
    assert sum(row.tokens for row in rows) == sum(len(answer.tokens) - 1 for answer in answers)
