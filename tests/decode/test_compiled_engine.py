"""The compiled engine: the eager engine's text and steps, for every kind of heads, compiled once for all sizes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, decode
from tiny_hydra import random_hydra
from tiny_models import plain_greedy, prompt_of, random_eagle, random_heads, random_tree, tiny_base

from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.compiled import Compiled
from mtp_bench.models.engines import pick_engine
from mtp_bench.topology import DynamicTree, StaticTree, Topology

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", autouse=True)
def restored_settings() -> Iterator[None]:
    import torch._inductor.config as inductor

    before = inductor.freezing
    yield
    inductor.freezing = before


def compiled_base(architecture: str = "llama") -> BaseModel:
    return replace(tiny_base(architecture), engine=pick_engine("compiled", CPU, torch.float32))


def assert_as_eager(base: BaseModel, heads: AnyHeads | None, tree: Topology, *, batch: int = 1) -> None:
    eager = decode(replace(base, engine="eager"), heads, tree, batch=batch)  # type: ignore[arg-type]
    found = decode(base, heads, tree, batch=batch)  # type: ignore[arg-type]
    assert [g.tokens for g in found] == [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    assert [g.accepted for g in found] == [g.accepted for g in eager]


@needs_compiler
@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_text_and_steps_are_those_of_the_eager_engine(architecture: str) -> None:
    base = compiled_base(architecture)
    heads = random_heads(base)
    for tree in (NO_TREE, random_tree(0, max_nodes=20)):
        assert_as_eager(base, heads if tree.num_nodes else None, tree)
    assert set(base.__dict__["_compiled"]) == {("_choices",)}, "or the eager engine was compared with itself"
    assert {name for name, *_ in heads.__dict__["_compiled"]} == {"propose"}


@needs_compiler
def test_batches() -> None:
    base = compiled_base()
    assert_as_eager(base, random_heads(base, "map"), random_tree(1, max_nodes=12), batch=2)


@needs_compiler
def test_draft_layers() -> None:
    base = compiled_base()
    draft = random_eagle(base, "eagle3")
    assert_as_eager(base, draft, DynamicTree(3, 3, 8))
    assert set(draft.__dict__["_compiled"]) == {("forward",), ("logits",)}


@needs_compiler
def test_hydra_heads_run_eagerly_beside_a_compiled_model(tmp_path: Path) -> None:
    base = compiled_base()
    heads = random_hydra(base, tmp_path)
    assert_as_eager(base, heads, random_tree(1, max_nodes=12), batch=2)
    assert "_compiled" not in heads.__dict__


@needs_compiler
def test_other_sizes_compile_nothing_anew() -> None:
    base = compiled_base()
    heads = random_heads(base)
    start = Compiled.seconds
    wide, narrow = (StaticTree.from_paths([(rank,) for rank in range(width)]) for width in (9, 5))
    decode(base, heads, wide, [prompt_of(5)])
    decode(base, None, NO_TREE, [prompt_of(5)])
    before = Compiled.seconds
    assert before > start
    decode(base, heads, wide, [prompt_of(90)], rows=16)
    decode(base, None, NO_TREE, [prompt_of(90)])
    decode(base, heads, narrow, [prompt_of(30)])
    assert Compiled.seconds == before


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(InputError, match="unknown engine 'fast'"):
        pick_engine("fast", CPU, torch.float32)
    assert pick_engine("eager", CPU, torch.float32) == "eager"


def test_without_a_compiler_the_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="needs a C\\+\\+ compiler") as refusal:
        pick_engine("compiled", CPU, torch.float32)
    assert "another engine" in str(refusal.value)
