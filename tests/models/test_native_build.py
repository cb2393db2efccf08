"""Compiling the kernels: once, whole or not at all, and what is said where it cannot be done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mtp_bench.errors import InputError
from mtp_bench.models import engines
from mtp_bench.models.engines import pick_engine
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.native import library
from mtp_bench.profile.environment import machine_key, model_facts

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(library.compiler() is None, reason="no C++ compiler")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of compiled kernels."""
    monkeypatch.setattr(library, "cache_folder", lambda: tmp_path)
    library.library.cache_clear()
    yield tmp_path / "native"
    library.library.cache_clear()


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    program = folder / "c++"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))


def test_compiled_once_and_kept(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.library()
    [built] = fresh.iterdir()
    library.library.cache_clear()
    real = library.compiler()
    fake_compiler(tmp_path, monkeypatch, f'case "$*" in *-E*) exec {real} "$@";; esac; echo compiled again >&2; exit 1')
    library.library()
    assert [*fresh.iterdir()] == [built]


def test_two_at_once(tmp_path: Path) -> None:
    code = "from mtp_bench.models.native.library import library; print(library().mtp_lanes())"
    environment = {"MTP_BENCH_CACHE": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert {one.communicate()[0].strip() for one in both} == {str(library.library().mtp_lanes())}
    assert len([*(tmp_path / "native").iterdir()]) == 1


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    for module in (library, engines):
        monkeypatch.setattr(module, "compiler", lambda: None)
    assert pick_engine("auto", CPU, torch.float32) != "native"
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler"):
        load_base_model("smollm2-135m", LoadOptions(dummy=True, engine="native"))
    assert not fresh.exists()


def test_a_compiler_that_fails(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_compiler(tmp_path, monkeypatch, "echo no such flag >&2; exit 1")
    with pytest.raises(InputError, match=r"(?s)cannot be compiled.*no such flag.*--engine packed"):
        load_base_model("smollm2-135m", LoadOptions(dummy=True, engine="native"))
    assert load_base_model("smollm2-135m", LoadOptions(dummy=True)).engine != "native"
    assert "cannot be compiled" in capsys.readouterr().err, "what auto does without is said"
    assert not fresh.exists() or not [*fresh.iterdir()]


def test_other_kinds_of_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="no kernels for float16"):
        pick_engine("native", CPU, torch.float16)
    with pytest.raises(InputError, match="no kernels for bfloat16 on cuda"):
        pick_engine("native", torch.device("cuda"), torch.bfloat16)


def test_facts_name_what_was_compiled() -> None:
    facts = library.facts()
    assert facts["lanes"] == library.library().mtp_lanes()
    assert "." in facts["compiler"]
    assert facts["library"].endswith(".so")
    base = load_base_model("smollm2-135m", LoadOptions(dummy=True, engine="native"))
    assert model_facts(base)["kernels"] == facts
    assert facts["library"] in machine_key(base), "costs of other kernels are those of another machine"
    assert facts["library"] not in machine_key(replace(base, engine="packed"))
