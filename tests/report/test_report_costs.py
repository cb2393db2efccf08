"""The data behind the cost curve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_run import make_points

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.report.costs import Chosen, cost_curves, draw_costs


def test_envelope_is_the_cost_tables_and_never_above_a_measured_point() -> None:
    points = make_points()
    frame = cost_curves(points).frame
    table = CostTable(tuple(points))
    for context in (256, 1024):
        line = frame[frame["context"] == context]
        envelope = line[line["kind"] == "envelope"].set_index("rows")["ms"]
        assert envelope[1] == pytest.approx(table.step_ms(1, context=context))
        measured = line[line["kind"] == "measured"].set_index("rows")["ms"]
        assert (envelope.reindex(measured.index) <= measured + 1e-9).all()
        assert envelope[1] < measured[1]  # the dip after one row is used for the baseline too


def test_relative_costs_are_in_units_of_one_row() -> None:
    frame = cost_curves(make_points()).frame
    ones = frame[(frame["kind"] == "envelope") & (frame["rows"] == 1)]
    assert ones["relative"].tolist() == [1.0, 1.0]
    seventeen = frame[(frame["kind"] == "measured") & (frame["rows"] == 17) & (frame["context"] == 256)].iloc[0]
    assert seventeen["relative"] == pytest.approx((40 + 0.45 * 17 + 6) / (40 + 0.9))


def test_chosen_tree_costs_what_the_table_says_at_its_own_context() -> None:
    frame = cost_curves(make_points(), Chosen(rows=10, depth=2, context=640)).frame
    chosen = frame[frame["kind"] == "chosen"]
    table = CostTable(tuple(make_points()))
    assert chosen["ms"].tolist() == pytest.approx([table.step_ms(10, context=640)])
    assert chosen["relative"].tolist() == pytest.approx(
        [table.step_ms(10, context=640) / table.step_ms(1, context=640)]
    )


def test_chosen_tree_is_marked_for_its_batch_only() -> None:
    points = [CostPoint(batch=batch, rows=rows, median_ms=1.0 + rows) for batch in (1, 4) for rows in (1, 8)]
    frame = cost_curves(points, Chosen(5, 1, batch=4)).frame
    assert frame.loc[frame["kind"] == "chosen", "batch"].tolist() == [4]


def test_unusable_points_are_counted_not_drawn() -> None:
    curves = cost_curves(make_points())
    assert curves.unusable == {"oom": 1}
    assert curves.frame["rows"].max() == 64


def test_floors_are_lines_of_their_own_where_they_are_known() -> None:
    known = [replace(p, floor_ms=30.0 if p.rows < 32 else p.rows * 1.0) for p in make_points() if p.context == 256]
    frame = cost_curves([*known, *(p for p in make_points() if p.context != 256)]).frame
    floor = frame[frame["kind"] == "floor"]
    assert set(floor["context"]) == {256}
    assert floor["rows"].tolist() == [1, 2, 4, 8, 15, 16, 17, 24, 32, 48, 64]
    assert floor["ms"].tolist() == [30.0] * 8 + [32.0, 48.0, 64.0]
    assert floor["relative"].iloc[0] == pytest.approx(30 / (40 + 0.9))
    assert not (cost_curves(make_points()).frame["kind"] == "floor").any()


def test_one_panel_per_device_dtype_and_batch() -> None:
    points = [
        CostPoint(device=device, batch=batch, rows=rows, median_ms=1.0 + rows)
        for device in ("cpu", "cuda")
        for batch in (1, 4)
        for rows in (1, 8)
    ]
    curves = cost_curves(points, Chosen(5, 1))
    assert curves.machines == [("cpu", "", 1), ("cpu", "", 4), ("cuda", "", 1), ("cuda", "", 4)]
    assert len(draw_costs(curves).axes) == 4


def test_points_without_a_baseline_are_still_shown() -> None:
    curves = cost_curves([CostPoint(rows=rows, median_ms=1.0 + rows) for rows in (4, 8)], Chosen(5, 1))
    assert set(curves.frame["kind"]) == {"measured"}
    assert curves.frame["relative"].isna().all()
    draw_costs(curves)
