"""The data behind the curve over tree sizes."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_run import make_points, make_trace

from mtp_bench.cost import CostTable
from mtp_bench.report.sizes import draw_sizes, named_points, size_curve
from mtp_bench.search import evaluate
from mtp_bench.topology import StaticTree, chain


def point(num_nodes: int, depth: int, tokens: float, speedup: float | None) -> dict[str, Any]:
    ci = {"tokens_per_step_ci": [tokens - 0.1, tokens + 0.1], "speedup_ci": None}
    return {"num_nodes": num_nodes, "depth": depth, "tokens_per_step": tokens, "speedup": speedup, **ci}


def test_the_best_depth_of_each_size_is_kept() -> None:
    exact = {"curve": [point(2, 2, 1.9, 1.1), point(2, 1, 1.7, 1.3), point(0, 0, 1.0, 1.0), point(1, 1, 1.5, 1.2)]}
    curve = size_curve({"num_nodes": 2, "exact": exact})
    assert curve is not None
    assert curve.frame["num_nodes"].tolist() == [0, 1, 2]
    assert curve.frame["depth"].tolist() == [0, 1, 1]
    assert curve.frame["tokens_low"].tolist() == pytest.approx([0.9, 1.4, 1.6])


def test_without_costs_the_most_tokens_win() -> None:
    exact = {"curve": [point(2, 2, 1.9, None), point(2, 1, 1.7, None), point(1, 1, 1.5, None)]}
    curve = size_curve({"exact": exact})
    assert curve is not None
    assert (curve.best, curve.has_speedup) == (2, False)
    assert curve.frame["depth"].tolist() == [1, 2]
    assert len(draw_sizes(curve).axes) == 1


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ({"lowest": 3, "highest": 9, "smallest_tree": {"num_nodes": 3}}, ((3, 9), 3)),
        ({"lowest": 3, "highest": 9, "smallest_tree": 4}, ((3, 9), 4)),
        ({"sizes": [5, 6, 8], "smallest": {"num_nodes": 5}}, ((5, 8), 5)),
        ({"sizes": [5, 6, 8]}, ((5, 8), 5)),
        (None, (None, None)),
    ],
)
def test_band_in_either_spelling(band: Any, expected: Any) -> None:
    curve = size_curve({"exact": {"curve": [point(1, 1, 1.5, 1.2)], "band": band}})
    assert curve is not None
    assert (curve.band, curve.smallest) == expected


def test_no_curve_no_plot() -> None:
    assert size_curve({"num_nodes": 3}) is None
    assert size_curve({"exact": {"curve": []}}) is None


def test_named_trees_agree_with_evaluate_and_say_when_cut() -> None:
    trace, cost = make_trace(), CostTable(tuple(make_points()))
    wide = StaticTree.from_paths([(0,), (0, 0), (25,), (0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0)])
    fitting, cut = named_points({"chain:4": chain(4), "wide": wide}, trace, cost, context=1024)
    expected = evaluate(chain(4), trace, cost, context=1024)
    assert fitting.tokens_per_step == pytest.approx(expected.tokens_per_step)
    assert fitting.speedup == pytest.approx(expected.speedup_predicted)
    assert (cut.name, cut.num_nodes) == ("wide, cut to 4", 4)
    assert cut.tokens_per_step == fitting.tokens_per_step


def test_a_tree_beyond_the_costs_has_no_speedup() -> None:
    small = CostTable(tuple(p for p in make_points() if p.rows <= 2))
    (named,) = named_points({"chain:4": chain(4)}, make_trace(), small)
    assert named.speedup is None


def test_export_holds_the_curve_and_the_named_trees() -> None:
    trace = make_trace()
    named = named_points({"chain:2": chain(2)}, trace, None)
    curve = size_curve({"exact": {"curve": [point(0, 0, 1.0, 1.0), point(1, 1, 1.5, 1.2)]}}, named)
    assert curve is not None
    assert curve.export()["tree"].tolist() == ["best of its size", "best of its size", "chain:2"]
