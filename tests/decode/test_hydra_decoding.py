"""Hydra heads, plain and with a prefix layer: lossless, and replay equals live decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, answers_of, decode
from tiny_hydra import HEADS, hydra_tensors, load_hydra, names_of, prefix_model, random_hydra, write_hydra
from tiny_models import SHAPES, TOP_K, plain_greedy, prompt_of, random_tree, tiny_base

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.hydra import HydraDrafter
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import InputError
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.alignment import top1_by_shift
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import DynamicTree, StaticTree
from mtp_bench.trace import replay

KINDS = ["mlp", "prefix-mlp"]
# Nearly every token at depth 1, so that something is accepted in most steps.
COVER = StaticTree.from_paths([(rank,) for rank in range(20)] + [(a, b) for a in range(20) for b in range(4)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_sees_the_tokens_before_its_own(kind: str, tmp_path: Path) -> None:
    base = tiny_base()
    hydra = random_hydra(base, tmp_path, kind)
    state = torch.randn(1, base.hidden_size)
    seen = [hydra.ground(hydra.ground(state, torch.tensor([5])), torch.tensor([token])) for token in (3, 4)]
    assert seen[0].shape == (1, 3 * base.hidden_size)
    assert not torch.allclose(hydra.logits(seen[0], 1), hydra.logits(seen[1], 1))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "mistral-window"])
def test_lossless_and_replay_equals_live(architecture: str, kind: str, offset: int, tmp_path: Path) -> None:
    base = tiny_base(architecture)
    hydra = random_hydra(base, tmp_path, kind, hidden_state_offset=offset)
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    trace = record_trace(base, hydra, answers_of(decode(base, None, NO_TREE)), top_k=TOP_K)
    assert (trace.ranks[:, 1:] >= 0).any()
    for name, tree in SHAPES.items():
        live = decode(base, hydra, tree)
        assert [g.tokens for g in live] == expected, name
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist(), name
    assert sum(sum(g.accepted) for g in decode(base, hydra, COVER)) > 10, "or nothing was ever settled but roots"
    starts = trace.tokens_left > 1
    assert top1_by_shift(base, hydra, answers_of(decode(base, None, NO_TREE)))[0] == pytest.approx(
        (trace.ranks[starts, 0] == 0).mean()
    )


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_those_of_the_formula(kind: str, offset: int, tmp_path: Path) -> None:
    base = tiny_base()
    tensors = hydra_tensors(base, kind)
    hydra = load_hydra(write_hydra(tmp_path, tensors, kind, hidden_state_offset=offset), base)
    # Texts of different lengths in one padded pass.
    answers = answers_of(decode(base, None, NO_TREE))
    answers[0] = Answer("0", "test", answers[0].prompt, answers[0].tokens[:11], 0, "length")
    expected = np.concatenate([formula_ranks(base, tensors, kind, offset, answer) for answer in answers])
    assert record_trace(base, hydra, answers, top_k=TOP_K).ranks.tolist() == expected.tolist()


@torch.inference_mode()
def formula_ranks(
    base: BaseModel, tensors: dict[str, torch.Tensor], kind: str, offset: int, answer: Answer
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The paper's formula, one position and head at a time, over what transformers says of the whole text."""
    text = torch.tensor(answer.prompt + answer.tokens)
    with base.stock_attention():
        states = base.decoder(input_ids=text[None], output_hidden_states=True).hidden_states[-1 - offset]
    if kind == "prefix-mlp":
        states = prefix_model(base, tensors)(inputs_embeds=states).last_hidden_state
    places, lm = names_of(kind)
    length = len(answer.tokens)
    ranks = np.full((length, HEADS), -1)
    for t in range(length):
        position = len(answer.prompt) - 1 + t
        for i in range(min(HEADS, length - 1 - t)):
            seen = [states[0, position], *base.embedding_weight[text[position + 1 : position + 2 + i]]]
            x = torch.cat(seen)
            for place in places:
                inner = f"hydra_mlp.{i}.{place}."
                before = x
                if place == places[0]:
                    before = tensors[inner + "res_connection.weight"] @ x + tensors[inner + "res_connection.bias"]
                x = before + F.silu(tensors[inner + "linear.weight"] @ x + tensors[inner + "linear.bias"])
            logits = tensors[f"hydra_lm_head.{i}{lm}.weight"] @ x + tensors[f"hydra_lm_head.{i}{lm}.bias"]
            rank = int((logits > logits[text[position + 2 + i]]).sum())
            ranks[t, i] = rank if rank < TOP_K else -1
    return ranks


@pytest.mark.parametrize("batch", [1, 2])
def test_the_prefix_layers_cache_is_that_of_the_settled_text(batch: int, tmp_path: Path) -> None:
    """Keys of one pass of transformers' own layer over the text so far."""
    base = tiny_base()
    tensors = hydra_tensors(base, "prefix-mlp")
    hydra = load_hydra(write_hydra(tmp_path, tensors, "prefix-mlp"), base)
    tree = random_tree(5, max_nodes=40)
    shapes = TreeTensors.build(tree, base.device, batch=batch)
    stepper = TreeStepper(base, hydra, shapes, TreeCache.allocate(base, batch=batch, length=160))
    prompts = PROMPTS[:batch]
    texts = [
        [*prompt, first] for prompt, first in zip(prompts, stepper.prefill(list(range(batch)), prompts), strict=True)
    ]
    for _ in range(8):
        results = stepper.step(max(map(len, texts)) - 1).tolist()
        for text, (count, *emitted) in zip(texts, results, strict=True):
            text += emitted[: count + 1]
    drafter = stepper.drafter
    assert isinstance(drafter, HydraDrafter)
    assert drafter.prefix is not None
    for index, text in enumerate(texts):
        with base.stock_attention(), torch.inference_mode():
            hidden = base.decoder(input_ids=torch.tensor([text[:-1]])).last_hidden_state
            cached = prefix_model(base, tensors)(inputs_embeds=hidden, use_cache=True).past_key_values.layers[0]
        kept = drafter.prefix.cache.data[0, :, index, :, : len(text) - 1]
        torch.testing.assert_close(kept, torch.stack([cached.keys[0], cached.values[0]]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_decode_as_single_requests_do(kind: str, tmp_path: Path) -> None:
    base = tiny_base()
    hydra = random_hydra(base, tmp_path, kind)
    prompts = [prompt_of(length, seed) for seed, length in enumerate((5, 19, 3, 11, 8))]
    for tree in (SHAPES["gap"], COVER):
        alone = decode(base, hydra, tree, prompts)
        together = decode(base, hydra, tree, prompts, batch=3)
        assert [(g.tokens, g.accepted) for g in together] == [(g.tokens, g.accepted) for g in alone]
    with pytest.raises(InputError, match="Hydra heads cannot draft"):
        decode(base, hydra, DynamicTree(2, 2, 3), prompts)  # type: ignore[arg-type]
