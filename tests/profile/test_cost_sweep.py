"""The cost sweep: robust against outliers, cold starts and failing cells; complete on a real (tiny) model."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import random_eagle, random_heads, tiny_base

from mtp_bench.cost import CostPoint, CostTable, DeviceLimits, write_points
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.eagle import EagleDrafter
from mtp_bench.profile import costs
from mtp_bench.profile.cells import CellMaker, draft_places
from mtp_bench.profile.costs import (
    StepTimer,
    SweepOptions,
    default_rows,
    mean_without_stalls,
    sweep_costs,
    time_cells,
)
from mtp_bench.profile.floors import with_floors
from mtp_bench.profile.timings import Timings
from mtp_bench.topology import StaticTree, chain
from mtp_bench.topology.shapes import typical_tree

CPU = torch.device("cpu")
OPTIONS = SweepOptions(rows=(1, 2), rounds=20)
WARM_UP = 3


class FakeClock:
    """Cells move it instead of taking time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[int] = []
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now)

    def cell(self, rows: int, ms: Callable[[int], float], finite: bool = True) -> costs.Cell:
        """A verify cell whose nth call (from 0, warm-up included) takes ``ms(n)``."""
        count = itertools.count()

        def call() -> None:
            self.calls.append(rows)
            self.now += ms(next(count)) / 1e3

        return costs.Cell(CostPoint(rows=rows, context=128), call, lambda: finite)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.setattr(costs, "_lead_in", lambda cell: None)
    return FakeClock(monkeypatch)


def test_a_verification_is_timed_after_one_of_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """After another cell it takes 50 ms, after itself 10; a draft follows another cell in decoding too."""
    clock = FakeClock(monkeypatch)

    def cell(component: str, rows: int) -> costs.Cell:
        def call() -> None:
            clock.now += 0.010 if clock.calls[-1:] == [rows] else 0.050
            clock.calls.append(rows)

        return costs.Cell(CostPoint(component=component, rows=rows, context=128), call, lambda: True)

    found = time_cells([cell("verify", 1), cell("verify", 2), cell("draft", 0)], CPU, OPTIONS)
    assert [point.n for point in found] == [20] * 3
    assert [point.median_ms for point in found] == pytest.approx([10, 10, 50])


def test_median_and_quartiles(clock: FakeClock) -> None:
    timings = [10 + 0.1 * index for index in range(20)]
    [point] = time_cells([clock.cell(1, lambda n: timings[n - WARM_UP] if n >= WARM_UP else 10)], CPU, OPTIONS)
    low, median, high = np.percentile(timings, [25, 50, 75])
    assert (point.low_ms, point.median_ms, point.high_ms) == pytest.approx((low, median, high))
    assert (point.n, point.status, point.rows, point.context) == (20, "ok", 1, 128)


def test_cold_first_call_does_not_count(clock: FakeClock) -> None:
    [point] = time_cells([clock.cell(1, lambda n: 500 if n == 0 else 10)], CPU, OPTIONS)
    assert (point.median_ms, point.high_ms, point.n) == (pytest.approx(10), pytest.approx(10), 20)


def test_outlier_does_not_move_the_median(clock: FakeClock) -> None:
    [point] = time_cells([clock.cell(1, lambda n: 100 if n == 9 else 10)], CPU, OPTIONS)
    assert (point.median_ms, point.status) == (pytest.approx(10), "ok")


def test_wild_timings_are_marked_unstable(clock: FakeClock) -> None:
    steady, wild = time_cells([clock.cell(1, lambda n: 10), clock.cell(2, lambda n: 10 + 20 * (n % 2))], CPU, OPTIONS)
    assert (steady.status, wild.status) == ("ok", "unstable")
    assert (steady.n, wild.n) == (20, 40)


