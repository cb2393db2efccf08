"""The data behind predicted against measured."""

from __future__ import annotations

import pandas as pd
import pytest

from mtp_bench.report.prediction import draw_predictions, predictions


def bench() -> pd.DataFrame:
    """Two prompts of very different length, two repeats of one; tree ``a`` was predicted 10% too fast throughout."""
    return pd.DataFrame(
        {
            "tree": ["a", "a", "a", "b", "baseline:hf-generate"],
            "num_nodes": [7, 7, 7, 3, 0],
            "prompt_id": ["p", "q", "q", "p", "p"],
            "category": ["math", "coding", "coding", "math", "math"],
            "tokens": [100, 10, 10, 50, 50],
            "decode_s": [10.0, 0.5, 0.3, 2.0, 4.0],
            "predicted_tokens_per_s": [11.0, 22.0, 110 / 3, 20.0, float("nan")],
        }
    )


def test_speeds_are_pooled_tokens_over_pooled_seconds() -> None:
    data = predictions(bench())
    assert data is not None
    trees = data.trees.set_index("tree")
    assert trees.loc["a", "measured"] == pytest.approx(120 / 10.8)
    assert trees.loc["a", "predicted"] == pytest.approx(1.1 * 120 / 10.8)
    assert data.errors.tolist() == pytest.approx([0.1, 20 / 25 - 1])
    assert data.mean_absolute_error == pytest.approx((0.1 + 0.2) / 2)


def test_arms_without_a_prediction_are_left_out() -> None:
    data = predictions(bench())
    assert data is not None
    assert data.trees["tree"].tolist() == ["a", "b"]


def test_prompts_are_shown_where_predictions_differ_between_them() -> None:
    data = predictions(bench())
    assert data is not None
    assert data.prompts[["tree", "prompt_id"]].to_numpy().tolist() == [["a", "p"], ["a", "q"]]
    assert data.prompts["measured"].tolist() == pytest.approx([10.0, 20 / 0.8])
    assert data.prompts["predicted"].tolist() == pytest.approx([11.0, 1.1 * 20 / 0.8])
    assert data.prompts["category"].tolist() == ["math", "coding"]


def test_interval_needs_two_prompts_and_holds_the_value() -> None:
    data = predictions(bench())
    assert data is not None
    a, b = data.trees.to_dict("records")
    assert a["measured_low"] < a["measured"] < a["measured_high"]
    assert b["measured_low"] != b["measured_low"]  # NaN


def test_summary_stands_in_for_a_missing_csv() -> None:
    trees = [
        {"tree": "a", "predicted_tokens_per_s": 44.0, "tokens_per_s": 40.0, "tokens_per_s_ci": [39, 41]},
        {"tree": "b", "tokens_per_s": 9.0},
    ]
    data = predictions(None, {"trees": trees})
    assert data is not None
    assert data.errors.tolist() == pytest.approx([0.1])
    assert data.trees[["measured_low", "measured_high"]].to_numpy().tolist() == [[39, 41]]
    assert data.prompts.empty
    text = " ".join(text.get_text() for text in draw_predictions(data).axes[0].texts)
    assert "mean |error| 10.0%" in text


def test_nothing_predicted_nothing_drawn() -> None:
    assert predictions(None, None) is None
    assert predictions(bench().drop(columns="predicted_tokens_per_s"), {"trees": []}) is None
    assert predictions(bench().tail(1)) is None
