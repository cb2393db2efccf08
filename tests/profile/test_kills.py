"""Twenty random ``kill -9`` each: every one resumes, nothing finished is lost or done again, the files are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from killing import KILLS, Victims, counted, measure_cost_job, profile_job
from tiny_models import save_tiny_model, tiny_base

from mtp_bench.cost import read_points
from mtp_bench.runs import RunFolder

ROUNDS, SCOUT_ROUNDS = 6, 4
EXACT = ("trace.npz", "acceptance.csv")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_profile_survives_twenty_kills(tmp_path: Path) -> None:
    victims = Victims(profile_job)
    whole = tmp_path / "whole"
    life_s = victims.undisturbed_s(whole, tmp_path / "whole.log")
    timings = counted(tmp_path / "whole.log", "timing")
    assert set(timings.values()) == {ROUNDS}
    answers = counted(tmp_path / "whole.log", "answer")
    assert set(answers.values()) == {1}
    profiles = 0
    while victims.kills < KILLS:
        folder, log = tmp_path / f"killed{profiles}", tmp_path / f"killed{profiles}.log"
        kills = victims.until_done(life_s, folder, log)
        profiles += 1
        assert files(folder) == files(whole)
        for name in EXACT:
            assert (folder / name).read_bytes() == (whole / name).read_bytes()
        lines = [sorted((one / "answers.jsonl").read_text().splitlines()) for one in (folder, whole)]
        assert lines[0] == lines[1]
        assert RunFolder(folder).read_manifest()["finished"] is not None
        _not_done_again(counted(log, "answer"), answers, kills)
        _not_done_again(counted(log, "timing"), timings, kills, cells=len(timings))
        assert {point.n for point in read_points(folder / "cost.csv")} == {ROUNDS}
    assert victims.kills == KILLS


@pytest.mark.slow
def test_measure_cost_survives_twenty_kills(tmp_path: Path) -> None:
    model = save_tiny_model(tiny_base(), tmp_path / "model")
    victims = Victims(measure_cost_job, seed=1)
    whole = tmp_path / "whole"
    life_s = victims.undisturbed_s(model, whole, tmp_path / "whole.log")
    commands = 0
    while victims.kills < KILLS:
        folder, log = tmp_path / f"killed{commands}", tmp_path / f"killed{commands}.log"
        kills = victims.until_done(life_s, model, folder, log)
        commands += 1
        assert files(folder) == files(whole) == ["cost.csv", "run.json"]
        points = read_points(folder / "cost.csv")
        assert {(point.n, point.status) for point in points} == {(ROUNDS, "ok")}
        curves = Counter((point.batch, point.context) for point in points)
        assert curves == {(batch, context): 8 for batch in (1, 2) for context in (16, 40)}
        manifest = RunFolder(folder).read_manifest()
        assert manifest["finished"] is not None
        assert manifest["left_out"] == []
        timed = counted(log, "timing")
        planned = {name: SCOUT_ROUNDS if "scout" in name else ROUNDS for name in timed}
        _not_done_again(timed, planned, kills, cells=16)
        chosen = {name for name in timed if "scout" not in name}
        assert len(chosen) == len(points), "rows were chosen once, and the same after every kill"
    assert victims.kills == KILLS


def _not_done_again(done: Counter[str], planned: Mapping[str, int], kills: int, cells: int = 1) -> None:
    """Everything as often as planned; again only what was under way at a kill: an answer, or a round of ``cells``."""
    assert done.keys() == planned.keys()
    again = {name: done[name] - planned[name] for name in planned}
    assert min(again.values()) >= 0, "something finished was lost"
    assert max(again.values()) <= kills
    assert sum(again.values()) <= kills * cells
