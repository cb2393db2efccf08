"""Hydra heads: loaded from files made to the published list, lossless, and replay equals live decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, answers_of, decode
from tiny_models import SHAPES, TOP_K, plain_greedy, prompt_of, tiny_base

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.detect import detect
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.inspection import describe, inspect_path
from mtp_bench.heads.load import load_heads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.alignment import top1_by_shift
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import DynamicTree
from mtp_bench.trace import replay

HEADS, LAYERS = 4, 2


def tensors_for(base: BaseModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    hidden, vocab = base.hidden_size, base.vocab_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {"input_embed_fn.weight": base.embedding_weight.detach().clone()}
    for i in range(HEADS):
        for j in range(LAYERS):
            tensors[f"hydra_mlp.{i}.{j}.linear.weight"] = normal(hidden, (i + 2) * hidden if j == 0 else hidden)
            tensors[f"hydra_mlp.{i}.{j}.linear.bias"] = normal(hidden)
        tensors[f"hydra_mlp.{i}.0.res_connection.weight"] = normal(hidden, (i + 2) * hidden)
        tensors[f"hydra_mlp.{i}.0.res_connection.bias"] = normal(hidden)
        tensors[f"hydra_lm_head.{i}.weight"] = normal(vocab, hidden)
        tensors[f"hydra_lm_head.{i}.bias"] = normal(vocab)
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "hydra_lm_head.pt")
    facts = {"hydra_num_heads": HEADS, "hydra_num_layers": LAYERS, "hydra_head_arch": "mlp", "grounded_heads": True}
    (folder / "config.json").write_text(json.dumps(facts | config))
    return folder


def load(folder: Path, base: BaseModel) -> HydraHeads:
    facts = BaseFacts(
        base.hidden_size, base.vocab_size, base.name, lambda: base.lm_head_weight, lambda: base.embedding_weight
    )
    heads = load_heads(folder, base=facts).heads
    assert isinstance(heads, HydraHeads)
    return heads


@pytest.fixture
def heads(tmp_path: Path) -> tuple[BaseModel, HydraHeads]:
    base = tiny_base()
    return base, load(write(tmp_path, tensors_for(base)), base)


def test_the_folder_is_known(tmp_path: Path) -> None:
    folder = write(tmp_path, tensors_for(tiny_base()))
    assert detect(folder).kind == "hydra_heads"
    assert "Hydra heads" in describe(inspect_path(folder))


def test_a_head_sees_the_tokens_before_its_own(heads: tuple[BaseModel, HydraHeads]) -> None:
    base, hydra = heads
    state = torch.randn(1, base.hidden_size)
    seen = [hydra.ground(hydra.ground(state, torch.tensor([5])), torch.tensor([token])) for token in (3, 4)]
    assert seen[0].shape == (1, 3 * base.hidden_size)
    assert not torch.allclose(hydra.logits(seen[0], 1), hydra.logits(seen[1], 1))


def test_lossless_and_replay_equals_live(heads: tuple[BaseModel, HydraHeads]) -> None:
    base, hydra = heads
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    trace = record_trace(base, hydra, answers_of(decode(base, None, NO_TREE)), top_k=TOP_K)
    assert (trace.ranks[:, 1:] >= 0).any()
    for name, tree in SHAPES.items():
        live = decode(base, hydra, tree)
        assert [g.tokens for g in live] == expected, name
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist(), name
    starts = trace.tokens_left > 1
    assert top1_by_shift(base, hydra, answers_of(decode(base, None, NO_TREE)))[0] == pytest.approx(
        (trace.ranks[starts, 0] == 0).mean()
    )


def test_batches_decode_as_single_requests_do(heads: tuple[BaseModel, HydraHeads]) -> None:
    base, hydra = heads
    prompts = [prompt_of(length, seed) for seed, length in enumerate((5, 19, 3))]
    alone = decode(base, hydra, SHAPES["gap"], prompts)
    together = decode(base, hydra, SHAPES["gap"], prompts, batch=3)
    assert [(g.tokens, g.accepted) for g in together] == [(g.tokens, g.accepted) for g in alone]
    with pytest.raises(InputError, match="Hydra heads cannot draft"):
        decode(base, hydra, DynamicTree(2, 2, 3), prompts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing tensors: hydra_mlp.1.0.res_connection.weight"),
        ("shape", r"hydra_mlp.2.0.linear.weight has shape \[32, 96\], \[32, 128\] expected"),
        ("surplus", "do not belong to Hydra heads: extra.weight"),
        ("prefix", "Hydra heads of the kind prefix-mlp are not supported"),
        ("vocabulary", "heads have 25 vocabulary rows, the base model llama has 24"),
    ],
)
def test_wrong_files_are_refused(change: str, message: str, tmp_path: Path) -> None:
    base = tiny_base()
    tensors, config = tensors_for(base), {}
    if change == "missing":
        del tensors["hydra_mlp.1.0.res_connection.weight"]
    elif change == "shape":
        tensors["hydra_mlp.2.0.linear.weight"] = torch.zeros(32, 96)
    elif change == "surplus":
        tensors["extra.weight"] = torch.zeros(2)
    elif change == "prefix":
        config = {"hydra_head_arch": "prefix-mlp"}
    else:
        for i in range(HEADS):
            tensors[f"hydra_lm_head.{i}.weight"] = torch.zeros(25, 32)
            tensors[f"hydra_lm_head.{i}.bias"] = torch.zeros(25)
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, tensors, **config), base)
