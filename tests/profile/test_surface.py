"""The cost surface: rows follow the curve, time is shared out, memory ends cells only, and a run resumes or refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import random_heads, save_tiny_model, tiny_base

from mtp_bench.cli import run
from mtp_bench.cost import CostPoint, CostTable, read_points
from mtp_bench.errors import InputError
from mtp_bench.models.base import BaseModel
from mtp_bench.profile import costs, surface
from mtp_bench.profile.cells import Cell
from mtp_bench.profile.surface import SurfaceOptions, default_points, measure_surface
from mtp_bench.profile.timings import TimingFolder
from mtp_bench.runs import RunFolder

Law = Callable[[CostPoint], float]


class FakeDevice:
    """Calls take what a law says instead of being made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, law: Law) -> None:
        self.now, self.law, self.timed = 0.0, law, Counter[tuple[int, int, int]]()
        monkeypatch.setattr("mtp_bench.profile.costs.time.perf_counter", lambda: self.now)
        monkeypatch.setattr(costs, "_time_ms", self.time_ms)

    def time_ms(self, cell: Cell, device: Any) -> float:
        point = cell.point
        self.timed[point.batch, point.context, point.rows] += 1
        ms = self.law(point)
        self.now += ms / 1e3
        return ms


def steps(point: CostPoint) -> float:
    """Jumps after 16 rows, and after 48 in long contexts."""
    return 10.0 + 5 * (point.rows > 16) + 4 * (point.rows > 48 and point.context > 20)


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base()


