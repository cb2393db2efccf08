"""Hydra heads from files made to the authors' layouts, and every wrong file refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_hydra import (
    HEADS,
    LAYERS,
    PREFIX,
    facts_of,
    hydra_tensors,
    load_hydra,
    names_of,
    prefix_model,
    random_hydra,
    write_hydra,
)
from tiny_models import ARCHITECTURES, tiny_base

from mtp_bench.cli import loading
from mtp_bench.errors import InputError
from mtp_bench.heads.detect import detect
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.inspection import describe, inspect_path
from mtp_bench.heads.load import load_heads
from mtp_bench.models.base import BaseModel

KINDS = ["mlp", "prefix-mlp"]
ODD_LLAMA = {
    "model_type": "llama",
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 0.05,
    "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 70.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_tells_the_kind(kind: str, tmp_path: Path) -> None:
    tensors = hydra_tensors(tiny_base(), kind)
    folder = write_hydra(tmp_path, tensors, kind)
    assert detect(folder).kind == "hydra_heads"
    inspection = inspect_path(folder)
    text = describe(inspection)
    assert f"kind: {kind}" in text
    assert "reads the hidden state of: the last, after the final norm" in text
    assert ("prefix layer: queries 32, keys 16, mlp 48 wide" in text) == (kind == "prefix-mlp")
    heads = inspection.heads
    assert heads is not None
    assert (heads.num_heads, heads.num_layers) == (HEADS, LAYERS)
    unused = ("input_embed_fn", "embed_tokens", "inv_freq")
    used = sum(one.numel() for name, one in tensors.items() if not name.split(".weight")[0].endswith(unused))
    assert heads.parameters == used
    assert heads.bytes == 4 * used


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_lands_in_its_place(kind: str, tmp_path: Path) -> None:
    base = tiny_base()
    tensors = hydra_tensors(base, kind)
    heads = load_hydra(write_hydra(tmp_path, tensors, kind), base)
    places, lm = names_of(kind)
    for i in range(HEADS):
        for j, place in enumerate(places):
            block = heads.get_submodule(f"blocks.{i}.{j}")
            assert torch.equal(block.weight, tensors[f"hydra_mlp.{i}.{place}.linear.weight"])  # type: ignore[arg-type]
        rows = heads.get_submodule(f"lm_heads.{i}")
        assert torch.equal(rows.weight, tensors[f"hydra_lm_head.{i}{lm}.weight"])  # type: ignore[arg-type]
    assert (heads.prefix is not None) == (kind == "prefix-mlp")


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
def test_the_prefix_layer_is_one_layer_of_transformers_llama(
    odd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the base model's own head counts, RoPE and norms."""
    monkeypatch.setitem(ARCHITECTURES, "llama-odd", ODD_LLAMA)
    base = tiny_base("llama-odd" if odd else "llama")
    tensors = hydra_tensors(base, "prefix-mlp")
    heads = load_hydra(write_hydra(tmp_path, tensors, "prefix-mlp"), base)
    hidden = torch.randn(2, 40, base.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = prefix_model(base, tensors)(inputs_embeds=hidden).last_hidden_state
        torch.testing.assert_close(heads.states(hidden), expected, atol=1e-5, rtol=1e-5)


def test_the_command_line_hands_the_base_models_config_over(tmp_path: Path) -> None:
    base = tiny_base()
    folder = write_hydra(tmp_path, hydra_tensors(base, "prefix-mlp"), "prefix-mlp")
    heads, info = loading.load_heads(str(folder), base)
    assert isinstance(heads, HydraHeads)
    assert heads.prefix is not None
    assert info.facts["kind"] == "prefix-mlp"


def test_what_the_authors_files_hold_beside_is_not_needed(tmp_path: Path) -> None:
    base = tiny_base()
    tensors = hydra_tensors(base, "prefix-mlp")
    for name in ("input_embed_fn.weight", PREFIX + "embed_tokens.weight"):
        del tensors[name]
    load_hydra(write_hydra(tmp_path, tensors, "prefix-mlp"), base)


def test_the_hidden_state_that_is_read(tmp_path: Path) -> None:
    base = tiny_base()
    assert random_hydra(base, tmp_path / "0", hidden_state_offset=0).aux_layers == ()
    assert random_hydra(base, tmp_path / "1", hidden_state_offset=1).aux_layers == (2,)
    assert random_hydra(base, tmp_path / "3", "mlp", hidden_state_offset=3).aux_layers == (0,)
    assert "1 layers before the last" in describe(inspect_path(tmp_path / "1"))
    with pytest.raises(InputError, match="4 layers before the last, llama has 3 layers"):
        random_hydra(base, tmp_path / "4", hidden_state_offset=4)
    with pytest.raises(InputError, match="hidden_state_offset is -1"):
        random_hydra(base, tmp_path / "-1", hidden_state_offset=-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing tensors: hydra_mlp.1.0.res_connection.weight"),
        ("shape", r"hydra_mlp.2.0.linear.weight has shape \[32, 96\], \[32, 128\] expected"),
        ("surplus", "do not belong to Hydra heads: extra.weight"),
        ("declared", "config.json says prefix-mlp, the tensors are those of mlp"),
        ("ungrounded", "ungrounded Hydra heads"),
        ("vocabulary", "heads have 25 vocabulary rows, the base model llama has 24"),
    ],
)
def test_wrong_files_are_refused(change: str, message: str, tmp_path: Path) -> None:
    base = tiny_base()
    tensors, kind = hydra_tensors(base), "mlp"
    if change == "missing":
        del tensors["hydra_mlp.1.0.res_connection.weight"]
    elif change == "shape":
        tensors["hydra_mlp.2.0.linear.weight"] = torch.zeros(32, 96)
    elif change == "surplus":
        tensors["extra.weight"] = torch.zeros(2)
    elif change == "declared":
        kind = "prefix-mlp"
    elif change == "ungrounded":
        for i in range(HEADS):
            tensors[f"hydra_mlp.{i}.0.linear.weight"] = torch.zeros(32, 32)
            del tensors[f"hydra_mlp.{i}.0.res_connection.weight"], tensors[f"hydra_mlp.{i}.0.res_connection.bias"]
    else:
        for i in range(HEADS):
            tensors[f"hydra_lm_head.{i}.weight"] = torch.zeros(25, 32)
            tensors[f"hydra_lm_head.{i}.bias"] = torch.zeros(25)
    with pytest.raises(InputError, match=message):
        load_hydra(write_hydra(tmp_path, tensors, kind), base)


