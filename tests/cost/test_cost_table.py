import math

import numpy as np
import pytest
from acceptance_cases import cost_table, t3_cost
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.errors import InputError

BF16 = {1: 16.1, 2: 13.4, 4: 13.3, 8: 14.0, 16: 15.4, 17: 14.8, 24: 15.6, 32: 15.7, 33: 17.3, 64: 20.2}


def test_measured_points_come_back():
    table = t3_cost()
    assert [table.step_ms(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 40)] == [10, 10.2, 10.2, 10.2, 12.5, 12.5, 20, 20]


def test_rows_between_are_interpolated():
    assert cost_table({1: 10.0, 5: 14.0}).step_ms(3) == pytest.approx(12.0)


def test_a_dip_is_profit_for_the_baseline_too():
    table = cost_table(BF16)
    assert table.step_ms(1) == table.step_ms(4) == 13.3
    assert table.step_ms(16) == 14.8  # padded to 17


points = st.dictionaries(st.integers(2, 64), st.floats(0.1, 100), min_size=1).map(lambda d: {1: 5.0} | d)


@given(points)
def test_the_envelope_never_falls_and_never_exceeds_a_measurement(ms_by_rows):
    table = cost_table(ms_by_rows)
    curve = table.verify_curve()
    assert len(curve) == table.rows_limit() == max(ms_by_rows)
    assert (np.diff(curve) >= 0).all()
    rows = sorted(ms_by_rows)
    for n in range(1, max(rows) + 1):
        assert curve[n - 1] <= np.interp(n, rows, [ms_by_rows[r] for r in rows]) + 1e-9
        at_best = min(np.interp(m, rows, [ms_by_rows[r] for r in rows]) for m in range(n, max(rows) + 1))
        assert curve[n - 1] == pytest.approx(at_best)


def test_the_draft_is_added_by_depth():
    table = cost_table({1: 10.0, 8: 10.0}, {1: 1.0, 3: 2.0})
    assert [table.step_ms(4, depth=d) for d in range(4)] == pytest.approx([10, 11, 11.5, 12])
    assert table.step_ms(1) == 10.0
    assert table.has_draft
    assert table.depth_limit() == 3


def test_a_cheaper_deeper_draft_is_run_instead():
    table = cost_table({1: 10.0}, {1: 3.0, 2: 2.0})
    assert table.step_ms(1, depth=1) == 12.0


def test_without_draft_points_steps_are_whole():
    assert t3_cost().step_ms(4, depth=7) == 10.2
    assert t3_cost().depth_limit() is None


def with_contexts():
    costs = {(1, 256): 10.0, (8, 256): 14.0, (1, 1024): 12.0, (8, 1024): 20.0}
    return CostTable(tuple(CostPoint(rows=r, context=c, median_ms=ms) for (r, c), ms in costs.items()))


def test_contexts_are_interpolated_and_clamped():
    table = with_contexts()
    assert table.contexts == (256, 1024)
    assert table.step_ms(8) == 14.0  # the smallest
    assert table.step_ms(8, context=640) == pytest.approx(17.0)
    assert table.step_ms(8, context=448) == pytest.approx(15.5)
    assert table.step_ms(8, context=1024) == 20.0
    assert table.notes(context=640) == ()
    for context, nearest in ((100, 14.0), (4096, 20.0)):
        assert table.step_ms(8, context=context) == nearest
        assert "outside the measured 256..1024" in table.notes(context=context)[0]


def test_the_nearest_context():
    assert with_contexts().nearest_context(300) == 256
    assert with_contexts().nearest_context(640) == 256
    assert with_contexts().nearest_context(700) == 1024


def test_a_context_measured_to_fewer_rows_limits_the_mixture():
    table = CostTable((*with_contexts().points, CostPoint(rows=64, context=256, median_ms=30.0)))
    assert table.rows_limit(context=256) == 64
    assert table.rows_limit(context=640) == 8
    assert table.max_rows == 64


