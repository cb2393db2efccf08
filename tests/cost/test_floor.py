"""The roofline: closed forms for a 7B model on known devices, and what is said of costs under it or far above."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mtp_bench.cost import CostPoint, DeviceLimits, StepWork, floor_warnings, read_points, write_points


@pytest.mark.parametrize(
    ("flops", "bandwidth", "floor", "ridge"),
    [(312e12, 2.04e12, 6.6, 153), (989e12, 3.35e12, 4.0, 295), (989e12, 4.8e12, 2.8, 206), (71e12, 0.936e12, 14.4, 76)],
)
def test_floors_of_a_7b_model(flops: float, bandwidth: float, floor: float, ridge: int) -> None:
    """fp16: A100, H100, H200, RTX 3090. Up to the ridge a step takes as long as reading the weights."""
    limits = DeviceLimits(bandwidth, flops)

    def floor_ms(rows: int, context: int = 0) -> float:
        return StepWork(13.5e9, context * 0.524e6, 2 * 6.75e9 * rows).floor_ms(limits)

    assert floor_ms(1) == pytest.approx(floor, abs=0.05)
    assert floor_ms(ridge - 1) == floor_ms(1) < floor_ms(ridge + 1)
    assert floor_ms(2 * ridge) == pytest.approx(2 * floor, rel=0.02)
    assert floor_ms(1, context=2048) - floor_ms(1) == pytest.approx(2048 * 0.524e6 / bandwidth * 1e3)


def point(rows: int, ms: float, floor_ms: float = 10.0, **place: object) -> CostPoint:
    return CostPoint(rows=rows, median_ms=ms, floor_ms=floor_ms, context=128, **place)  # type: ignore[arg-type]


def test_a_cost_between_its_floor_and_three_times_that_is_fine() -> None:
    assert floor_warnings([point(1, 9.5), point(2, 10.0), point(4, 30.0), CostPoint(rows=8, median_ms=99.0)]) == ()


def test_a_cost_under_its_floor_is_called_a_bug_of_the_timing() -> None:
    [warning] = floor_warnings([point(1, 8.0), point(2, 4.0, batch=3), point(4, 12.0)])
    assert "2 of 3 costs" in warning
    assert "the worst at 40% of it (2 rows at batch 3, context 128)" in warning
    assert "missed a synchronisation" in warning


def test_a_cost_far_above_its_floor_is_called_bound_by_overhead() -> None:
    draft = CostPoint("draft", depth=2, context=128, median_ms=50.0, floor_ms=1.0)
    dynamic = CostPoint("draft_dynamic", rows=8, depth=2, context=128, median_ms=70.0, floor_ms=1.0)
    [warning] = floor_warnings([point(1, 31.0), draft, point(2, 12.0)])
    assert "2 of 3 costs" in warning
    assert "the most 50.0x (a draft to depth 2 at batch 1, context 128)" in warning
    assert "launches and overhead" in warning
    assert "(a draft to depth 2 of a dynamic tree with top_k 8 at batch 1" in floor_warnings([dynamic])[0]


def test_cells_that_failed_are_not_judged() -> None:
    assert floor_warnings([point(1, math.nan, status="oom"), point(2, 1.0, status="unstable")]) == ()


def test_limits_are_the_best_that_was_seen() -> None:
    assert DeviceLimits(5e9, 3e12).best(DeviceLimits(7e9, 2e12)) == DeviceLimits(7e9, 3e12)


def test_floors_survive_the_file_and_may_be_missing_there(tmp_path: Path) -> None:
    points = [point(1, 12.0), CostPoint(rows=2, context=128, median_ms=13.0), point(4, math.nan, 11.0, status="oom")]
    write_points(tmp_path / "cost.csv", points)
    assert [p.floor_ms for p in read_points(tmp_path / "cost.csv")] == pytest.approx(
        [10.0, math.nan, 11.0], nan_ok=True
    )
    (tmp_path / "old.csv").write_text("rows,median_ms\n1,10\n")
    assert math.isnan(read_points(tmp_path / "old.csv")[0].floor_ms)