def test_wild_timings_get_as_many_rounds_again_and_may_settle(clock: FakeClock, tmp_path: Path) -> None:
    """In the first 20 rounds every third timing is a burst of other work; later hardly any is."""
    burst = {WARM_UP + index for index in range(0, 20, 3)}
    cells = [clock.cell(1, lambda n: 10), clock.cell(2, lambda n: 40 if n in burst else 10)]
    done: list[tuple[int, int]] = []
    timings = Timings.resume(tmp_path / "cost.partial.json", "key")
    calm, busy = time_cells(cells, CPU, OPTIONS, lambda *now: done.append(now), timings)
    assert (calm.n, calm.status) == (20, "ok")
    assert (busy.status, busy.median_ms) == ("ok", pytest.approx(10))
    assert 20 < busy.n < 40
    assert done[-1] == (40, 40)
    assert timings.rounds == busy.n
    [_, kept] = time_cells(cells, CPU, OPTIONS, None, Timings.resume(tmp_path / "cost.partial.json", "key"))
    assert kept.n == busy.n


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: you tried ..."),
    ],
    ids=["python", "cuda", "cpu"],
)
@pytest.mark.parametrize("failing_call", [0, WARM_UP, WARM_UP + 5])
def test_out_of_memory_ends_the_cell_only(clock: FakeClock, error: Exception, failing_call: int) -> None:
    def fail(call: int) -> float:
        if call == failing_call:
            raise error
        return 30

    points = time_cells([clock.cell(1, lambda n: 10), clock.cell(2, fail), clock.cell(4, lambda n: 20)], CPU, OPTIONS)
    assert [point.status for point in points] == ["ok", "oom", "ok"]
    assert [point.n for point in points] == [20, 0, 20]
    assert np.isnan(points[1].median_ms)
    assert CostTable(tuple(points)).step_ms(2) == pytest.approx(10 + 10 / 3)


def test_other_errors_are_not_swallowed(clock: FakeClock) -> None:
    def fail(call: int) -> float:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        time_cells([clock.cell(1, fail)], CPU, OPTIONS)


def test_not_a_number_is_marked(clock: FakeClock) -> None:
    points = time_cells([clock.cell(1, lambda n: 10), clock.cell(2, lambda n: 5, finite=False)], CPU, OPTIONS)
    assert [point.status for point in points] == ["ok", "nan"]
    assert len(clock.calls) == 20 + 2 * WARM_UP


