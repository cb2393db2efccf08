"""`inspect` on every kind of folder, from headers."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoints as made
import pytest
import torch
import typer
from safetensors import safe_open
from typer.testing import CliRunner

from mtp_bench.cli.inspect import inspect
from mtp_bench.errors import InputError
from mtp_bench.heads.inspection import describe, inspect_path
from mtp_bench.heads.shipped import default_heads_for, shipped_heads, shipped_names


def run(*arguments: str):
    app = typer.Typer()
    app.command()(inspect)
    return CliRunner().invoke(app, list(arguments))


def test_heads(tmp_path: Path) -> None:
    made.write_pt(tmp_path, made.v01(5), made.v01_config(2))
    info = inspect_path(tmp_path).heads
    assert (info.num_heads, info.num_layers, info.draft_vocab_size, info.dtype) == (5, made.L, made.V, "float32")
    assert info.parameters == 5 * (made.L * (made.H**2 + made.H) + made.V * made.H)
    assert info.bytes == 4 * info.parameters
    text = describe(inspect_path(tmp_path))
    for part in ("Medusa heads", "medusa-v0.1", "heads: 5", "one per head", f"{info.bytes:,}", made.NAME, "says 2"):
        assert part in text


def test_safetensors_heads_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtp_bench.heads import tensors

    class HeaderOnly:
        """The header's half of `safe_open`; reading a tensor is an AttributeError."""

        def __init__(self, path: Path, framework: str) -> None:
            self.stream = safe_open(path, framework=framework)

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            return None

        def keys(self):
            return self.stream.keys()

        def get_slice(self, name: str):
            return self.stream.get_slice(name)

    made.write_safetensors(tmp_path, made.vllm() | {"token_map": torch.arange(made.V)}, made.vllm_config())
    monkeypatch.setattr(tensors, "safe_open", HeaderOnly)
    info = inspect_path(tmp_path).heads
    assert (info.layout, info.draft_vocab_size, info.base_model) == ("vllm", made.V, None)
    assert info.bytes == 4 * info.parameters + 8 * made.V


def test_whole_model_and_base_model(tmp_path: Path) -> None:
    tensors = made.whole_model_tensors()
    made.write_safetensors(tmp_path / "whole", tensors, {"model_type": "llama", "hidden_size": made.H})
    whole = inspect_path(tmp_path / "whole")
    assert whole.heads.num_heads == made.N
    assert whole.model["parameters"] == sum(t.numel() for t in tensors.values())
    base = {k: v for k, v in tensors.items() if not k.startswith("medusa")}
    made.write_safetensors(tmp_path / "base", base, {"model_type": "llama"})
    found = inspect_path(tmp_path / "base")
    assert (found.kind, found.heads) == ("base_model", None)
    assert "a base model" in describe(found)


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (272).to_bytes(8, "little") + bytes(8))
    assert inspect_path(path).model["tensors"] == 272
    assert inspect_path(tmp_path).kind == "gguf"
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(16))
    with pytest.raises(InputError, match="GGUF version 9"):
        inspect_path(path)
    path.write_bytes(b"GGUF\x03")
    with pytest.raises(InputError, match="ends inside its header"):
        inspect_path(path)


def test_command(tmp_path: Path) -> None:
    made.write_pt(tmp_path, made.v01(5), made.v01_config(2))
    assert "heads: 5" in run(str(tmp_path)).stdout
    result = run(str(tmp_path), "--json")
    document = json.loads(result.stdout.splitlines()[-1])
    assert (document["kind"], document["heads"]["num_heads"]) == ("medusa_heads", 5)
    assert "W-CONFIG" in result.stderr
    assert "lmsys/vicuna-7b-v1.3" in run("--aliases").stdout
    assert isinstance(run().exception, InputError)


def test_incomplete_heads_are_an_error(tmp_path: Path) -> None:
    tensors = made.v01()
    del tensors["0.0.linear.weight"]
    made.write_pt(tmp_path, tensors)
    assert isinstance(run(str(tmp_path)).exception, InputError)


def test_shipped() -> None:
    assert shipped_heads("no-such-heads") is None
    assert default_heads_for("no-such-model") is None
    for name in shipped_names():
        found = inspect_path(shipped_heads(name))
        assert found.kind == ("medusa_heads" if name.endswith("medusa") else "eagle_heads")
        assert found.heads.warnings == ()


def test_an_alias_is_told_from_its_table_and_a_folder_of_that_name_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run("Vicuna-7B").stdout
    assert "lmsys/vicuna-7b-v1.3" in text
    assert "hidden_size: 4096" in text
    facts = json.loads(run("vicuna-7b", "--json").stdout)
    assert (facts["hub_id"], facts["config"]["num_hidden_layers"]) == ("lmsys/vicuna-7b-v1.3", 32)
    made.write_pt(tmp_path / "vicuna-7b", made.v01(5), made.v01_config(2))
    assert "Medusa heads" in run("vicuna-7b").stdout
