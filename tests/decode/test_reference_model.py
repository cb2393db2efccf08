"""Invariants 1 and 2 on a real model: replay equals live decoding, which equals plain greedy decoding, in fp32."""

from __future__ import annotations

import pytest
from tiny_models import SHAPES, plain_greedy, random_tree

from mtp_bench.decode.answers import Answer
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.load import load_heads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.shipped import default_heads_for, shipped_heads, shipped_names
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import chat_format
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.profile.live import decode_answers
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import DynamicTree, StaticTree
from mtp_bench.trace import replay

ALIAS = "smollm2-135m"
QUESTIONS = ("Write a short poem about the sea.", "What is the capital of France, and what is it known for?")
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base_model(ALIAS, LoadOptions(dtype="fp32", device="cpu"))


@pytest.fixture(scope="module")
def heads(base: BaseModel) -> MedusaHeads:
    name = default_heads_for(ALIAS)
    assert name is not None
    facts = BaseFacts(base.hidden_size, base.vocab_size, ALIAS, lm_head_weight=lambda: base.lm_head_weight)
    loaded = load_heads(shipped_heads(name), base=facts, dtype=base.dtype, device=base.device)
    assert isinstance(loaded.heads, MedusaHeads)
    return loaded.heads


@pytest.fixture(scope="module")
def answers(base: BaseModel) -> list[Answer]:
    chat = chat_format(base)
    prompts = [chat.encode([("user", question)]) for question in QUESTIONS]
    greedy = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in prompts]
    return [Answer(str(i), "test", p, t, 0, "length") for i, (p, t) in enumerate(zip(prompts, greedy, strict=True))]


def test_engine_baseline_is_plain_greedy(base: BaseModel, answers: list[Answer]) -> None:
    assert [g.tokens for g in decode_answers(base, None, StaticTree(()), answers)] == [a.tokens for a in answers]


def test_replayed_steps_equal_live_steps(base: BaseModel, heads: MedusaHeads, answers: list[Answer]) -> None:
    trace = record_trace(base, heads, answers)
    assert (trace.ranks >= 0).any()
    accepted = 0
    trees = [SHAPES["random-63"], *[random_tree(seed) for seed in range(8)], random_tree(8)]
    for number, tree in enumerate(trees):
        chosen = [0, 1] if number == 1 else [number % 2]
        texts = [answers[index] for index in chosen]
        live = decode_answers(base, heads, tree, texts, batch=len(texts))
        assert [g.tokens for g in live] == [a.tokens for a in texts]
        assert [g.steps for g in live] == replay(trace, tree).steps[chosen].tolist()
        accepted += sum(sum(g.accepted) for g in live)
    assert accepted > 0


@pytest.mark.parametrize("name", [name for name in shipped_names() if "eagle" in name])
def test_eagle_drafts_on_the_reference_model(base: BaseModel, answers: list[Answer], name: str) -> None:
    """Static and dynamic trees: lossless, and as many live steps as replayed ones."""
    facts = BaseFacts(
        base.hidden_size, base.vocab_size, ALIAS, lambda: base.lm_head_weight, lambda: base.embedding_weight,
        num_layers=base.num_layers,
    )  # fmt: skip
    folder = shipped_heads(name)
    assert folder is not None
    draft = load_heads(folder, base=facts, dtype=base.dtype, device=base.device).heads
    assert isinstance(draft, EagleDraft)
    draft.max_depth = 4
    trace = record_trace(base, draft, answers, dynamic_top_ks=(4,))
    accepted = 0
    for tree in (SHAPES["random-63"], SHAPES["chain"], DynamicTree(3, 4, 12), DynamicTree(4, 4, 40)):
        live = decode_answers(base, draft, tree, answers, batch=2)
        assert [g.tokens for g in live] == [a.tokens for a in answers]
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist()
        accepted += sum(sum(g.accepted) for g in live)
    assert accepted > 10
