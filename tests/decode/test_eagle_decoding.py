"""EAGLE drafts: lossless, replay equals live decoding, and the draft's cache holds nothing that it made up itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, answers_of, decode
from tiny_models import CASES, SHAPES, SWITCHES, TOP_K, plain_greedy, prompt_of, random_eagle, random_tree, tiny_base

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.eagle import EagleDrafter
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.teacher import forced_passes
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import StaticTree
from mtp_bench.trace import replay

# Nearly every token at depth 1, so that something is accepted in most steps.
COVER = StaticTree.from_paths([(rank,) for rank in range(20)] + [(a, b) for a in range(20) for b in range(4)])


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
@pytest.mark.parametrize(("architecture", "kernel"), CASES)
def test_text_equals_plain_greedy(architecture: str, kernel: str, variant: str) -> None:
    base = tiny_base(architecture, kernel)
    draft = random_eagle(base, variant)
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    accepted = 0
    for tree in (random_tree(0, max_nodes=40), random_tree(1, max_nodes=40), COVER):
        generations = decode(base, draft, tree)
        assert [g.tokens for g in generations] == expected
        accepted += sum(sum(g.accepted) for g in generations)
    assert accepted > 10, "a test where nothing is accepted shows nothing"


def exact(base: BaseModel) -> BaseModel:
    """In fp64: a draft's near-ties fall the same way in one row as in many, on every processor."""
    return replace(base, model=base.model.double())


def assert_replay_equals_live(base: BaseModel, draft: EagleDraft, trees: dict[str, StaticTree]) -> None:
    plain = decode(base, None, NO_TREE)
    trace = record_trace(base, draft, answers_of(plain), top_k=TOP_K)
    assert (trace.ranks[:, 1:] >= 0).any()
    for name, tree in trees.items():
        live = decode(base, draft, tree)
        assert [g.tokens for g in live] == [g.tokens for g in plain], name
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist(), name


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "qwen3", "mistral-window", "gemma3"])
@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_replayed_steps_equal_live_steps(architecture: str, variant: str) -> None:
    base = exact(tiny_base(architecture))
    assert_replay_equals_live(base, random_eagle(base, variant).double(), SHAPES)


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "+".join(switches) or "plain")
def test_replayed_steps_equal_live_steps_with_every_switch(switches: dict[str, bool]) -> None:
    base = exact(tiny_base())
    trees = {name: SHAPES[name] for name in ("chain", "gap", "random-0", "random-63")}
    assert_replay_equals_live(base, random_eagle(base, "eagle3", **switches).double(), trees)


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_batches_decode_as_single_requests_do(variant: str) -> None:
    base = tiny_base()
    draft = random_eagle(base, variant)
    prompts = [prompt_of(length, seed) for seed, length in enumerate((5, 19, 3, 11, 8))]
    for name in ("gap", "random-3"):
        alone = decode(base, draft, SHAPES[name], prompts)
        together = decode(base, draft, SHAPES[name], prompts, batch=3)
        assert [g.tokens for g in together] == [g.tokens for g in alone]
        assert [g.accepted for g in together] == [g.accepted for g in alone]


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_settled_slots_of_the_draft_cache_come_from_the_base_models_features(variant: str) -> None:
    """Left in the cache, a drafted slot would shorten later acceptance without a sign."""
    base = tiny_base()
    draft = random_eagle(base, variant)
    tree = random_tree(5, max_nodes=40)
    stepper = TreeStepper(
        base, draft, TreeTensors.build(tree, base.device), TreeCache.allocate(base, batch=1, length=120)
    )
    text = PROMPTS[0] + stepper.prefill([0], [PROMPTS[0]])
    for _ in range(8):
        count, *emitted = stepper.step(len(text) - 1).tolist()[0]
        text += emitted[: count + 1]
    drafter = stepper.drafter
    assert isinstance(drafter, EagleDrafter)
    fresh = forced_keys(base, draft, text)
    torch.testing.assert_close(drafter.cache.data[0, 0, 0, :, : len(text) - 1], fresh, atol=1e-4, rtol=1e-4)


def forced_keys(base: BaseModel, draft: EagleDraft, text: list[int]) -> torch.Tensor:
    """Keys [K, len(text) - 1, d] of one causal pass over the whole text."""
    forced = next(iter(forced_passes(base, [Answer("a", "t", text[:1], text[1:], 0, "")], aux_layers=draft.aux_layers)))
    caught: list[torch.Tensor] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        caught.append(key)
        return query.transpose(1, 2)

    length = len(text) - 1
    draft(forced.following, draft.fuse(forced.features), draft.rotary(length), attend)
    return caught[0][0]