def test_order_is_interleaved_and_seeded(clock: FakeClock) -> None:
    def order(seed: int) -> list[list[int]]:
        clock.calls.clear()
        options = SweepOptions(rows=(), rounds=20, seed=seed)
        time_cells([clock.cell(rows, lambda n: 1) for rows in (1, 2, 4, 8)], CPU, options)
        timed = clock.calls[4 * WARM_UP :]
        return [timed[start : start + 4] for start in range(0, len(timed), 4)]

    rounds = order(0)
    assert len(rounds) == 20
    assert all(sorted(one) == [1, 2, 4, 8] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 5
    assert order(0) == rounds
    assert order(1) != rounds


def test_time_limit_keeps_whole_rounds(clock: FakeClock) -> None:
    """Two cells of 10 ms take 60 ms to warm up and 20 ms a round."""
    options = SweepOptions(rows=(), rounds=20, max_seconds=0.15)
    points = time_cells([clock.cell(rows, lambda n: 10) for rows in (1, 2)], CPU, options)
    assert [point.n for point in points] == [5, 5]
    assert {point.status for point in points} == {"ok"}


def test_two_timings_out_of_twenty_tell_no_spread(clock: FakeClock) -> None:
    options = SweepOptions(rows=(), rounds=20, max_seconds=0.09)
    points = time_cells([clock.cell(rows, lambda n: 10) for rows in (1, 2)], CPU, options)
    assert [(point.n, point.status) for point in points] == [(2, "unstable")] * 2


def test_time_spent_before_a_kill_counts(clock: FakeClock, tmp_path: Path) -> None:
    options = SweepOptions(rows=(), rounds=20, max_seconds=0.15)
    time_cells([clock.cell(1, lambda n: 10)], CPU, replace(options, rounds=4), None, Timings(tmp_path / "t", "a"))
    kept = Timings.resume(tmp_path / "t", "a")
    assert (kept.rounds, kept.seconds) == (4, pytest.approx(0.07))
    [point] = time_cells([clock.cell(1, lambda n: 10)], CPU, options, None, kept)
    assert point.n == 4 + 6, "80 ms are left: 30 to warm up again, then rounds until they have passed"
    clock.calls.clear()
    [point] = time_cells([clock.cell(1, lambda n: 10)], CPU, options, None, Timings.resume(tmp_path / "t", "a"))
    assert (point.n, clock.calls) == (10, [])


def test_progress_reaches_its_end(clock: FakeClock) -> None:
    seen: list[tuple[int, int]] = []
    cells = [clock.cell(1, lambda n: 1), clock.cell(2, lambda n: 1, finite=False)]
    time_cells(cells, CPU, OPTIONS, lambda done, planned: seen.append((done, planned)))
    assert seen == [(done, 40) for done in range(1, 41)]


def test_csv_holds_failed_cells_too(clock: FakeClock, tmp_path: Path) -> None:
    def fail(call: int) -> float:
        raise MemoryError

    cells = [clock.cell(1, lambda n: 10), clock.cell(2, fail), clock.cell(4, lambda n: 10, finite=False)]
    write_points(tmp_path / "cost.csv", time_cells(cells, CPU, OPTIONS))
    rows = list(csv.DictReader((tmp_path / "cost.csv").open()))
    assert [(row["rows"], row["status"]) for row in rows] == [("1", "ok"), ("2", "oom"), ("4", "nan")]
    assert rows[1]["median_ms"] == ""
    assert CostTable.from_csv(tmp_path / "cost.csv").max_rows == 1


@pytest.mark.parametrize(("architecture", "kernel"), [("llama", "grouped_sdpa"), ("gemma2", "eager")])
@pytest.mark.parametrize("batch", [1, 2])
def test_sweep_of_a_model(architecture: str, kernel: str, batch: int) -> None:
    base = tiny_base(architecture, kernel)
    options = SweepOptions(rows=(1, 2, 5, 16), contexts=(8, 40), batch=batch, rounds=3)
    points = sweep_costs(base, random_heads(base), options)
    verify = {(point.rows, point.context) for point in points if point.component == "verify"}
    assert verify == set(itertools.product(options.rows, options.contexts))
    drafts = {(point.depth, point.context) for point in points if point.component == "draft"}
    assert drafts == set(itertools.product((1, 2, 3, 4), options.contexts))
    for point in points:
        assert point.status in ("ok", "unstable")
        assert 3 <= point.n <= 6  # timings that spread too widely are taken again
        assert (point.batch, point.dtype) == (batch, "float32")
        assert 0 < point.low_ms <= point.median_ms <= point.high_ms
        assert point.device


def test_sweep_without_heads() -> None:
    points = sweep_costs(tiny_base(), None, SweepOptions(rows=(1, 4), contexts=(8,), rounds=1))
    assert [(point.component, point.rows) for point in points] == [("verify", 1), ("verify", 4)]


def test_sweep_notices_weights_that_are_not_numbers() -> None:
    base = tiny_base()
    with torch.no_grad():
        base.lm_head_weight[0] = float("nan")
    points = sweep_costs(base, None, SweepOptions(rows=(1, 4), contexts=(8,), rounds=1))
    assert {point.status for point in points} == {"nan"}


def test_default_rows_bracket_the_largest_tree() -> None:
    assert default_rows(64) == (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 40, 48, 56, 64, 65)
    assert default_rows(1) == (1, 2)
    assert default_rows(300)[-1] == 300
    for largest in range(1, 258):
        rows = default_rows(largest)
        assert largest in rows
        assert list(rows) == sorted(set(rows))


def test_a_killed_sweep_goes_on_where_it_stopped(clock: FakeClock, tmp_path: Path) -> None:
    """Rounds that are done are kept; the rounds that follow are those an undisturbed sweep would have made."""
    path, killed = tmp_path / "cost.partial.json", WARM_UP + 8

    class Killed(Exception):
        pass

    def until_killed(n: int) -> float:
        if n == killed:
            raise Killed
        return 10.0

    with pytest.raises(Killed):
        time_cells([clock.cell(1, until_killed), clock.cell(2, lambda n: 20)], CPU, OPTIONS, None, Timings(path, "a"))
    kept = Timings.resume(path, "a")
    assert kept.rounds == 8
    clock.calls.clear()
    seen: list[tuple[int, int]] = []
    points = time_cells(
        [clock.cell(1, lambda n: 10), clock.cell(2, lambda n: 20)], CPU, OPTIONS, lambda *at: seen.append(at), kept
    )
    assert [(point.n, point.median_ms) for point in points] == [(20, pytest.approx(10)), (20, pytest.approx(20))]
    assert len(clock.calls) == 2 * WARM_UP + 2 * 12
    assert seen[0] == (16, 40)
    assert seen[-1] == (40, 40)
    assert Timings.resume(path, "another sweep").rounds == 0
    kept.discard()
    assert not path.exists()


def test_every_depth_of_a_deep_draft_is_measured_once(any_spread_will_do: None) -> None:
    base = tiny_base()
    draft = random_eagle(base)
    draft.max_depth = 7
    points = sweep_costs(base, draft, SweepOptions(rows=(1,), contexts=(16,), rounds=3, dynamic_top_ks=(2,)))
    drafts = [(p.component, p.rows, p.depth) for p in points if p.component != "verify"]
    assert sorted(drafts) == [("draft", 1, d) for d in range(1, 8)] + [("draft_dynamic", 2, d) for d in range(1, 8)]
    CostTable(tuple(points))


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_eagle_drafts_are_measured_at_several_widths(
    monkeypatch: pytest.MonkeyPatch, any_spread_will_do: None, variant: str
) -> None:
    """The widths in the table are the rows that the draft layer really runs over, level by level."""
    base = tiny_base()
    draft = random_eagle(base, variant)
    draft.max_depth = 3
    passes: list[int] = []
    run = EagleDrafter.run

    def counted(self: EagleDrafter, cache: TreeCache, tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        passes.append(tokens.shape[1])
        return run(self, cache, tokens, *rest)

    monkeypatch.setattr(EagleDrafter, "run", counted)
    maker = CellMaker(base, draft, batch=2, length=64)
    cells = list(maker.drafts((16,), max_rows=14))
    places = [(cell.point.depth, cell.point.rows) for cell in cells]
    assert places == [(1, 1), *itertools.product((2, 3), (1, 2, 4, 6))]
    for cell in cells:
        passes.clear()
        cell.call()
        settled, *levels = passes
        assert levels == [cell.point.rows] * (cell.point.depth - 1)
        assert settled == cell.point.depth + 1, "what a step may settle at most"
    points = sweep_costs(base, draft, SweepOptions(rows=(1, 14), contexts=(16,), rounds=3))
    measured = [(p.depth, p.rows) for p in points if p.component == "draft"]
    assert measured == places
    table = CostTable(tuple(points))
    assert table.has_widths
    assert table.width_limit(3) == 6
    floors = [p.floor_ms for p in with_floors(points, base, draft, DeviceLimits(1e15, 1e9)) if p.depth == 3]
    assert floors == sorted(set(floors)), "a wider draft computes more"


def test_no_level_is_measured_wider_than_the_vocabulary(any_spread_will_do: None) -> None:
    base = tiny_base()
    places = draft_places(random_eagle(base, "eagle3"), 257)
    assert max(width for _, width in places) == base.vocab_size - 4
    points = sweep_costs(base, random_eagle(base, "eagle3"), SweepOptions(rows=(1, 64), contexts=(16,), rounds=1))
    assert max(p.rows for p in points if p.component == "draft") == base.vocab_size - 4


def test_chains_are_measured_at_every_depth_and_wider_levels_at_three() -> None:
    draft = random_eagle(tiny_base())
    draft.max_depth = 9
    places = draft_places(draft, 10)
    assert [depth for depth, width in places if width == 1] == list(range(1, 10))
    assert [place for place in places if place[1] > 1] == list(itertools.product((2, 5, 9), (2, 4)))
    draft.max_depth = 1
    assert draft_places(draft, 10) == [(1, 1)]


def test_drafts_of_medusa_heads_have_no_width() -> None:
    assert draft_places(random_heads(tiny_base()), 64) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert draft_places(None, 64) == []


def test_drafts_of_heads_with_a_nan_are_marked() -> None:
    base = tiny_base()
    for heads in (random_heads(base), random_eagle(base)):
        next(heads.parameters()).data.view(-1)[0] = float("nan")
        points = sweep_costs(base, heads, SweepOptions(rows=(1,), contexts=(16,), rounds=3))
        assert {p.status for p in points if p.component == "draft"} == {"nan"}
        assert {p.status for p in points if p.component == "verify"} <= {"ok", "unstable"}


def test_steps_are_timed_in_between_other_work() -> None:
    base = tiny_base()
    heads = random_heads(base)
    trees = {
        "none": (None, StaticTree(())),
        "chain": (heads, chain(2)),
        "wide": (heads, typical_tree(12, depth=2, top_k=8)),
    }
    timer = StepTimer(base, trees, 40, batch=2)
    for _ in range(5):
        timer.round()
    found = timer.costs()
    assert set(found) == set(trees)
    assert found["none"].draft_ms == 0 < found["chain"].draft_ms
    assert all(one.step_ms == one.verify_ms + one.draft_ms > 0 for one in found.values())


def test_the_mean_counts_slow_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding takes the slow steps with the fast, so its prediction must too."""
    timer = StepTimer(tiny_base(), {"none": (None, StaticTree(()))}, 40)
    # The first step of a round is not counted, however slow.
    few = costs.STEPS_IN_A_ROW - 1
    times = iter([50.0, *[2.0] * few, 6.0, 70.0, *[2.0 + 4.0 / (few + 1)] * (few + 1)])
    monkeypatch.setattr(costs, "_time_ms", lambda cell, device: next(times))
    timer.round()
    assert timer.costs()["none"].step_ms == 2.0 + 4.0 / (few + 1)
    timer.round("none")
    assert timer.costs()["none"].step_ms == 2.0 + 4.0 / (few + 1)


def test_a_stall_of_the_machine_is_no_step() -> None:
    assert mean_without_stalls([10.0, 12.0, 14.0, 12.0, 900.0]) == 12.0
    assert mean_without_stalls([10.0, 30.0, 10.0]) == pytest.approx(50 / 3)  # slow, but not away
