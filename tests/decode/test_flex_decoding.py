"""Decoding with FlexAttention: the same text, the same verification, and results that say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoding import NO_TREE, PROMPTS, decode
from tiny_models import SHAPES, WINDOW, plain_greedy, prompt_of, random_heads, random_tree, save_tiny_model, tiny_base

from mtp_bench.cli import run
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.graph import GraphStepper
from mtp_bench.decode.probe import probe_tree
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models import attention, flex
from mtp_bench.models.packed import can_pack

NEW_TOKENS = 14
ARCHITECTURES = ["llama", "mistral-window", "mistral-narrow", "gemma2", "gemma3"]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_text_equals_plain_greedy(architecture: str, batch: int) -> None:
    base = tiny_base(architecture, flex.NAME)
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    cover = SHAPES["full-3-2-1"] if architecture == "gemma2" else random_tree(0, max_nodes=40)
    generations = decode(base, random_heads(base), cover, batch=batch, new_tokens=NEW_TOKENS)
    assert [one.tokens for one in generations] == expected
    assert sum(sum(one.accepted) for one in generations) > 0, "a test where nothing is accepted shows nothing"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_verification_equals_the_dense_masks(architecture: str) -> None:
    """A batch of two sequences of different lengths, longer and shorter than the window."""
    stock = "eager" if architecture == "gemma2" else attention.NAME
    tree = SHAPES["random-1"]
    logits = []
    for kernel in (flex.NAME, stock):
        base = tiny_base(architecture, kernel)
        stepper = TreeStepper(
            base, None, TreeTensors.build(NO_TREE, base.device), TreeCache.allocate(base, batch=2, length=100)
        )
        stepper.prefill([0, 1], [prompt_of(5), prompt_of(2 * WINDOW + 3, 1)])
        tokens = torch.randint(0, base.vocab_size, (2, tree.rows), generator=torch.Generator().manual_seed(0))
        stepper.set_rows(TreeTensors.build(tree, base.device), tokens)
        with torch.inference_mode():
            logits.append(base.logits(stepper.verify(2 * WINDOW + 3).hidden))
    torch.testing.assert_close(*logits, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not can_pack(torch.float32), reason="no packed fp32 products here")
def test_with_packed_weights() -> None:
    base = replace(tiny_base("llama", flex.NAME), engine="packed")
    generations = decode(base, random_heads(base), SHAPES["full-3-2-1"], new_tokens=NEW_TOKENS)
    assert [one.tokens for one in generations] == [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]


class Rerun:
    """Runs again in place of a graph, into the same outputs."""

    def __init__(self, function: Any, device: torch.device) -> None:
        self._function, self._outputs = function, None

    def replay(self) -> Any:
        outputs = self._function()
        self._outputs = outputs if self._outputs is None else self._outputs.copy_(outputs)
        return self._outputs


class Recorded(GraphStepper):
    recorder = Rerun


def test_steps_of_a_graph() -> None:
    """Their masks are made in the step, of its bucket's size."""
    base = tiny_base("mistral-window", flex.NAME)
    heads, prompt = random_heads(base), prompt_of(50)
    texts = []
    for stepper in (TreeStepper, Recorded):
        decoder = Decoder(base, heads, SHAPES["full-3-2-1"], max_length=100, stepper=stepper)
        texts.append([one.tokens for one in decoder.run([Request("0", prompt, 20)])])
    assert texts[0] == texts[1] == [plain_greedy(base, prompt, 20)]


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_the_probe_says_what_it_probed(architecture: str) -> None:
    result = probe_tree(tiny_base(architecture, flex.NAME), SHAPES["random-1"], prompt_of(WINDOW + 9))
    assert result.passed
    assert result.attention == "flex"


def test_results_say_what_attended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_tiny_model(tiny_base(), tmp_path / "model"))
    common = ["--model", model, "--dtype", "fp32", "--device", "cpu", "--attention", "flex", "--engine", "eager"]
    assert run(["probe", *common, "--topology", "chain:2"]) == 0
    shown = capsys.readouterr()
    assert "2 nodes with flex" in shown.out
    assert "float32 on cpu, flex, eager" in shown.err
    costs = ["--max-rows", "2", "--points", "2", "--rounds", "3", "--context", "16", "--out", str(tmp_path / "costs")]
    assert run(["measure-cost", *common, *costs]) == 0
    manifest = json.loads((tmp_path / "costs" / "run.json").read_text())
    assert manifest["model"]["attention"] == "flex"
