"""Workers that are killed or work side by side, as real processes, on a journal file."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from study_runs import check_study, finish, read_journal, start, write_inputs

TRIALS, KILLS = 120, 20


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Killed each time after another few lines of the journal: anywhere in a trial, or before the first one."""
    journal, chance = tmp_path / "study.journal", random.Random(0)
    arguments = [*write_inputs(tmp_path), "--storage", f"journal:{journal}", "--trials", str(TRIALS)]
    (tmp_path / "go").touch()
    finished: list[int] = []
    for _ in range(KILLS):
        before = journal.stat().st_size if journal.exists() else 0
        grown = chance.choice([0, 1, chance.randrange(2500), chance.randrange(25000)])
        worker = start(tmp_path, arguments)
        while worker.poll() is None and grown and (not journal.exists() or journal.stat().st_size < before + grown):
            time.sleep(0.0005)
        assert worker.poll() is None, "it ended before it was killed: give it more trials"
        worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        if journal.exists() and journal.stat().st_size:
            now = {t.number for t in read_journal(journal) if t.state.name in ("COMPLETE", "PRUNED")}
            assert set(finished) <= now, "a finished trial was lost"
            finished = sorted(now)
    assert 0 < len(finished) < TRIALS
    output = finish(start(tmp_path, arguments))
    assert f"optuna: {TRIALS} trials" in output
    trials = read_journal(journal)
    check_study(trials, TRIALS)
    assert any(trial.state.name == "FAIL" for trial in trials), "no kill hit a trial"
    assert not list(tmp_path.glob("*.lock"))


def test_two_workers_finish_one_study(tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    arguments = [*write_inputs(tmp_path), "--storage", f"journal:{journal}", "--trials", "100", "--unseeded"]
    workers = [start(tmp_path, arguments) for _ in range(2)]
    (tmp_path / "go").touch()
    outputs = [finish(worker) for worker in workers]
    trials = read_journal(journal)
    check_study(trials, 100)
    assert len({trial.user_attrs["worker"]["pid"] for trial in trials if "worker" in trial.user_attrs}) == 2
    best = [line for output in outputs for line in output.splitlines() if line.startswith("optuna:")]
    assert len(best) == 2
    assert best[0] == best[1]
    # Two samplers with the same numbers would propose the same things to one another.
    drawn = [tuple(trial.params.values()) for trial in trials[:20]]
    assert len(set(drawn)) == len(drawn)
