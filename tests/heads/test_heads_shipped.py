"""The shipped heads: they load for the packaged reference model, and their record belongs to them."""

from __future__ import annotations

import json

import pytest

from mtp_bench.cli.loading import load_base, load_heads
from mtp_bench.files import sha256_json
from mtp_bench.heads.inspection import inspect_path
from mtp_bench.heads.shipped import default_heads_for, shipped_heads, shipped_names


def test_every_shipped_folder_tells_how_it_was_made() -> None:
    assert shipped_names()
    for name in shipped_names():
        folder = shipped_heads(name)
        assert folder is not None
        record = json.loads((folder / "training.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        assert config["mtp_bench"]["training_record_sha256"] == sha256_json(record)
        assert config["mtp_bench"]["base_model_hash"] == record["base_model_sha256"]
        info = inspect_path(folder)
        assert info.heads is not None
        assert info.heads.num_heads == record["recipe"]["num_heads"]
        assert (folder / "README.md").is_file()
        # The last line of the learning curve is the record's accuracy.
        last = (folder / "heldout.csv").read_text().splitlines()[-1].split(",")
        assert float(last[2]) == pytest.approx(record["held_out"][-1]["top1"], abs=1e-4)


def test_the_reference_models_heads_load_without_a_warning() -> None:
    name = default_heads_for("smollm2-135m")
    assert name == "smollm2-135m-medusa"
    base = load_base("smollm2-135m")
    heads, info = load_heads(None, base)
    assert info.warnings == ()
    assert heads.num_heads == 4
    assert heads.num_bytes < 16e6