LAYER = PREFIX + "layers.0."


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        ({}, LAYER + "mlp.up_proj.weight", f"missing tensors: {LAYER}mlp.up_proj.weight"),
        ({}, PREFIX + "norm.weight", f"missing tensors: {PREFIX}norm.weight"),
        ({}, LAYER + "self_attn.q_proj.weight", f"missing tensors: {LAYER}self_attn.q_proj.weight"),
        ({LAYER + "self_attn.q_proj.bias": (32,)}, None, "do not belong .*q_proj.bias"),
        ({PREFIX + "layers.1.mlp.up_proj.weight": (48, 32)}, None, "do not belong .*layers.1.mlp.up_proj.weight"),
        ({"hydra_mlp.0.2.linear.weight": (32, 32)}, None, "do not belong .*hydra_mlp.0.2.linear.weight"),
        ({PREFIX + "norm.weight": (31,)}, None, r"norm.weight has shape \[31\], \[32\] expected"),
        (
            {LAYER + "self_attn.k_proj.weight": (32, 32), LAYER + "self_attn.v_proj.weight": (32, 32)},
            None,
            r"k_proj.weight has shape \[32, 32\], \[16, 32\] expected of a layer like those of llama",
        ),
    ],
)
def test_wrong_prefix_layers_are_refused(
    added: dict[str, tuple[int, ...]], removed: str | None, message: str, tmp_path: Path
) -> None:
    base = tiny_base()
    tensors = hydra_tensors(base, "prefix-mlp") | {name: torch.zeros(shape) for name, shape in added.items()}
    if removed is not None:
        del tensors[removed]
    with pytest.raises(InputError, match=message):
        load_hydra(write_hydra(tmp_path, tensors, "prefix-mlp"), base)


def test_indices_without_dropout_do_not_fit_a_prefix_layer(tmp_path: Path) -> None:
    base = tiny_base()
    prefix = {name: one for name, one in hydra_tensors(base, "prefix-mlp").items() if name.startswith(PREFIX)}
    with pytest.raises(InputError, match=r"missing tensors: hydra_lm_head\.0\.1\.weight"):
        load_hydra(write_hydra(tmp_path / "unshifted", hydra_tensors(base) | prefix, "prefix-mlp"), base)
    with pytest.raises(InputError, match="says mlp, the tensors are those of prefix-mlp"):
        load_hydra(write_hydra(tmp_path / "declared", hydra_tensors(base, "prefix-mlp"), "mlp"), base)


@pytest.mark.parametrize("kind", ["cross-attn", "eagle-attn", "something"])
def test_other_kinds_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    tensors = {"fc.weight": torch.zeros(32, 64), "attn.self_attn.q_proj.weight": torch.zeros(32, 32)}
    with pytest.raises(InputError, match=f"Hydra heads of the kind {kind} are not supported"):
        inspect_path(write_hydra(tmp_path, tensors, kind))


@pytest.mark.parametrize(
    ("architecture", "reason"), [("gemma3", "activation gelu_pytorch_tanh"), ("llama", "no num_attention_heads")]
)
def test_a_prefix_layer_needs_a_llama(architecture: str, reason: str, tmp_path: Path) -> None:
    folder = write_hydra(tmp_path, hydra_tensors(tiny_base(), "prefix-mlp"), "prefix-mlp")
    base: BaseModel = tiny_base(architecture)
    facts = facts_of(base) if architecture != "llama" else replace(facts_of(base), config={})
    with pytest.raises(InputError, match=f"is no LLaMA: {reason}"):
        load_heads(folder, base=facts)
