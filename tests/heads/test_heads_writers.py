"""What is written loads to identical logits, and what a layout cannot hold is refused."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoints as made
import pytest
import torch
from safetensors import safe_open

from mtp_bench.errors import InputError
from mtp_bench.heads.load import load_heads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.medusa.writers import save_version2, save_vllm

X = torch.randn(5, made.H, generator=torch.Generator().manual_seed(3))
MAP = torch.tensor([3, 17, 0, 8])
CONFIG = {"base_model_name_or_path": made.NAME, "vocab_size": made.V, "mtp_bench": {"training": "abc"}}


def fresh(lm_head: str = "base", token_map=None, bias: bool = True) -> MedusaHeads:
    heads = MedusaHeads.fresh(
        num_heads=made.N,
        num_layers=made.L,
        base_lm_head_weight=made.base_lm_head(),
        lm_head=lm_head,
        token_map=token_map,
        bias=bias,
        init_std=1.0,
    )
    if lm_head == "own":
        heads.lm_weight.data += torch.randn(heads.lm_weight.shape)
    return heads


def names(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as stream:
        return set(stream.keys())


@pytest.mark.parametrize("bias", [True, False])
def test_version2_round_trip(tmp_path: Path, bias: bool) -> None:
    heads = fresh(bias=bias)
    save_version2(heads, tmp_path, CONFIG)
    loaded = load_heads(tmp_path, base=made.base_facts())
    assert torch.equal(loaded.heads.all_logits(X), heads.all_logits(X))
    assert (loaded.info.layout, loaded.info.facts["training"], loaded.warnings) == ("medusa-v2", "abc", ())
    parts = [f"{i}.{j}.linear.{p}" for i in range(made.N) for j in range(made.L) for p in ("weight", "bias")]
    assert names(tmp_path / "medusa_lm_head.safetensors") == set(parts)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["version"], config["medusa_num_heads"], config["medusa_num_layers"]) == ("2", made.N, made.L)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_version2_refuses_lm_matrices(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="cannot hold LM matrices"):
        save_version2(fresh(kind), tmp_path, CONFIG)
    assert not list(tmp_path.iterdir())


def test_version2_refuses_a_reduced_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reduced draft vocabulary"):
        save_version2(fresh(token_map=MAP), tmp_path, CONFIG)


@pytest.mark.parametrize("kind", ["own", "shared", "base"])
@pytest.mark.parametrize("token_map", [None, MAP])
@pytest.mark.parametrize("bias", [True, False])
def test_vllm_round_trip(tmp_path: Path, kind: str, token_map, bias: bool) -> None:
    heads = fresh(kind, token_map, bias)
    save_vllm(heads, tmp_path, CONFIG)
    loaded = load_heads(tmp_path, base=made.base_facts())
    assert torch.equal(loaded.heads.all_logits(X), heads.all_logits(X))
    assert torch.equal(loaded.heads.propose(X, 2, 3), heads.propose(X, 2, 3))
    assert loaded.warnings == ()
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["MedusaModel"], "medusa")
    assert (config["num_heads"], config["num_hidden_layers"], config["hidden_size"]) == (made.N, made.L, made.H)
    assert config["truncated_vocab_size"] == (None if token_map is None else 4)
    assert (config["medusa_fc_bias"], config["original_lm_head"]) == (bias, kind != "own")
    stored = {name for name in names(tmp_path / "model.safetensors") if name.startswith("lm_head")}
    assert stored == {f"lm_heads.{i}.weight" for i in range(made.N if kind == "own" else 1)}


def test_vllm_layout_without_the_base_rows(tmp_path: Path) -> None:
    heads = fresh("base", MAP)
    save_vllm(heads, tmp_path, CONFIG, base_rows="omit")
    assert not any(name.startswith("lm_head") for name in names(tmp_path / "model.safetensors"))
    loaded = load_heads(tmp_path, base=made.base_facts())
    assert torch.equal(loaded.heads.all_logits(X), heads.all_logits(X))
    assert loaded.info.lm_head == "base"
    # vLLM would take it for a file whose LM head it need not load, and run with what the memory happened to hold.
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] != "medusa"


def test_second_round_trip_is_byte_identical(tmp_path: Path) -> None:
    save_vllm(fresh("base", MAP), tmp_path / "a", CONFIG)
    loaded = load_heads(tmp_path / "a", base=made.base_facts())
    save_vllm(loaded.heads, tmp_path / "b", CONFIG)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_token_map_needs_the_vocabulary_size(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vocab_size"):
        save_vllm(fresh("base", MAP), tmp_path, {})


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    from mtp_bench.heads import writing

    save_version2(fresh(), tmp_path, CONFIG)
    before = (tmp_path / "medusa_lm_head.safetensors").read_bytes()

    def full(tensors, path, metadata) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(InputError, match="No space left"):
        save_version2(fresh(), tmp_path, CONFIG)
    assert (tmp_path / "medusa_lm_head.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
