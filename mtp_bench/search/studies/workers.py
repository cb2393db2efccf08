"""One study worked on by any number of processes, any of which may be killed at any moment.

Everything is decided by what the storage holds and by trial numbers, which it hands out one by one; there is no leader
and no lock. Whatever a worker does, it announces first and then looks at the trials numbered below its own: these are
all visible to it, and none can be added later. So of two workers that do the same, the higher number gives way.

* Trials beyond the total, and the second copy of a queued one, are withdrawn (failed, and not tried again).
* A candidate is claimed by its key; a trial waits for lower ones that have not claimed yet or claim the same.
* A trial whose worker is gone is failed, and its parameters are queued again. "Queued again" is a fact of the storage
  (a trial that carries the task), so it holds too if the one who does it is killed in between.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_bench.errors import InputError
from mtp_bench.search.studies.optuna_package import import_optuna

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

# Attributes of a trial. The key names what the trial stands for, the task what it was queued for.
WORKER, KEY, TASK, WITHDRAWN, RESULT, CACHED = "worker", "tree_id", "task", "withdrawn", "result", "cached"
QUESTION = "question"
# A trial takes milliseconds. From another machine, whose processes cannot be seen, this is certainly a dead one.
STALE_AFTER_S = 120.0
# Between getting a trial and signing it a worker does nothing else, so an unsigned one is soon known to be dead.
UNSIGNED_AFTER_S = 5.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A process that can be told from all others, its pid used again later included.

    Args:
        place: host, boot, and process namespace: where ``pid`` means something.
        start: when it started, in the system's own ticks; None where that is not known.
    """

    place: str
    pid: int
    start: int | None

    @classmethod
    def current(cls) -> Process:
        """This process."""
        return cls(_place(), os.getpid(), (_stat(os.getpid()) or (None, None))[1])

    def is_alive(self) -> bool | None:
        """Whether it runs; None when it belongs to another place, so that nobody can say here."""
        if self.place != _place():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        found = _stat(self.pid)
        # Killed, but not yet collected by its parent: Z.
        return found is None or (found[0] not in "ZX" and found[1] == self.start)


@cache
def _place() -> str:
    boot, namespace = "", ""
    if Path("/proc/self/ns/pid").exists():
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {boot} {namespace}".strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start time) from Linux's process table."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


@dataclass(frozen=True)
class Candidate:
    """What a trial's parameters stand for.

    Args:
        key: candidates with the same key are the same, and are scored once.
        attributes: further attributes of the trial.
        score: the result as plain JSON values, the objective's value first.
    """

    key: str
    attributes: Mapping[str, Any]
    score: Callable[[], list[float | None]]


def open_study(
    storage: BaseStorage, name: str, question: Mapping[str, Any], sampler: BaseSampler, *, direction: str = "maximize"
) -> Study:
    """Create or join the study.

    Args:
        question: what is searched, as plain JSON values. It is kept with the study.

    Raises:
        InputError: the study was made for another question, or by another program.
    """
    optuna = import_optuna()
    if not name:
        raise InputError("a study needs a name", where="--study")
    study: Study = optuna.create_study(
        direction=direction, sampler=sampler, storage=storage, study_name=name, load_if_exists=True
    )
    if QUESTION not in study.user_attrs:
        if study.get_trials(deepcopy=False):
            raise InputError(
                f"study {name!r} was not made by this command",
                where="--study",
                fix="give another name or another storage",
            )
        study.set_user_attr(QUESTION, dict(question))
    kept = study.user_attrs[QUESTION]
    if kept != question:
        names = [key for key in dict.fromkeys([*kept, *question]) if kept.get(key) != question.get(key)]
        differences = ", ".join(_difference(key, kept.get(key), question.get(key)) for key in names)
        raise InputError(
            f"study {name!r} asks another question: {differences}",
            where="--study",
            fix="give another name; trials of two questions are not mixed",
        )
    return study


def _difference(key: str, there: Any, here: Any) -> str:
    # Contents are kept as hashes, which say nothing to anyone.
    hashed = any(isinstance(value, str) and len(value) == 64 for value in (there, here))
    return f"another {key}" if hashed else f"{key} {there} there, {here} here"


def run_trials(
    study: Study,
    propose: Callable[[Trial], Candidate],
    *,
    trials: int,
    queue: Iterable[tuple[str, Mapping[str, Any]]] = (),
    sampler_from: Callable[[int], BaseSampler] | None = None,
    on_trial: Callable[[int], None] | None = None,
) -> None:
    """Work on the study, alone or with others, until it has ``trials`` finished trials in all.

    A candidate known already is told to the sampler as pruned: its score stands with the trial that scored it, and
    the sampler should look elsewhere.

    Args:
        propose: draws a candidate's parameters.
        queue: (task, parameters) to be tried before anything is sampled, by whichever worker comes first.
        sampler_from: a sampler by the number of the first trial this worker draws, so that no two workers of one
            study, and no worker and its successor, draw the same numbers. The sampler of the first one is kept.
        on_trial: called with the number of finished trials whenever it has grown.
    """
    worker = _Worker(study, trials, sampler_from)
    for task, parameters in queue:
        worker.enqueue(task, parameters, {"origin": task})
    known: int | None = None
    while True:
        seen = worker.look()
        if worker.rescue(seen):
            continue
        finished = sum(_counts(trial) for trial in seen)
        if on_trial is not None and known is not None and finished > known:
            on_trial(finished)
        known = finished
        if finished >= trials:
            return
        if finished + sum(_is(trial, "RUNNING") for trial in seen) >= trials:
            time.sleep(POLL_S)  # others are at the last ones, and may die of it
        else:
            worker.run_one(propose)


