"""Several workers on one study, and what becomes of the trials of dead ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import optuna
import pytest

from mtp_bench.cost import CostPoint
from mtp_bench.search.studies import workers
from mtp_bench.search.studies.fingerprint import fingerprint
from mtp_bench.search.studies.workers import Candidate, Process, open_study, run_trials

QUESTION = {"budget": 3}


def dead_process() -> Process:
    """One that has run here and ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Process(Process.current().place, process.pid, 1)


def label(process: Process, age_s: float = 0.0) -> dict[str, Any]:
    return {**asdict(process), "since": time.time() - age_s}


def propose(trial: optuna.Trial) -> Candidate:
    value = trial.suggest_int("x", 0, 9)
    return Candidate(f"x{value}", {}, lambda: [float(value)])


def new_study(seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return open_study(optuna.storages.InMemoryStorage(), "s", QUESTION, optuna.samplers.RandomSampler(seed=seed))


def begin(study: optuna.Study, worker: dict[str, Any] | None, **attributes: Any) -> optuna.Trial:
    """A trial as a worker leaves it that is killed while scoring."""
    trial = study.ask()
    if worker is not None:
        trial.set_user_attr("worker", worker)
    trial.suggest_int("x", 0, 9)
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    return trial


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_a_dead_workers_trial_is_tried_again_once() -> None:
    study = new_study()
    lost = begin(study, label(dead_process()), origin="chain", tree_id="x?")
    run_trials(study, propose, trials=3)
    first, again, *others = study.trials
    assert first.state.name == "FAIL"
    assert again.user_attrs["task"] == "retry of trial 0"
    assert again.user_attrs["origin"] == "chain"
    assert again.params == lost.params
    assert all("task" not in trial.user_attrs for trial in others)
    assert len(others) == 2
    assert workers.retried(study.trials) == 1
    run_trials(study, propose, trials=5)
    assert Counter(states(study))["FAIL"] == 1


def test_a_retry_that_is_lost_too_is_tried_again() -> None:
    study = new_study()
    begin(study, label(dead_process()))
    for n in range(3):
        workers._Worker(study, 9, None).rescue(study.trials)  # fails the lost one
        workers._Worker(study, 9, None).rescue(study.trials)  # queues it
        assert begin(study, label(dead_process())).number == n + 1
    run_trials(study, propose, trials=1)
    assert states(study) == ["FAIL"] * 4 + ["COMPLETE"]
    assert len({trial.params["x"] for trial in study.trials}) == 1


def test_one_killed_between_failing_and_queueing_loses_nothing() -> None:
    study = new_study()
    lost = begin(study, label(dead_process()))
    study.tell(lost.number, state=optuna.trial.TrialState.FAIL)
    run_trials(study, propose, trials=1)
    assert study.trials[1].params == lost.params


def test_a_task_queued_twice_is_run_once() -> None:
    study = new_study()
    for _ in range(2):
        study.enqueue_trial({"x": 4}, user_attrs={"task": "chain"})
    run_trials(study, propose, trials=3, queue=[("chain", {"x": 4})])
    assert Counter(states(study))["FAIL"] == 1
    assert study.trials[1].user_attrs["withdrawn"] == "queued twice: chain"
    assert sum(trial.user_attrs.get("task") == "chain" for trial in study.trials) == 2
    assert Counter(states(study))["COMPLETE"] + Counter(states(study))["PRUNED"] == 3


def test_a_trial_beyond_the_total_is_withdrawn() -> None:
    study = new_study()
    run_trials(study, propose, trials=2)
    workers._Worker(study, 2, None).run_one(propose)
    assert study.trials[2].state.name == "FAIL"
    run_trials(study, propose, trials=3)
    assert len(study.trials) == 4, "it is not tried again"


@pytest.mark.parametrize("age_s", [0.0, 1e6])
def test_of_another_machine_only_the_age_is_known(age_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    study = new_study()
    begin(study, label(Process("elsewhere", 1, 1), age_s))
    if age_s == 0:
        assert not workers._Worker(study, 1, None).rescue(study.trials)
        monkeypatch.setattr(workers, "STALE_AFTER_S", 0.2)
    run_trials(study, propose, trials=1)
    assert states(study) == ["FAIL", "COMPLETE"]


def test_an_unsigned_trial_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "UNSIGNED_AFTER_S", 0.2)
    study = new_study()
    study.ask()
    began = time.monotonic()
    run_trials(study, propose, trials=1)
    assert time.monotonic() - began >= 0.2
    assert states(study) == ["FAIL", "COMPLETE"]


def test_a_worker_taken_for_dead_does_not_count_twice() -> None:
    study = new_study()

    def slow(trial: optuna.Trial) -> Candidate:
        value = trial.suggest_int("x", 0, 9)

        def score() -> list[float | None]:
            if trial.number == 0:  # meanwhile, elsewhere
                study.tell(0, state=optuna.trial.TrialState.FAIL)
            return [float(value)]

        return Candidate(f"x{value}", {}, score)

    run_trials(study, slow, trials=2)
    assert states(study)[0] == "FAIL"
    assert study.trials[1].params == study.trials[0].params
    assert len(study.trials) == 3


def test_an_error_leaves_the_trial_to_be_tried_again() -> None:
    study = new_study()

    def broken(trial: optuna.Trial) -> Candidate:
        propose(trial)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(study, broken, trials=2)
    assert states(study) == ["FAIL"]
    run_trials(study, propose, trials=2)
    assert study.trials[1].params == study.trials[0].params


@pytest.mark.parametrize("seed", range(5))
def test_workers_at_once_share_the_total_and_score_nothing_twice(seed: int) -> None:
    """Threads stand for processes here: what they do to one another goes through the storage alone."""
    storage, scored = optuna.storages.InMemoryStorage(), []

    def propose_slowly(trial: optuna.Trial) -> Candidate:
        value = trial.suggest_int("x", 0, 15)

        def score() -> list[float | None]:
            time.sleep(0.002)
            scored.append(value)
            return [float(value)]

        return Candidate(f"x{value}", {}, score)

    def work() -> None:
        sampler = optuna.samplers.RandomSampler(seed=seed)
        study = open_study(storage, "s", QUESTION, sampler)
        run_trials(
            study,
            propose_slowly,
            trials=30,
            queue=[("a", {"x": 3}), ("b", {"x": 3}), ("c", {"x": 5})],
            sampler_from=lambda number: optuna.samplers.RandomSampler(seed=1000 * seed + number),
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = optuna.load_study(study_name="s", storage=storage).trials
    assert len(scored) == len(set(scored)) == sum(trial.state.name == "COMPLETE" for trial in trials)
    assert Counter(t.state.name in ("COMPLETE", "PRUNED") for t in trials)[True] == 30
    kept = [t.user_attrs["task"] for t in trials if "task" in t.user_attrs and "withdrawn" not in t.user_attrs]
    assert sorted(kept) == ["a", "b", "c"]
    assert all(
        trial.user_attrs["result"] == [float(trial.params["x"])] for trial in trials if trial.state.name != "FAIL"
    )


# ----- processes


def test_this_process_is_alive_and_an_ended_one_is_not() -> None:
    assert Process.current().is_alive()
    assert dead_process().is_alive() is False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's process table")
def test_a_killed_child_that_nobody_collected_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process(Process.current().place, child.pid, workers._stat(child.pid)[1])  # type: ignore[index]
    assert process.is_alive()
    child.kill()
    while workers._stat(child.pid)[0] != "Z":  # type: ignore[index]
        time.sleep(0.001)
    assert process.is_alive() is False
    child.wait()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's process table")
def test_a_pid_used_again_is_another_process() -> None:
    here = Process.current()
    assert here.start is not None
    assert Process(here.place, here.pid, here.start - 1).is_alive() is False


def test_nobody_knows_about_other_machines() -> None:
    assert Process("elsewhere", os.getpid(), 1).is_alive() is None


# ----- fingerprints


def test_fingerprints_tell_contents_apart() -> None:
    values = [None, 0, 0.0, False, "", "0", [], [0], [[0]], [0, 0], {}, {"a": 1}, {"a": 2}, np.zeros(2), np.zeros(3),
              np.zeros(2, np.int64), np.zeros((2, 1)), CostPoint(rows=1, median_ms=2.0),
              CostPoint(rows=2, median_ms=2.0), ["ab", "c"], ["a", "bc"]]  # fmt: skip
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(np.arange(6).reshape(2, 3).T) == fingerprint(np.arange(6).reshape(2, 3).T.copy())
    with pytest.raises(TypeError, match="no fingerprint of object"):
        fingerprint(object())
