"""The data behind Optuna's history and the training curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_run import make_training

from mtp_bench.report.history import draw_history, optuna_history
from mtp_bench.report.training import training_curves, write_training_plots


def study(values: list[float], exact: float | None) -> dict[str, Any]:
    trials = [{"number": i, "value": value, "num_nodes": i, "depth": 1} for i, value in enumerate(values)]
    return {"objective": "speed", "optuna": {"trials": trials[::-1], "exact_value": exact}}


def test_best_so_far_rises_in_order_of_trials() -> None:
    history = optuna_history(study([3.0, 1.0, 5.0, 4.0], 6.0))
    assert history is not None
    assert history.frame["best_so_far"].tolist() == [3.0, 3.0, 5.0, 5.0]
    assert history.gap == pytest.approx(1 / 6)


def test_the_exact_optimum_is_a_line_inside_the_picture() -> None:
    history = optuna_history(study([3.0, 1.0], 9.0))
    assert history is not None
    axes = draw_history(history).axes[0]
    level = [line for line in axes.lines if str(line.get_label()).startswith("exact optimum")]
    assert level[0].get_ydata()[0] == 9.0
    assert axes.get_ylim()[1] > 9.0


@pytest.mark.parametrize("optimize", [{}, {"optuna": None}, {"optuna": {"trials": 200}}, {"optuna": {"trials": []}}])
def test_no_trials_no_plot(optimize: dict[str, Any]) -> None:
    assert optuna_history(optimize) is None


def test_trials_without_a_value_are_skipped() -> None:
    document = study([3.0], None)
    document["optuna"]["trials"].append({"number": 1, "value": None})
    history = optuna_history(document)
    assert history is not None
    assert len(history.frame) == 1
    assert history.gap is None


def test_held_out_is_melted_by_k() -> None:
    table = pd.DataFrame(
        {"tokens_seen": [10, 20], "head": [0, 0], "top1": [0.1, 0.2], "top10": [0.5, 0.6], "n": [9, 9]}
    )
    curves = training_curves(None, table)
    assert curves is not None
    assert curves.held_out is not None
    assert curves.held_out[["k", "accuracy"]].to_numpy().tolist() == [[1, 0.1], [1, 0.2], [10, 0.5], [10, 0.6]]
    assert curves.last().to_dict("index") == {0: {"top1": 0.2, "top10": 0.6}}
    assert training_curves(None, None) is None


def test_smoothing_ignores_an_outlier() -> None:
    loss = pd.DataFrame({"step": range(200), "tokens": range(200), "loss": [1.0] * 100 + [50.0] + [1.0] * 99})
    curves = training_curves(loss, None)
    assert curves is not None
    assert curves.loss is not None
    assert set(curves.loss["loss_smooth"]) == {1.0}


def test_training_folder_gets_its_pictures(tmp_path: Path) -> None:
    assert write_training_plots(tmp_path) == []
    make_training(tmp_path, steps=50)
    assert [path.name for path in write_training_plots(tmp_path)] == ["training.png", "training.svg"]
