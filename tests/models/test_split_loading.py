"""What ``--device-map`` takes and refuses, and where the parts of a model go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, save_tiny_model, tiny_base
from transformers import AutoModelForCausalLM, PreTrainedModel

from mtp_bench.errors import InputError
from mtp_bench.models import split
from mtp_bench.models.base import BaseModel
from mtp_bench.models.load import LoadOptions, load_base_model

WHOLE = {"model.embed_tokens": "cpu", "model.layers": "cpu", "model.norm": "cpu", "lm_head": "cpu"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tiny_base(), tmp_path / "model")


def load(folder: Path, device_map: Any, **options: Any) -> BaseModel:
    if device_map not in (*split.PLANS, "blanced"):
        file = folder / "map.json"
        file.write_text(device_map if isinstance(device_map, str) else json.dumps(device_map))
        device_map = str(file)
    return load_base_model(str(folder), LoadOptions(dtype="fp32", device_map=device_map, **options))


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ({"model": "cpu"}, r"no device for 1 tensors, lm_head.weight among them"),
        ({**WHOLE, "modle.norm": "disk"}, "no module modle.norm"),
        ({**WHOLE, "model.layers.1.mlp": "disk"}, "model.layers.1.mlp is a part of layer 1"),
        ({**WHOLE, "lm_head": "disk"}, "the LM head would be kept on disk"),
        ({**WHOLE, "model.embed_tokens": "disk"}, "the embedding would be kept on disk"),
        ({"": "gpu"}, r"map.json#/: not a device: 'gpu'"),
        ({"": True}, "not a device: True"),
        ({"": [0]}, "not a device"),
        ({**WHOLE, "lm_head": 99}, r"#/lm_head: no device cuda:99"),
        ([], "not an object of modules"),
        ({}, "not an object of modules"),
        ("blanced", "unknown device map 'blanced'"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_map_is_refused(device_map: Any, message: str, folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        load(folder, device_map)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:1"}, r"--device cuda:1 with --device-map"),
        ({"device": "cpu"}, r"--device cpu with --device-map"),
        ({"attention": "flex"}, r"--attention flex with --device-map: .* not been tried"),
        ({"engine": "graph"}, r"--device-map with --engine graph: .* runs eagerly"),
        ({"engine": "packed"}, "--engine packed"),
        ({"engine": "compiled"}, "--engine compiled"),
        ({"engine": "grahp"}, "grahp"),
        ({"dummy": True}, "dummy weights are on no disk"),
    ],
)
def test_bad_company_is_refused(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        load(folder, {"": "cpu", "model.norm": "disk"}, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("plan", split.PLANS)
def test_plans_need_gpus(plan: str, folder: Path) -> None:
    with pytest.raises(InputError, match=f"--device-map {plan}: no CUDA device"):
        load(folder, plan)


def test_without_accelerate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(split, "import_module", missing)
    with pytest.raises(InputError, match="needs the package accelerate"):
        load(folder, WHOLE)


def empty_model(architecture: str, layers: int = 3) -> PreTrainedModel:
    config = tiny_base(architecture).model.config
    config.num_hidden_layers = layers
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(split, "available_bytes", lambda device: free[device.index])


def bytes_of(model: torch.nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "mistral-window"])
@pytest.mark.parametrize(
    ("plan", "used"), [("auto", "012"), ("balanced", "012"), ("balanced_low_0", "12"), ("sequential", "0")]
)
def test_a_plan_covers_the_model_in_order(
    plan: str, used: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three devices, each with room for the whole model."""
    model = empty_model(architecture, 8)
    pretend_gpus(monkeypatch, *[bytes_of(model)] * 3)
    found = split.device_map_of(model, plan)
    devices = [str(split._placed(f"model.layers.{index}", found)) for index in range(8)]
    assert devices == sorted(devices)
    assert set(devices) == {f"cuda:{index}" for index in used}
    assert set(found.values()) <= {"cuda:0", "cuda:1", "cuda:2"}
    if ARCHITECTURES[architecture].get("tie_word_embeddings"):
        assert split._placed("lm_head", found) == split._placed("model.embed_tokens", found)


def test_what_does_not_fit_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = empty_model("llama", 8)
    pretend_gpus(monkeypatch, bytes_of(model) // 4, bytes_of(model) // 4)
    for plan in split.PLANS:
        with pytest.raises(InputError, match=r"GiB of weights do not fit on 2 devices with .* GiB free: no room for"):
            split.device_map_of(model, plan)


def test_weights_beside_gpus_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU beside a GPU they are kept only, as on the disk."""
    model = empty_model("llama")
    layers = {"": "cuda:0", "model.layers.1": "cpu"}
    assert split.device_map_of(model, layers) == {
        "model.embed_tokens": "cuda:0", "model.layers.0": "cuda:0", "model.layers.1": "cpu", "model.layers.2": "cuda:0",
        "model.norm": "cuda:0", "model.rotary_emb": "cuda:0", "lm_head": "cuda:0",
    }  # fmt: skip
    assert split.main_device(layers) == torch.device("cuda:0")
    with pytest.raises(InputError, match="the LM head would be kept on cpu"):
        split.device_map_of(model, {"model": "cuda:0", "lm_head": "cpu"})
    assert split.device_map_of(model, {"": "cpu"}) == {"": "cpu"}


def test_numbers_are_cuda_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    file = tmp_path / "map.json"
    file.write_text('{"model": 1, "lm_head": "cuda", "model.norm": "cuda:1", "model.layers.0": "disk"}')
    found = split.read_device_map(str(file))
    assert found == {"model": "cuda:1", "lm_head": "cuda:0", "model.norm": "cuda:1", "model.layers.0": "disk"}
    assert split.read_device_map("balanced") == "balanced"


def test_one_device_is_not_split(folder: Path) -> None:
    base = load(folder, WHOLE)
    assert base.device_map is None
    assert base.engine == "eager"
    assert base.layer_devices == (torch.device("cpu"),) * 3


def test_dummy_weights_are_made_where_they_belong(folder: Path) -> None:
    base, again = (load(folder, WHOLE, dummy=True) for _ in range(2))
    other = load(folder, WHOLE, dummy=True, seed=1)
    assert base.source == "dummy"
    assert base.tokenizer is None
    weights = [one.model.get_parameter("model.layers.2.mlp.up_proj.weight") for one in (base, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].std() == pytest.approx(0.4, rel=0.1), "the config's initializer_range"
    stock = load_base_model(str(folder), LoadOptions(dtype="fp32", device="cpu", dummy=True))
    for name, buffer in stock.model.named_buffers():
        assert torch.equal(buffer, base.model.get_buffer(name)), name
