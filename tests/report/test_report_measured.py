"""The plot of a race: its data, and that it can be drawn with what may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from mtp_bench.report.measured import draw_measured, measured_frame, write_measured
from mtp_bench.report.write import make_report


def result() -> dict[str, Any]:
    """Three candidates: the baseline, a winner, and one that was stopped, was never predicted, and has no interval."""
    shared = {"why": "within reach", "outcome": "finished", "prompts": 18}
    return {
        "winner": "7 nodes",
        "candidates": [
            {**shared, "name": "none", "num_nodes": 0, "predicted_tokens_per_s": 20.0, "tokens_per_s": 19.0,
             "tokens_per_s_ci": [18.5, 19.5], "speed_to_winner": {"value": 0.63, "ci": [0.6, 0.66]}},
            {**shared, "name": "7 nodes", "num_nodes": 7, "predicted_tokens_per_s": 31.5, "tokens_per_s": 30.0,
             "tokens_per_s_ci": [28.0, 32.0], "speed_to_winner": {"value": 1.0, "ci": [1.0, 1.0]}},
            {**shared, "name": "chain:3", "num_nodes": 3, "predicted_tokens_per_s": None, "tokens_per_s": 27.0,
             "tokens_per_s_ci": None, "speed_to_winner": None, "outcome": "slower", "prompts": 7},
        ],
    }  # fmt: skip


def test_the_frame_holds_speeds_and_their_distance_to_the_winner() -> None:
    frame = measured_frame(result()).set_index("name")
    assert frame.loc["7 nodes", ["predicted", "measured", "measured_low", "to_winner"]].tolist() == [31.5, 30, 28, 1]
    assert frame["winner"].tolist() == [False, True, False]
    assert pd.isna(frame.loc["chain:3", ["predicted", "measured_low", "to_winner", "to_winner_high"]]).all()


def test_it_says_errors_prompts_and_outcomes() -> None:
    left, right = draw_measured(measured_frame(result()), result()).axes
    legend = left.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["none: +5.3%", "7 nodes: +5.0%"]
    assert {text.get_text() for text in right.texts} == {"18 prompts", "7 prompts, stopped"}


def test_it_is_part_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "optimize.json").write_text(json.dumps({"schema": "mtp-bench/optimize", "version": 1, "paths": [[0]],
                                                        "measured": result()}))  # fmt: skip
    assert "measured" in make_report(tmp_path).plots
    first = [path.read_bytes() for path in write_measured(result(), tmp_path / "a")]
    assert first == [path.read_bytes() for path in write_measured(result(), tmp_path / "b")]


def test_a_damaged_race_costs_only_its_plot(tmp_path: Path) -> None:
    (tmp_path / "optimize.json").write_text(json.dumps({"paths": [[0]], "measured": {"candidates": [{}]}}))
    report = make_report(tmp_path)
    assert "measured" not in report.plots
    [omitted] = [one for one in report.omitted if one.title == "The measured race"]
    assert "cannot be used" in omitted.reason