def test_every_context_gets_its_own_rows(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDevice(monkeypatch, steps)
    options = SurfaceOptions(contexts=(8, 40), points=14, rounds=5)
    found = measure_surface(base, None, options, TimingFolder(tmp_path, "a"))
    rows = {context: {p.rows for p in found.points if p.context == context} for context in (8, 40)}
    assert {16, 17} <= rows[8] & rows[40]
    assert {48, 49} <= rows[40]
    assert 49 not in rows[8]
    assert [len(some) for some in rows.values()] == [14, 14]
    assert {(p.n, p.status) for p in found.points} == {(5, "ok")}
    assert found.left_out == ()
    table = CostTable(found.points)
    assert all(
        table.step_ms(n, context=40) == pytest.approx(steps(CostPoint(rows=n, context=40))) for n in range(1, 65)
    )


def test_scouts_do_not_count_and_cost_less_than_the_timing(
    base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(monkeypatch, steps)
    options = SurfaceOptions(contexts=(8,), points=default_points(64))
    found = measure_surface(base, None, options, TimingFolder(tmp_path, "a"))
    assert {p.n for p in found.points} == {20}
    final = 20 * len(found.points)
    warm_up = 3 * len(found.points)
    assert final < device.timed.total() - warm_up < 1.75 * final


def test_no_scouts_where_every_row_is_measured_anyway(
    base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(monkeypatch, steps)
    measure_surface(base, None, SurfaceOptions(max_rows=2, contexts=(8,), rounds=5), TimingFolder(tmp_path, "a"))
    assert set(device.timed.values()) == {3 + 5}


def test_time_is_shared_out_fairly(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batch sizes in three seconds: the small one needs less than its share, the others get the rest."""
    device = FakeDevice(monkeypatch, lambda p: 0.5 if p.batch == 1 else 10.0 * p.batch)
    options = SurfaceOptions(contexts=(8,), batches=(1, 2, 4), points=14, rounds=20, max_minutes=3 / 60)
    found = measure_surface(base, None, options, TimingFolder(tmp_path, "a"))
    spent = dict.fromkeys(options.batches, 0.0)
    for (batch, _, _), times in device.timed.items():
        spent[batch] += times * device.law(CostPoint(batch=batch)) / 1e3
    assert spent[1] < 0.5
    share = (3 - spent[1]) / 2
    one_round = {batch: 14 * 10.0 * batch / 1e3 for batch in (2, 4)}
    assert share <= spent[2] <= share + one_round[2]
    assert 3 < device.now <= 3 + one_round[4] + 3 * 7 * 0.04, "bounded by a round, or warming up"
    assert not any("batch 1" in text for text in found.left_out)
    assert any(text.startswith("batch 2: ") and "of 20 timings of every cell" in text for text in found.left_out)
    assert any(text.startswith("batch 4, context 8: 7 of 14 rows") for text in found.left_out) or any(
        text.startswith("batch 4: ") for text in found.left_out
    )
    for point in found.points:
        assert point.status == ("ok" if point.n >= 3 else "unstable")


def test_batch_sizes_that_no_time_is_left_for_are_named(
    base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeDevice(monkeypatch, lambda p: 1000.0)
    options = SurfaceOptions(contexts=(8,), batches=(1, 2), rounds=20, max_minutes=0.01)
    found = measure_surface(base, None, options, TimingFolder(tmp_path, "a"))
    assert found.left_out[-1] == "batch 2: not measured"
    assert "batch 1: 19 of 20 timings of every cell" in found.left_out


def test_what_is_kept_is_not_timed_again(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the time box cut, since the time spent is kept too."""
    device = FakeDevice(monkeypatch, steps)
    options = SurfaceOptions(contexts=(8, 40), batches=(1, 2), points=14, rounds=20, max_minutes=0.15)
    heads = random_heads(base)
    first = measure_surface(base, heads, options, TimingFolder(tmp_path, "a"))
    assert first.left_out
    device.timed.clear()
    again = measure_surface(base, heads, options, TimingFolder(tmp_path, "a"))
    assert (again.points, again.left_out, device.timed.total()) == (first.points, first.left_out, 0)
    measure_surface(base, heads, options, TimingFolder(tmp_path, "another key"))
    assert device.timed.total() > 100


def test_a_cell_without_memory_ends_alone(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def law(point: CostPoint) -> float:
        if point.rows > 16 and point.context == 40:
            raise MemoryError
        return 10.0 + point.rows

    FakeDevice(monkeypatch, law)
    found = measure_surface(base, None, SurfaceOptions(contexts=(8, 40), rounds=5), TimingFolder(tmp_path, "a"))
    status = {(p.context, p.rows): p.status for p in found.points}
    assert status[40, 32] == status[40, 64] == "oom"
    assert {s for (context, rows), s in status.items() if context == 8 or rows <= 16} == {"ok"}
    assert CostTable(found.points).rows_limit(context=40) == 16


def test_contexts_and_batches_without_memory_are_marked(
    base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(base: BaseModel, *, batch: int, length: int, rows: int) -> None:
        if batch * length > 200:
            raise InputError("does not fit", where="memory")

    FakeDevice(monkeypatch, steps)
    monkeypatch.setattr(surface, "check_memory", check)
    options = SurfaceOptions(contexts=(8, 100), batches=(1, 2, 4), rounds=5)
    found = measure_surface(base, None, options, TimingFolder(tmp_path, "a"))
    status = {(p.batch, p.context): p.status for p in found.points}
    assert status == {(1, 8): "ok", (1, 100): "ok", (2, 8): "ok", (2, 100): "oom", (4, 8): "oom", (4, 100): "oom"}
    with pytest.raises(InputError, match="does not fit"):
        measure_surface(base, None, SurfaceOptions(contexts=(300,)), TimingFolder(tmp_path, "b"))


@pytest.fixture
def command(tmp_path: Path, any_spread_will_do: None) -> list[str]:
    model = save_tiny_model(tiny_base(), tmp_path / "model")
    settings = ["--dtype", "fp32", "--device", "cpu", "--engine", "eager", "--max-rows", "8", "--rounds", "3"]
    return ["measure-cost", "--model", str(model), *settings, "--context", "16", "--out", str(tmp_path / "costs")]


def test_a_run_has_floors_limits_and_is_kept(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--batch", "1,2", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out.strip().splitlines()[-1])
    assert (document["cells"], document["ok"], document["left_out"]) == (16, 16, [])
    folder = RunFolder(tmp_path / "costs")
    assert sorted(path.name for path in folder.path.iterdir()) == ["cost.csv", "run.json"]
    manifest = folder.read_manifest()
    limits = manifest["device_limits"]
    for point in read_points(folder.cost):
        rows = point.rows * point.batch
        least = 2 * 4 * 3 * 32 * 32 * rows / limits["flops_per_s"]  # the attention's projections alone
        assert point.floor_ms > 1e3 * least > 0
    assert "costs are more than 3x their roofline floor" in printed.err, "a tiny model is all overhead"
    before = folder.cost.read_bytes()
    assert run([*command, "--batch", "1,2"]) == 0
    assert "keeping" in capsys.readouterr().err
    assert folder.cost.read_bytes() == before
    assert run([*command, "--batch", "1,4"]) == 2
    assert "another model, machine or settings" in capsys.readouterr().err
    assert folder.cost.read_bytes() == before


def test_a_profile_is_not_overwritten(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(tmp_path / "costs").write_manifest({"kind": "profile", "key": "x"})
    assert run(command) == 2
    assert "or a profile" in capsys.readouterr().err
    assert RunFolder(tmp_path / "costs").read_manifest()["kind"] == "profile"


def test_two_processes_do_not_measure_into_one_folder(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "costs")
    with folder.exclusive():
        assert run(command) == 2
        assert "another process is working in this folder" in capsys.readouterr().err
    assert not folder.path.exists(), "nothing was written"
    assert run(command) == 0, "a lock ends with its holder"


def test_nothing_usable_is_an_error_that_says_why(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--max-minutes", "0.0001"]) == 2
    message = capsys.readouterr().err
    assert "no cost could be measured" in message
    assert "more --max-minutes" in message
    assert not (tmp_path / "costs" / "cost.csv").exists()
