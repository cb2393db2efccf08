"""Decoding with the native engine: plain greedy text, in bf16 too the same text whatever the tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_decoding import NO_TREE, decode
from tiny_models import SWITCHES, WIDE, plain_greedy, prompt_of, random_eagle, random_heads, random_tree, tiny_base

from mtp_bench.cli.loading import load_heads
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Drafter, Settled
from mtp_bench.decode.drafters import drafter_for, engine_heads
from mtp_bench.decode.native_heads import NativeMedusa
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.native.library import compiler
from mtp_bench.topology import DynamicTree, Topology

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((5, 19, 3, 11, 8))]
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def heads_of(base: BaseModel, kind: str) -> Any:
    return random_heads(base, kind) if kind in ("own", "shared", "base", "map") else random_eagle(base, kind)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral-window"])
@pytest.mark.parametrize("kind", ["map", "eagle", "eagle3"])
def test_text_is_plain_greedy_text(architecture: str, kind: str) -> None:
    base = replace(tiny_base(architecture, **WIDE), engine="native")
    heads = heads_of(base, kind)
    expected = [plain_greedy(base, prompt, 28) for prompt in PROMPTS]
    trees: list[Any] = [NO_TREE, random_tree(1), random_tree(2)]
    if kind == "eagle3":
        trees.append(DynamicTree(3, 3, 9))
    accepted = 0
    for tree in trees:
        for batch in (1, 2, 3, 8):
            got = decode(base, None if tree is NO_TREE else heads, tree, PROMPTS, batch=batch)
            assert [g.tokens for g in got] == expected, (tree, batch)
            accepted += sum(sum(g.accepted) for g in got)
    assert accepted > 10, "a test where nothing is accepted shows nothing"


@pytest.mark.parametrize("kind", ["map", "eagle3"])
def test_in_bf16_every_tree_and_batch_gives_the_same_text(kind: str) -> None:
    plain = tiny_base(**WIDE)
    base = replace(plain, model=plain.model.bfloat16(), engine="native")
    heads = heads_of(base, kind).bfloat16()
    texts = [
        [g.tokens for g in decode(base, None if tree is NO_TREE else heads, tree, PROMPTS[:1] * 3, batch=batch)]
        for tree in (NO_TREE, random_tree(1), random_tree(2, max_nodes=40))
        for batch in (1, 3)
    ]
    # Prompts are read by the stock model, for one as for three of the same length.
    assert all(text == texts[0] for text in texts)


def test_the_reference_model_in_bf16_says_the_same_with_a_tree() -> None:
    base = load_base_model("smollm2-135m", LoadOptions(dtype="bf16", engine="native"))
    heads, _ = load_heads("smollm2-135m-medusa", base)
    prompt = base.tokenizer("The three largest rivers of Europe are").input_ids
    tree = random_tree(1)
    plain, with_tree = (decode(base, one, t, [prompt], new_tokens=48) for one, t in ((None, NO_TREE), (heads, tree)))
    assert with_tree[0].tokens == plain[0].tokens
    assert sum(with_tree[0].accepted) > 5


@pytest.mark.parametrize("kind", ["own", "shared", "base", "map"])
@pytest.mark.parametrize("layers", [1, 2])
def test_medusa_heads_propose_the_same(kind: str, layers: int) -> None:
    base = tiny_base(**WIDE)
    heads = random_heads(base, kind)
    if layers == 2:
        twice = [
            torch.cat([part, 0.5 * part]) if part is not None else None
            for part in (heads.block_weight, heads.block_bias)
        ]
        heads = MedusaHeads(*twice, lm_head=heads.lm_head, lm_weight=heads.lm_weight, token_map=heads.token_map)  # type: ignore[misc]
        heads.attach(base.lm_head_weight)
    x = torch.randn(5, base.hidden_size, generator=torch.Generator().manual_seed(0))
    native = engine_heads(heads, "native")
    assert isinstance(native, NativeMedusa)
    for depth in (1, 3, heads.max_depth):
        with torch.inference_mode():
            assert torch.equal(native.propose(x, depth, 6), heads.propose(x, depth, 6))


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "+".join(switches) or "plain")
@torch.inference_mode()
def test_drafts_are_those_of_the_plain_layer(variant: str, switches: dict[str, bool]) -> None:
    if variant == "eagle":
        switches = {name: on for name, on in switches.items() if name in ("own_embedding", "qkv_bias")}
    base = tiny_base(**WIDE)
    draft = random_eagle(base, variant, **switches)
    native = engine_heads(draft, "native")
    assert isinstance(native, EagleDraft)
    assert native is not draft
    assert native is engine_heads(draft, "native"), "made once"
    tree: Topology = random_tree(3)
    drafters: list[Drafter] = []
    for engine in ("eager", "native"):
        made = drafter_for(draft, tree, TreeCache.allocate(base, batch=2, length=64), engine)  # type: ignore[arg-type]
        assert made is not None
        drafters.append(made)
    generator = torch.Generator().manual_seed(1)
    starts = torch.zeros(2, dtype=torch.int64)
    for counts in ((9, 6), (3, 1), (2, 4)):
        width = max(counts)
        settled = Settled(
            starts,
            torch.randint(0, base.vocab_size, (2, width), generator=generator),
            torch.randn(2, width, draft.config.feature_size, generator=generator),
            torch.tensor(counts),
            int(starts.max()),
        )
        plain, quick = (one.draft(slice(None), settled) for one in drafters)
        # In fp32, where a near-tie is rare: the same tokens, unless one falls the other way.
        assert (plain.tokens == quick.tokens).float().mean() > 0.95
        keys = [one.cache.data[..., : int(starts.max()) + width, :] for one in drafters]  # type: ignore[attr-defined]
        torch.testing.assert_close(keys[0], keys[1], atol=1e-3, rtol=1e-3)
        starts = starts + torch.tensor(counts)


def test_a_draft_whose_heads_the_kernels_do_not_take_is_packed() -> None:
    base = tiny_base()
    draft = random_eagle(base)
    made = engine_heads(draft, "native")
    assert isinstance(made, EagleDraft)
    assert made.lm_best is None


def test_nothing_is_left_in_the_cache_that_the_draft_made_up() -> None:
    base = replace(tiny_base(**WIDE), engine="native")
    tree = TreeTensors.build(random_tree(5, max_nodes=40), base.device)
    stepper = TreeStepper(base, random_eagle(base, "eagle3"), tree, TreeCache.allocate(base, batch=1, length=120))
    text = PROMPTS[0] + stepper.prefill([0], [PROMPTS[0]])
    for _ in range(8):
        count, *emitted = stepper.step(len(text) - 1).tolist()[0]
        text += emitted[: count + 1]
    assert text[len(PROMPTS[0]) :] == plain_greedy(base, PROMPTS[0], len(text) - len(PROMPTS[0]))
