"""Every published layout loads to the same function; everything that is wrong is named."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import checkpoints as made
import pytest
import torch

from mtp_bench.errors import InputError
from mtp_bench.heads.detect import detect, require_base_model
from mtp_bench.heads.load import load_heads

X = torch.randn(5, made.H, generator=torch.Generator().manual_seed(3))


def check_logits(heads, lm=None) -> None:
    assert heads.num_heads == made.N
    assert heads.num_layers == made.L
    for i in range(made.N):
        expected = made.oracle_logits(X, i, lm=lm)
        torch.testing.assert_close(heads.logits(X, i), expected, rtol=1e-4, atol=1e-3)


def test_v01(tmp_path: Path) -> None:
    folder = made.write_pt(tmp_path, made.v01(), made.v01_config())
    loaded = load_heads(folder, base=made.base_facts())
    check_logits(loaded.heads)
    assert (loaded.info.layout, loaded.info.lm_head, loaded.warnings) == ("medusa-v0.1", "own", ())
    assert loaded.info.base_model == made.NAME
    assert loaded.info.parameters == loaded.heads.num_parameters
    assert not any(parameter.requires_grad for parameter in loaded.heads.parameters())


def test_v01_with_tied_blocks_and_old_zipless_file(tmp_path: Path) -> None:
    """The reference repeats one module L times, so that the entries of all blocks share storage."""
    tensors = made.v01()
    for i in range(made.N):
        for part in ("weight", "bias"):
            tensors[f"{i}.1.linear.{part}"] = tensors[f"{i}.0.linear.{part}"]
    torch.save(tensors, tmp_path / "medusa_lm_head.pt", _use_new_zipfile_serialization=False)
    loaded = load_heads(tmp_path, base=made.base_facts())
    torch.testing.assert_close(loaded.heads.logits(X, 1), made.oracle_logits(X, 1, tensors), rtol=1e-4, atol=1e-3)


def test_version2(tmp_path: Path) -> None:
    config = made.v01_config() | {"version": "2"}
    folder = made.write_safetensors(tmp_path, made.blocks(), config, "medusa_lm_head.safetensors")
    loaded = load_heads(folder, base=made.base_facts())
    check_logits(loaded.heads, lm=made.base_lm_head())
    assert (loaded.info.layout, loaded.info.lm_head, loaded.info.draft_vocab_size) == ("medusa-v2", "base", made.V)


@pytest.mark.parametrize("form", ["safetensors", "bin", "sharded safetensors", "sharded bin"])
def test_whole_model(tmp_path: Path, form: str) -> None:
    tensors = made.whole_model_tensors()
    config = {"model_type": "llama", "hidden_size": made.H, "num_attention_heads": 2, "num_hidden_layers": 1}
    made.write_config(tmp_path, config | {"medusa_num_heads": made.N, "medusa_num_layers": made.L})
    write, suffix, stem = {
        "safetensors": (made.write_safetensors, ".safetensors", "model"),
        "bin": (made.write_pt, ".bin", "pytorch_model"),
    }[form.split()[-1]]
    if form.startswith("sharded"):
        base = {k: v for k, v in tensors.items() if not k.startswith("medusa_head")}
        heads = {k: v for k, v in tensors.items() if k.startswith("medusa_head")}
        (tmp_path / f"{stem}-00001-of-00002{suffix}").write_bytes(b"the base model's shard must not be opened")
        write(tmp_path, heads, name=f"{stem}-00002-of-00002{suffix}")
        files = dict.fromkeys(base, f"{stem}-00001-of-00002{suffix}")
        files |= dict.fromkeys(heads, f"{stem}-00002-of-00002{suffix}")
        (tmp_path / f"{stem}{suffix}.index.json").write_text(json.dumps({"weight_map": files}))
    else:
        write(tmp_path, tensors, name=stem + suffix)
    assert detect(tmp_path).kind == "medusa_whole_model"
    require_base_model(tmp_path)
    loaded = load_heads(tmp_path, base=made.base_facts(name=str(tmp_path)))
    check_logits(loaded.heads)
    assert loaded.warnings == ()
    other = load_heads(tmp_path, base=made.base_facts(name="lmsys/vicuna-7b-v1.3"))
    assert other.warnings[0].startswith("W-BASE")


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_vllm(tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in made.vllm().items()}
    loaded = load_heads(made.write_safetensors(tmp_path, tensors, made.vllm_config()), base=made.base_facts())
    check_logits(loaded.heads)
    assert (loaded.info.layout, loaded.info.bias, loaded.warnings) == ("vllm", True, ())


def test_vllm_without_bias_is_another_function(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in made.vllm().items() if not name.endswith("bias")}
    loaded = load_heads(made.write_safetensors(tmp_path, tensors, made.vllm_config()), base=made.base_facts())
    zero_bias = {k: torch.zeros_like(v) if k.endswith("bias") else v for k, v in made.v01().items()}
    expected = made.oracle_logits(X, 2, zero_bias)
    torch.testing.assert_close(loaded.heads.logits(X, 2), expected, rtol=1e-4, atol=1e-3)
    assert not loaded.info.bias


@pytest.mark.parametrize("key", ["lm_heads.0.weight", "lm_head.weight"])
def test_vllm_original_lm_head_is_shared(tmp_path: Path, key: str) -> None:
    tensors = {name: t for name, t in made.vllm().items() if name.startswith("blocks")}
    tensors[key] = made.base_lm_head()
    made.write_safetensors(tmp_path, tensors, made.vllm_config(original_lm_head=True))
    loaded = load_heads(tmp_path, base=made.base_facts())
    assert loaded.info.lm_head == "shared"
    check_logits(loaded.heads, lm=made.base_lm_head())


@pytest.mark.parametrize("reduced", [True, False])
def test_vllm_token_map(tmp_path: Path, reduced: bool) -> None:
    """LM matrices come reduced, or whole and to be gathered by the map."""
    token_map = torch.tensor([3, 17, 0, 8])
    tensors = made.vllm() | {"token_map": token_map}
    if reduced:
        tensors |= {k: t[token_map].contiguous() for k, t in made.vllm().items() if k.startswith("lm_heads")}
    made.write_safetensors(tmp_path, tensors, made.vllm_config(truncated_vocab_size=4))
    loaded = load_heads(tmp_path, base=made.base_facts())
    best = made.oracle_logits(X, 1)[:, token_map].topk(2, dim=-1).indices
    assert torch.equal(loaded.heads.propose(X, 2, 2)[:, 1], token_map[best])
    assert loaded.info.draft_vocab_size == 4


@pytest.mark.parametrize("style", ["plain", "modules"])
def test_modelopt(tmp_path: Path, style: str) -> None:
    tensors = {}
    for name, tensor in made.v01().items():
        i, j, *rest = name.split(".")
        named = f"{i}.medusa_layers.{j}.linear.{rest[-1]}" if rest[0] == "linear" else f"{i}.lm_head.weight"
        tensors["medusa_heads." + (name if style == "plain" else named)] = tensor
    config = {"medusa": {"num_medusa_heads": 2, "num_medusa_layers": made.L}}
    loaded = load_heads(made.write_safetensors(tmp_path, tensors, config), base=made.base_facts())
    check_logits(loaded.heads)
    assert loaded.info.layout == "modelopt"
    assert "says 2 for heads, the file stores 3" in loaded.warnings[0]


def test_layouts_of_the_same_heads_have_one_hash(tmp_path: Path) -> None:
    base = made.base_facts()
    first = load_heads(made.write_pt(tmp_path / "a", made.v01()), base=base)
    second = load_heads(made.write_safetensors(tmp_path / "b", made.vllm()), base=base)
    changed = made.v01()
    changed["0.0.linear.bias"][0] += 1
    third = load_heads(made.write_pt(tmp_path / "c", changed), base=base)
    assert first.info.hash == second.info.hash != third.info.hash


def test_dtype_is_cast_and_recorded(tmp_path: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in made.v01().items()}
    loaded = load_heads(made.write_pt(tmp_path, tensors), base=made.base_facts(), dtype=torch.float16)
    assert loaded.heads.block_weight.dtype == torch.float16
    assert loaded.info.dtype == "bfloat16"
    assert loaded.info.bytes == 2 * loaded.info.parameters


def test_config_that_says_2_beside_5_stored_heads(tmp_path: Path) -> None:
    """The published Vicuna heads are like this."""
    loaded = load_heads(made.write_pt(tmp_path, made.v01(5), made.v01_config(2)), base=made.base_facts())
    assert loaded.heads.num_heads == 5
    expected = "W-CONFIG: config.json says 2 for heads, the file stores 5; the file is believed"
    assert loaded.info.warnings == (expected,)


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("org/vicuna-7b-v1.5", True),
        ("vicuna-13b", True),
        ("vicuna-7b", False),
        ("lmsys/vicuna-7b-v1.3", False),
        ("/models/vicuna-7b-v1.3/", False),
    ],
)
def test_heads_of_another_base_model(tmp_path: Path, name: str, warned: bool) -> None:
    folder = made.write_pt(tmp_path, made.v01(), made.v01_config())
    loaded = load_heads(folder, base=made.base_facts(name=name))
    assert [w.startswith("W-BASE") and made.NAME in w and name in w for w in loaded.info.warnings] == [True] * warned


def test_recorded_base_hash_decides(tmp_path: Path) -> None:
    config = made.v01_config() | {"mtp_bench": {"base_model_hash": "abc"}}
    folder = made.write_pt(tmp_path, made.v01(), config)
    renamed = made.base_facts(name="my-copy", weights_hash="abc")
    assert load_heads(folder, base=renamed).warnings == ()
    changed = load_heads(folder, base=made.base_facts(weights_hash="def")).warnings
    assert changed[0].startswith("W-BASE")


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1.0.linear.weight", "1.1.linear.bias", f"2.{made.L}.weight"])
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = made.v01()
    del tensors[name]
    with pytest.raises(InputError, match=f"missing tensors: {name}"):
        load_heads(made.write_pt(tmp_path, tensors, made.v01_config()), base=made.base_facts())


@pytest.mark.parametrize("name", ["blocks.0.layers.1.weight", "lm_heads.1.weight"])
def test_missing_vllm_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = made.vllm()
    del tensors[name]
    with pytest.raises(InputError, match=f"missing tensors: {name}"):
        load_heads(made.write_safetensors(tmp_path, tensors, made.vllm_config()), base=made.base_facts())


def test_vllm_without_any_lm_head(tmp_path: Path) -> None:
    tensors = {name: t for name, t in made.vllm().items() if name.startswith("blocks")}
    with pytest.raises(InputError, match=r"missing tensors: lm_heads\.0\.weight"):
        load_heads(made.write_safetensors(tmp_path, tensors, made.vllm_config()), base=made.base_facts())


@pytest.mark.parametrize("name", ["extra", "0.0.norm.weight", "lm_head.weight"])
def test_surplus_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = made.v01() | {name: torch.zeros(2)}
    with pytest.raises(InputError, match=f"do not belong to medusa-v0.1 heads: {name}"):
        load_heads(made.write_pt(tmp_path, tensors), base=made.base_facts())


def test_lm_matrix_at_two_places(tmp_path: Path) -> None:
    tensors = made.v01() | {"0.1.weight": torch.zeros(made.V, made.H)}
    with pytest.raises(InputError, match=r"in the place of a block: 0\.1\.weight"):
        load_heads(made.write_pt(tmp_path, tensors), base=made.base_facts())


def test_sizes_against_the_base_model(tmp_path: Path) -> None:
    folder = made.write_pt(tmp_path, made.v01(), made.v01_config())
    with pytest.raises(InputError, match=r"hidden size 8, the base model .* has 16"):
        load_heads(folder, base=made.base_facts(hidden=16))
    with pytest.raises(InputError, match=r"20 vocabulary rows, the base model .* has 25"):
        load_heads(folder, base=made.base_facts(vocab=25))


def test_tensor_of_the_wrong_shape(tmp_path: Path) -> None:
    tensors = made.v01() | {"1.1.linear.weight": torch.zeros(made.H, made.H + 1)}
    with pytest.raises(InputError, match=r"1\.1\.linear\.weight has shape \[8, 9\], \[8, 8\] expected"):
        load_heads(made.write_pt(tmp_path, tensors), base=made.base_facts())


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = {name: tensor.to(torch.int8) for name, tensor in made.v01().items()}
    with pytest.raises(InputError, match="quantised heads are not supported"):
        load_heads(made.write_pt(tmp_path, tensors), base=made.base_facts())


@pytest.mark.parametrize(
    ("token_map", "message"),
    [
        ([0, 1, 20], "from 0 to 20, the base model's go from 0 to 19"),
        ([-1, 1, 2], "from -1 to 2"),
        ([1, 2, 1], "twice"),
        ([0.0, 1.0, 2.0], "must hold at least one integer"),
    ],
)
def test_token_map_is_checked(tmp_path: Path, token_map, message: str) -> None:
    tensors = made.vllm() | {"token_map": torch.tensor(token_map)}
    with pytest.raises(InputError, match=message):
        load_heads(made.write_safetensors(tmp_path, tensors, made.vllm_config()), base=made.base_facts())


class Trap:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize("form", ["torch", "pickle", "legacy"])
@pytest.mark.parametrize("call", ["load", "detect"])
def test_pickle_with_an_object_is_refused_and_not_executed(tmp_path: Path, form: str, call: str) -> None:
    marker, folder = tmp_path / "executed", tmp_path / "heads"
    content = made.v01() | {"0.0.linear.weight": Trap(marker)}
    if form == "pickle":
        folder.mkdir()
        (folder / "medusa_lm_head.pt").write_bytes(pickle.dumps(content, protocol=2))
    else:
        folder.mkdir()
        torch.save(content, folder / "medusa_lm_head.pt", _use_new_zipfile_serialization=form == "torch")
    with pytest.raises(InputError, match=r"refused: .*nothing in it was executed"):
        load_heads(folder, base=made.base_facts()) if call == "load" else detect(folder)
    assert not marker.exists()
    torch.load(folder / "medusa_lm_head.pt", weights_only=False) if form != "pickle" else pickle.loads(
        (folder / "medusa_lm_head.pt").read_bytes()
    )
    assert marker.exists(), "the trap must be able to spring"


def test_pickle_of_plain_values(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not tensors: step \(int\)"):
        load_heads(made.write_pt(tmp_path, made.v01() | {"step": 3}), base=made.base_facts())
    with pytest.raises(InputError, match="holds a list, not a state dict"):
        load_heads(made.write_pt(tmp_path, list(made.v01().values())), base=made.base_facts())


@pytest.mark.parametrize("name", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_damaged_file(tmp_path: Path, name: str, damage: str) -> None:
    write = made.write_safetensors if name.endswith("safetensors") else made.write_pt
    write(tmp_path, made.v01(), name=name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "noise": b"\xff" * 64}[damage])
    with pytest.raises(InputError, match=r"not a readable|refused") as caught:
        load_heads(tmp_path, base=made.base_facts())
    assert name in str(caught.value)


def test_newer_format_of_ours(tmp_path: Path) -> None:
    config = made.v01_config() | {"mtp_bench": {"schema_version": "2.0"}}
    with pytest.raises(InputError, match=r"heads format 2\.0"):
        load_heads(made.write_pt(tmp_path, made.v01(), config), base=made.base_facts())


def test_shard_that_the_index_promises_is_missing(tmp_path: Path) -> None:
    files = dict.fromkeys(made.whole_model_tensors(), "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(InputError, match=r"model-00001-of-00001\.safetensors: this weight file is missing"):
        load_heads(tmp_path, base=made.base_facts())
    files = dict.fromkeys(files, "../elsewhere.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(InputError, match="outside its folder"):
        detect(tmp_path)


def base_model(folder: Path) -> Path:
    tensors = {k: v for k, v in made.whole_model_tensors().items() if not k.startswith("medusa")}
    return made.write_safetensors(folder, tensors, {"model_type": "llama"})


def test_base_model_given_as_heads(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is a base model; heads needed"):
        load_heads(base_model(tmp_path / "a"), base=made.base_facts())
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(InputError, match="this is a base model; heads needed"):
        load_heads(tmp_path / "model.gguf", base=made.base_facts())


def test_heads_given_as_model(tmp_path: Path) -> None:
    folder = made.write_pt(tmp_path, made.v01(), made.v01_config())
    with pytest.raises(InputError, match=r"this is Medusa heads, not a base model[^>]*-> give --model lmsys"):
        require_base_model(folder)
    assert require_base_model(base_model(tmp_path / "base")).kind == "base_model"


def test_other_kinds(tmp_path: Path) -> None:
    eagle = made.write_safetensors(tmp_path / "eagle", {"fc.weight": torch.zeros(8, 16)}, {"model_type": "llama"})
    assert detect(eagle).kind == "eagle_heads"
    with pytest.raises(InputError, match="missing tensors: layer"):
        load_heads(eagle, base=made.base_facts())
    (tmp_path / "none").mkdir()
    assert detect(tmp_path / "none").kind == "unknown"
    assert detect(made.write_config(tmp_path / "none", {"model_type": "llama"})).kind == "base_model"
    with pytest.raises(InputError, match="no such file or folder"):
        detect(tmp_path / "absent")
    with pytest.raises(InputError, match="no Medusa heads here"):
        load_heads(made.write_safetensors(tmp_path / "x", {"x": torch.zeros(1)}), base=made.base_facts())
