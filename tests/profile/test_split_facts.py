"""What is measured on a split model is recorded as such, and each device's memory counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from split_models import SECOND, pretended_devices, split_base, split_map
from tiny_models import save_tiny_model, tiny_base
from typer.testing import CliRunner

from mtp_bench.cli import app
from mtp_bench.cost import read_points
from mtp_bench.decode import memory
from mtp_bench.decode.memory import check_memory, memory_need
from mtp_bench.errors import InputError
from mtp_bench.profile import costs
from mtp_bench.profile.environment import environment, machine_key, machine_name, model_facts


def test_a_split_machine_is_another_machine() -> None:
    whole = tiny_base()
    with pretended_devices():
        one, two = split_base(split_map(1)), split_base(split_map(2))
    name = machine_name(whole)
    assert "split" not in name
    assert machine_name(one) == f"split: {name} (1 of 3 layers) + {name} (2 of 3 layers)"
    assert len({json.dumps(machine_key(base)) for base in (whole, one, two)}) == 3
    assert len({json.dumps(model_facts(base)["device"]) for base in (whole, one)}) == 2
    assert model_facts(one)["device_map"] == split_map(1)
    assert "device_map" not in model_facts(whole), "old runs keep their keys"
    assert environment(one)["layers"] == {"lazy:0": 1, "lazy:1": 2}
    assert environment(whole)["device"] == name


def test_memory_is_counted_on_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_devices():
        base = split_base(split_map(1))
    need = memory_need(base, batch=2, length=100, rows=8)
    free = {"lazy:0": need.step + need.cache / 3, "lazy:1": need.step + 2 * need.cache / 3}
    room = dict.fromkeys(free, 1.1)

    def available(device: torch.device) -> int:
        return int(room[str(device)] * free[str(device)])

    monkeypatch.setattr(memory, "available_bytes", available)
    assert check_memory(base, batch=2, length=100, rows=8) == need
    for short in free:
        room.update(dict.fromkeys(free, 1.1), **{short: 1.0})
        with pytest.raises(InputError, match=rf"GiB of it on {short}, .* is free on {short}"):
            check_memory(base, batch=2, length=100, rows=8)
        check_memory(base, batch=2, length=100, rows=8, cached=True)


def test_the_head_of_a_model_needs_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_devices():
        base = split_base({**split_map(3), "lm_head": SECOND})
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0 if str(device) == SECOND else 1 << 40)
    with pytest.raises(InputError, match=r"0\.00 GiB of it on lazy:1"):
        check_memory(base, batch=1, length=100, rows=8)


def test_costs_measured_split_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command from end to end, a layer on the disk."""
    monkeypatch.setattr(costs, "UNSTABLE_SPREAD", 1e9)
    model, device_map, out = tmp_path / "model", tmp_path / "map.json", tmp_path / "run"
    save_tiny_model(tiny_base(), model)
    device_map.write_text(json.dumps({"": "cpu", "model.layers.1": "disk"}))
    command = ["measure-cost", "--model", str(model), "--dtype", "fp32", "--max-rows", "2", "--rounds", "3",
               "--context", "16", "--max-minutes", "0.2", "--out", str(out)]  # fmt: skip
    done = CliRunner().invoke(app, [*command, "--device-map", str(device_map)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    devices = {point.device for point in read_points(out / "cost.csv")}
    assert devices == {f"split: {machine_name(tiny_base())} (2 of 3 layers) + disk (1 of 3 layers)"}
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["model"]["engine"] == "eager"
    assert manifest["model"]["device_map"]["model.layers.1"] == "disk"
    assert manifest["environment"]["layers"] == {"cpu": 2, "disk": 1}
    # The same folder does not take what is measured unsplit.
    again = CliRunner().invoke(app, [*command, "--device", "cpu", "--engine", "eager"])
    assert isinstance(again.exception, InputError), again.output