def test_batches_are_kept_apart():
    table = CostTable((*t3_cost().points, CostPoint(rows=1, batch=4, median_ms=11.0)))
    assert table.batches == (1, 4)
    assert table.step_ms(1, batch=4) == 11.0
    with pytest.raises(InputError, match="no verify cost for batch 8"):
        table.step_ms(1, batch=8)
    assert table.step_ms(1, batch=2) == pytest.approx(10.0 + 1 / 3)


def test_points_that_failed_are_ignored():
    failed = [CostPoint(rows=rows, status=s) for rows, s in ((64, "oom"), (3, "nan"))]
    unstable = CostPoint(rows=2, median_ms=1.0, status="unstable")
    table = CostTable((*t3_cost().points, *failed, unstable))
    assert table.max_rows == 40
    assert table.step_ms(2) == 10.2


@pytest.mark.parametrize("rows", [0, -1, 41])
def test_unknown_rows_are_refused(rows):
    with pytest.raises(InputError, match=r"measured for 1\.\.40 rows"):
        t3_cost().step_ms(rows)


def test_unknown_depths_are_refused():
    with pytest.raises(InputError, match="measured to depth 3"):
        cost_table({1: 10.0}, {3: 1.0}).step_ms(1, depth=4)


def test_no_baseline_is_refused():
    with pytest.raises(InputError, match="no baseline"):
        cost_table({2: 10.0, 4: 11.0}).step_ms(2)


def test_tables_that_cannot_be_used():
    with pytest.raises(InputError, match="no usable point"):
        CostTable((CostPoint(rows=1, status="oom"),))
    with pytest.raises(InputError, match="two costs for one"):
        CostTable((CostPoint(rows=1, median_ms=1.0), CostPoint(rows=1, median_ms=2.0)))
    mixed = [CostPoint(rows=1, median_ms=ms, device="cpu", dtype=dtype) for ms, dtype in ((1.0, "bf16"), (2.0, "fp32"))]
    with pytest.raises(InputError, match="cpu/bf16, cpu/fp32"):
        CostTable(tuple(mixed))
    assert CostTable.select(mixed, dtype="fp32").step_ms(1) == 2.0


def test_curves_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        t3_cost().verify_curve()[0] = 1.0


def test_the_error_of_a_median_shrinks_with_repeats():
    one, four = (CostPoint(rows=1, median_ms=10.0, low_ms=9.9, high_ms=10.1, n=n) for n in (25, 100))
    assert one.relative_error == pytest.approx(2 * four.relative_error)
    # Against a simulation: medians of 25 normal draws whose quartiles are 0.2 apart.
    draws = np.random.default_rng(0).normal(10.0, 0.2 / 1.349, size=(20000, 25))
    assert one.relative_error * 10.0 == pytest.approx(np.median(draws, axis=1).std(), rel=0.05)
    assert CostPoint(rows=1, median_ms=10.0).relative_error == 0.0


# ----- files


def test_the_table_reads_back(tmp_path):
    verify = CostPoint("verify", "cpu", "bfloat16", 2, 8, 256, 0, 12.5, 12.25, 13.0, 20)
    points_ = (verify, CostPoint("draft", "cpu", "bfloat16", 2, 0, 256, 3, 1.5, 1.4, 1.6, 20))
    failed = CostPoint("verify", "cpu", "bfloat16", 2, 16, 256, status="oom")
    CostTable((*points_, failed)).to_csv(tmp_path / "cost.csv")
    read = CostTable.from_csv(tmp_path / "cost.csv").points
    assert {p for p in read if p.ok} == set(points_)
    assert [(p.rows, p.status, math.isnan(p.median_ms)) for p in read if not p.ok] == [(16, "oom", True)]
    assert "nan" not in (tmp_path / "cost.csv").read_text()


