"""The data behind the plots of overfit and of the chosen size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic_run import make_points, make_trace

from mtp_bench.cost import CostTable
from mtp_bench.report.chosen_size import chosen_size_data, draw_chosen_size
from mtp_bench.report.overfit import draw_overfit, overfit_data
from mtp_bench.search.optimize import OptimizeOptions, optimize


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    options = OptimizeOptions(budget=20, context=300, trials=0)
    return optimize(make_trace(prompts=8), CostTable(tuple(make_points())), options).document()


def test_overfit_holds_both_figures_their_gap_and_the_gain_over_the_trie(found: dict[str, Any]) -> None:
    data = overfit_data(found)
    assert data is not None
    assert data.estimators == ["trie", "shrunk", "refit", "independent"]
    assert data.chosen == found["static"]["num_nodes"]
    lines = {(one["estimator"], one["num_nodes"]): one for one in found["overfit"]}
    assert len(data.frame) == len(lines)
    for line in data.frame.to_dict("records"):
        one, trie = lines[line["estimator"], line["num_nodes"]], lines["trie", line["num_nodes"]]
        assert line["gap"] == pytest.approx(one["train_tokens_per_step"] - one["held_out_tokens_per_step"])
        gain = 100 * (one["held_out_tokens_per_step"] / trie["held_out_tokens_per_step"] - 1)
        assert line["held_out_gain_percent"] == pytest.approx(gain, abs=1e-9)
    levels, gaps, gains = draw_overfit(data).axes
    assert len(levels.get_lines()) == 2 * 4 + 1
    drawn = gains.get_lines()[1].get_ydata()
    assert drawn == pytest.approx(data.frame.query("estimator == 'shrunk'")["held_out_gain_percent"].to_numpy())
    assert gaps.get_title(loc="left").startswith("Gap")


def test_chosen_size_shares_lie_on_the_curves_sizes(found: dict[str, Any]) -> None:
    data = chosen_size_data(found)
    assert data is not None
    assert data.frame["share"].sum() == pytest.approx(1.0)
    at = data.frame.set_index("num_nodes")
    for one in found["chosen_size"]["num_nodes"]:
        assert at.loc[one["num_nodes"], "share"] == pytest.approx(one["times"] / data.resamples)
    inside = at.index[at["within_band"]].tolist()
    assert inside == found["exact"]["band"]["sizes"]
    assert at.loc[inside, "share"].sum() == pytest.approx(data.share_within_band)
    top, bottom = draw_chosen_size(data).axes
    heights = [bar.get_height() for bar in bottom.containers[0]]
    assert heights == pytest.approx((100 * data.frame["share"]).tolist())
    assert np.nanmax(top.get_lines()[0].get_ydata()) == pytest.approx(data.frame["speedup"].max())


def test_without_costs_the_curve_is_of_tokens() -> None:
    options = OptimizeOptions(budget=6, objective="tokens", trials=0)
    data = chosen_size_data(optimize(make_trace(prompts=8), None, options).document())
    assert data is not None
    assert draw_chosen_size(data).axes[0].get_ylabel() == "tokens_per_step"


def test_files_without_them_give_no_plot(found: dict[str, Any]) -> None:
    assert overfit_data({"num_nodes": 3}) is None
    assert chosen_size_data({"num_nodes": 3}) is None
    assert chosen_size_data(found | {"chosen_size": None}) is None
    assert chosen_size_data({"chosen_size": found["chosen_size"]}) is None