def retried(trials: Iterable[FrozenTrial]) -> int:
    """How many of a study's trials repeat one whose worker was lost."""
    return sum(_counts(trial) and str(trial.user_attrs.get(TASK)).startswith(_RETRY) for trial in trials)


_RETRY = "retry of trial "


def _is(trial: FrozenTrial, *states: str) -> bool:
    return trial.state.name in states


def _counts(trial: FrozenTrial) -> bool:
    return _is(trial, "COMPLETE", "PRUNED")


@dataclass
class _Worker:
    """What one process does on a study."""

    study: Study
    trials: int
    sampler_from: Callable[[int], BaseSampler] | None
    process: Process = field(default_factory=Process.current)
    _first_seen: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Optuna before 4.3 has no error of its own for it.
        self._finished_by_others = getattr(import_optuna().exceptions, "UpdateFinishedTrialError", RuntimeError)
        self._state = import_optuna().trial.TrialState

    def look(self) -> list[FrozenTrial]:
        """All trials as the storage has them now; they are its own, not to be changed."""
        trials: list[FrozenTrial] = self.study.get_trials(deepcopy=False)
        return trials

    def enqueue(self, task: str, parameters: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
        """Queue a task unless it is there; two workers may do so at once, see :meth:`_superfluous`."""
        if any(_has_task(trial, task) for trial in self.look()):
            return False
        self.study.enqueue_trial(dict(parameters), user_attrs={**attributes, TASK: task})
        return True

    def rescue(self, seen: list[FrozenTrial]) -> bool:
        """Fail the trials of dead workers and queue all failed ones again; whether there was anything to do."""
        lost = [trial for trial in seen if _is(trial, "RUNNING") and self._is_lost(trial)]
        for trial in lost:
            self._tell(trial.number, self._state.FAIL)
        queued = False
        for trial in seen:
            parameters = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            if _is(trial, "FAIL") and WITHDRAWN not in trial.user_attrs and parameters:
                task = f"{_RETRY}{trial.number}"
                if not any(_has_task(other, task) for other in seen):
                    origin = {key: trial.user_attrs[key] for key in ("origin",) if key in trial.user_attrs}
                    queued |= self.enqueue(task, parameters, origin)
        return bool(lost) or queued

    def _is_lost(self, trial: FrozenTrial) -> bool:
        label = trial.user_attrs.get(WORKER)
        if label is None:
            first = self._first_seen.setdefault(trial.number, time.monotonic())
            return time.monotonic() - first > UNSIGNED_AFTER_S
        alive = Process(label["place"], label["pid"], label["start"]).is_alive()
        return time.time() - label["since"] > STALE_AFTER_S if alive is None else not alive

    def run_one(self, propose: Callable[[Trial], Candidate]) -> None:
        try:
            trial = self.study.ask()
        except self._finished_by_others:
            return  # queued, and another worker was faster
        try:
            trial.set_user_attr(WORKER, {**asdict(self.process), "since": time.time()})
            if self.sampler_from is not None and trial.number > 0:
                self.study.sampler = self.sampler_from(trial.number)
            self.sampler_from = None
            superfluous = self._superfluous(trial.number)
            if superfluous:
                trial.set_user_attr(WITHDRAWN, superfluous)
                self._tell(trial.number, self._state.FAIL)
            else:
                self._score(trial, propose(trial))
        except self._finished_by_others:
            return  # another worker took this one for dead and has queued it again
        except BaseException:
            self._tell(trial.number, self._state.FAIL)
            raise

    def _superfluous(self, number: int) -> str:
        """Why a trial is not needed; empty if it is."""
        seen = self.look()
        before = [trial for trial in seen if trial.number < number]
        if sum(not _is(trial, "FAIL") for trial in before) >= self.trials:
            return f"the study has its {self.trials} trials"
        task = next(trial for trial in seen if trial.number == number).user_attrs.get(TASK)
        return f"queued twice: {task}" if task and any(_has_task(trial, task) for trial in before) else ""

    def _score(self, trial: Trial, candidate: Candidate) -> None:
        for name, value in candidate.attributes.items():
            trial.set_user_attr(name, value)
        trial.set_user_attr(KEY, candidate.key)
        known = self._known(trial.number, candidate.key)
        result = candidate.score() if known is None else known
        trial.set_user_attr(RESULT, result)
        trial.set_user_attr(CACHED, known is not None)
        self._tell(trial.number, self._state.COMPLETE if known is None else self._state.PRUNED, result[0])

    def _known(self, number: int, key: str) -> list[float | None] | None:
        """The result of a candidate that another trial has scored, or is about to."""
        while True:
            seen = [trial for trial in self.look() if trial.number != number]
            for trial in seen:
                if _counts(trial) and trial.user_attrs.get(KEY) == key:
                    return list(trial.user_attrs[RESULT])
            if not any(
                trial.number < number and _is(trial, "RUNNING") and trial.user_attrs.get(KEY, key) == key
                for trial in seen
            ):
                return None
            if not self.rescue(seen):
                time.sleep(POLL_S)

    def _tell(self, number: int, state: Any, value: float | None = None) -> None:
        """Finish a trial, unless another worker was faster."""
        value = value if state == self._state.COMPLETE else None
        try:
            self.study.tell(number, value, state, skip_if_finished=True)
        except self._finished_by_others:
            return


def _has_task(trial: FrozenTrial, task: str) -> bool:
    return trial.user_attrs.get(TASK) == task and WITHDRAWN not in trial.user_attrs
