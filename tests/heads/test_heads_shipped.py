"""The shipped heads: they load for the packaged reference model, and their record belongs to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtp_bench.cli.loading import load_base, load_heads
from mtp_bench.decode.answers import stored_answers
from mtp_bench.files import sha256_json
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.inspection import inspect_path
from mtp_bench.heads.shipped import default_heads_for, shipped_heads, shipped_names
from mtp_bench.profile.record import record_trace


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
        assert info.heads.method == record["method"]
        if record["method"] == "medusa":
            assert info.heads.num_heads == record["recipe"]["num_heads"]
        assert (folder / "README.md").is_file()
        # The last line of the learning curve is the record's accuracy.
        last = (folder / "heldout.csv").read_text().splitlines()[-1].split(",")
        assert float(last[2]) == pytest.approx(record["held_out"][-1]["top1"], abs=1e-4)


def test_the_reference_models_heads_load_without_a_warning() -> None:
    name = default_heads_for("smollm2-135m")
    assert name == "smollm2-135m-medusa"
    base = load_base("smollm2-135m")
    _, info = load_heads(None, base)
    assert info.warnings == ()
    assert info.num_heads == 4
    assert info.bytes < 16e6


@pytest.mark.parametrize("name", [name for name in shipped_names() if "eagle" in name])
def test_shipped_drafts_load_without_a_warning(name: str) -> None:
    base = load_base("smollm2-135m")
    draft, info = load_heads(name, base)
    assert isinstance(draft, EagleDraft)
    assert info.warnings == ()
    assert info.bytes < 24e6


@pytest.mark.parametrize("name", shipped_names())
def test_recorded_accuracy_is_measured_again_on_fresh_text(name: str) -> None:
    """Held-out text does not ship; on the evaluation prompts, unlike the training text, at least half of it must hold.

    A head that is loaded wrongly (shifted, without its norm, over another vocabulary) falls far below.
    """
    base = load_base("smollm2-135m")
    heads, _ = load_heads(name, base)
    folder = shipped_heads(name)
    assert folder is not None
    record = json.loads((folder / "training.json").read_text())
    answers = stored_answers(Path(__file__).parents[2] / "results" / "smollm2-135m-cpu" / "answers.jsonl")[1]
    sample = [answer for answer in answers.values() if len(answer.tokens) > 32][:8]
    trace = record_trace(base, heads, sample, top_k=10)
    first = trace.ranks[trace.tokens_left > 0, 0]
    assert (first == 0).mean() > 0.5 * record["held_out"][0]["top1"]
    assert ((first >= 0) & (first < 5)).mean() > 0.6 * record["held_out"][0]["top5"]