def test_the_file_does_not_depend_on_the_order(tmp_path):
    points_ = with_contexts().points
    CostTable(points_).to_csv(tmp_path / "a.csv")
    CostTable(points_[::-1]).to_csv(tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def from_text(tmp_path, text):
    (tmp_path / "cost.csv").write_text(text)
    return CostTable.from_csv(tmp_path / "cost.csv")


def test_a_minimal_file_will_do(tmp_path):
    table = from_text(tmp_path, "rows, median_ms\n1, 10.0\n4, 10.6\n")
    assert table.step_ms(3) == pytest.approx(10.4)
    assert table.batches == (1,)
    assert table.contexts == (0,)


def test_a_minimal_file_with_draft_costs_by_depth(tmp_path):
    table = from_text(tmp_path, "rows,median_ms,draft_ms,depth\n1,10,0,0\n4,10.6,1.0,1\n8,11,2.0,2\n")
    assert [table.step_ms(4, depth=d) for d in (1, 2)] == pytest.approx([11.6, 12.6])


def test_a_minimal_file_with_one_draft_cost(tmp_path):
    table = from_text(tmp_path, "rows,median_ms,draft_ms\n1,10,\n4,10.6,1.5\n8,11,1.5\n")
    assert [table.step_ms(4, depth=d) for d in (0, 1, 9)] == pytest.approx([10.6, 12.1, 12.1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows\n1\n", "columns missing: median_ms"),
        ("", "columns missing: median_ms, rows"),
        ("rows,median_ms\n", "no usable point"),
        ("rows,median_ms\n1,10\n2,fast\n", ":3.*median_ms is 'fast'"),
        ("rows,median_ms\n1,\n", ":2.*median_ms is ''"),
        ("rows,median_ms\n1,nan\n", ":2.*median_ms is 'nan'"),
        ("rows,median_ms\n1,0\n", ":2.*median_ms is '0'"),
        ("rows,median_ms\n1,-3\n", ":2"),
        ("rows,median_ms\n0,10\n", ":2.*rows is '0'"),
        ("rows,median_ms\n1.5,10\n", ":2.*rows is '1.5'"),
        ("rows,median_ms,batch\n1,10,0\n", ":2.*batch is '0'"),
        ("rows,median_ms,status\n1,10,fine\n", ":2.*fine"),
        ("component,rows,median_ms\nprefill,1,10\n", ":2.*prefill"),
        ("rows,median_ms,draft_ms\n1,10,\n4,11,-1\n", ":3.*draft_ms"),
        ("rows,median_ms,draft_ms\n1,10,\n4,11,1\n8,12,2\n", "two costs for one draft"),
    ],
)
def test_damaged_files_name_the_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        from_text(tmp_path, text)


def test_a_failed_row_needs_no_time(tmp_path):
    assert from_text(tmp_path, "rows,median_ms,status\n1,10,ok\n64,,oom\n").max_rows == 1
    assert from_text(tmp_path, "rows,median_ms,status\n1,10,ok\n64,nan,nan\n").max_rows == 1


def test_a_draft_measured_at_fewer_contexts_is_noted():
    verify = [CostPoint(rows=rows, context=c, median_ms=10.0 + rows) for rows in (1, 8) for c in (128, 512)]
    draft = CostPoint("draft", depth=2, context=128, median_ms=3.0)
    table = CostTable((*verify, draft))
    assert table.notes(context=128) == table.notes() == ()
    assert table.notes(context=300) == (
        "context 300 lies outside the only one measured, 128: draft costs of 128 are used",
    )
    dynamic = CostPoint("draft_dynamic", rows=4, depth=2, context=512, median_ms=3.0)
    (note,) = CostTable((*verify, dynamic)).notes(context=128)
    assert "dynamic draft costs of 512" in note


def test_notes_speak_of_both_batches_that_costs_lie_between():
    points = [CostPoint(rows=1, batch=b, context=c, median_ms=10.0) for b, c in ((1, 128), (1, 512), (4, 128))]
    notes = CostTable(tuple(points)).notes(batch=2, context=512)
    assert "between those of 1 and 4" in notes[0]
    assert notes[1:] == ("context 512 lies outside the only one measured, 128: costs of 128 are used",)


def test_a_baseline_that_was_too_unsteady_is_said_to_be_so():
    points = [CostPoint(rows=1, status="unstable", median_ms=9.0), CostPoint(rows=4, median_ms=10.0)]
    with pytest.raises(InputError, match="measured, but unstable") as refusal:
        CostTable(tuple(points)).step_ms(4)
    assert "quieter machine" in str(refusal.value)
