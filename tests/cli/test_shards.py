"""Shards from torchrun's and srun's environment: the same parts, devices of their own, and an exact merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import one_thread, random_heads, save_tiny_model, tiny_base

from mtp_bench.cli import run
from mtp_bench.cli.shards import LAUNCHERS, Shard, choose_shard
from mtp_bench.errors import InputError
from mtp_bench.heads.medusa.writers import save_vllm
from mtp_bench.models.load import pick_device
from mtp_bench.runs import RunFolder

__all__ = ["one_thread"]

TORCHRUN, SRUN = LAUNCHERS


def variables(names: tuple[str, ...], *values: int) -> dict[str, str]:
    return dict(zip(names, map(str, values), strict=False))


@pytest.mark.parametrize("names", LAUNCHERS)
@pytest.mark.parametrize("asked", [None, "auto"])
def test_the_launcher_says_which_part(names: tuple[str, ...], asked: str | None) -> None:
    assert choose_shard(asked, variables(names, 9, 16, 1)) == Shard(9, 16, 1)
    assert choose_shard(asked, variables(names, 0, 1, 0)) == Shard(), "one process is the whole"


def test_what_is_asked_for_goes_before_the_launcher() -> None:
    assert choose_shard("1/3", variables(TORCHRUN, 9, 16, 1)) == Shard(1, 3)
    assert choose_shard("0/1", variables(SRUN, 9, 16, 1)) == Shard()


def test_torchrun_goes_before_the_srun_that_started_it() -> None:
    assert choose_shard(None, variables(TORCHRUN, 3, 8, 3) | variables(SRUN, 0, 2, 0)) == Shard(3, 8, 3)


def test_without_a_launcher() -> None:
    assert choose_shard(None, {}) == choose_shard(None, {"RANK": "3"}) == Shard()
    with pytest.raises(InputError, match="neither torchrun nor srun"):
        choose_shard("auto", {"HOME": "/"})


@pytest.mark.parametrize("values", [(4, 4, 0), (-1, 4, 0)])
def test_broken_variables_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="RANK="):
        choose_shard(None, variables(TORCHRUN, *values))


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "1/", "-1/2", "automatic"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(InputError, match="not a shard"):
        choose_shard(text, {})


@pytest.mark.parametrize(
    ("shard", "wanted", "devices", "expected"),
    [
        (Shard(9, 16, 1), "auto", 8, "cuda:1"),
        (Shard(9, 16, 1), "cuda:5", 8, "cuda:5"),
        (Shard(9, 16, 1), "cpu", 8, "cpu"),
        (Shard(9, 16, 7), "auto", 1, "cuda:0"),  # srun --gpus-per-task=1 shows each its own
        (Shard(9, 16, 1), "auto", 0, "auto"),
        (Shard(1, 3), "auto", 8, "auto"),
    ],
)
def test_devices(shard: Shard, wanted: str, devices: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert shard.device(wanted) == expected


def test_a_named_device_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured on the current device, whatever the tensors'."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    pick_device("auto")
    pick_device("cpu")
    assert current == [torch.device("cuda:1")]
    with pytest.raises(InputError, match="no device cuda:2, only 2"):
        pick_device("cuda:2")


def test_folders() -> None:
    out = Path("results/all")
    assert Shard(1, 4, 1).folder(out) == Path("results/all-shard1of4")
    assert Shard(1, 4).folder(out) == Shard().folder(out) == out


@pytest.mark.parametrize("names", LAUNCHERS, ids=["torchrun", "srun"])
def test_launched_profiles_merge_to_the_unsharded_one(
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    any_spread_will_do: None,
) -> None:
    base = tiny_base()
    save_tiny_model(base, tmp_path / "model")
    about = {"base_model_name_or_path": "model", "vocab_size": base.vocab_size}
    save_vllm(random_heads(base), tmp_path / "heads", about)
    prompts = [{"turns": [f"w{i} w{2 * i} w7 w3"], "category": "xy"[i % 2], "question_id": i} for i in range(5)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    command = [
        "profile", "--model", str(tmp_path / "model"), "--heads", str(tmp_path / "heads"), "--dtype", "fp32",
        "--device", "cpu", "--prompts", str(tmp_path / "prompts.jsonl"), "--max-new-tokens", "20", "--max-rows", "4",
        "--rounds", "3", "--context", "16", "--raw",
    ]  # fmt: skip
    assert run([*command, "--no-costs", "--out", str(tmp_path / "whole")]) == 0
    for rank in range(3):
        with monkeypatch.context() as patch:
            for name, value in variables(names, rank, 3, rank).items():
                patch.setenv(name, value)
            assert run([*command, "--out", str(tmp_path / "all")]) == 0
        assert f"shard {rank}/3, as the launcher's environment says" in capsys.readouterr().err
    shards = [tmp_path / f"all-shard{rank}of3" for rank in range(3)]
    assert [(shard / "cost.csv").exists() for shard in shards] == [True, False, False]
    assert run(["merge", *map(str, reversed(shards)), "--out", str(tmp_path / "all")]) == 0
    for name in ("trace.npz", "acceptance.csv"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    merged, first = (RunFolder(path).read_manifest() for path in (tmp_path / "all", shards[0]))
    assert merged["device_limits"] == first["device_limits"] is not None
    assert merged["sweep"] == first["sweep"] is not None
    assert (tmp_path / "all" / "cost.csv").read_bytes() == (shards[0] / "cost.csv").read_bytes()


def test_more_shards_than_prompts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_base()
    save_tiny_model(base, tmp_path / "model")
    save_vllm(random_heads(base), tmp_path / "heads", {"base_model_name_or_path": "m", "vocab_size": base.vocab_size})
    (tmp_path / "prompts.txt").write_text("w1 w2\n")
    command = ["profile", "--model", str(tmp_path / "model"), "--heads", str(tmp_path / "heads"), "--raw"]
    command += ["--prompts", str(tmp_path / "prompts.txt"), "--device", "cpu", "--out", str(tmp_path / "out")]
    assert run([*command, "--shard", "3/4"]) == 2
    assert "shard 3/4 has no prompt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
