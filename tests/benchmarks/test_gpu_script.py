"""The script for GPUs, run on the CPU with one small model, so that it does not fail the day a GPU is there."""

from __future__ import annotations

import json
from pathlib import Path

import gpu
import pytest

from mtp_bench.cost import CostTable

pytestmark = pytest.mark.usefixtures("any_spread_will_do")


def test_the_script_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--models smollm2-135m --engines eager --device cpu --rows 1,2,4 --batch 1,2 --context 64 --rounds 3"
    gpu.main([*arguments.split(), "--no-reference", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "gpu.json").read_text())
    [model] = document["models"]
    assert model["rows"]["1"]["1"]["over_one_row"] == 1.0
    assert set(model["rows"]["2"]) == {"1", "2"}
    assert model["plain_decoding"]["share_of_copy_bandwidth"] > 0
    assert set(model["optimum"]) == {"1", "2"}
    assert CostTable.from_csv(tmp_path / "cost-smollm2-135m-eager.csv").batches == (1, 2)
    assert "s in all" in capsys.readouterr().out
