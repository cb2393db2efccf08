"""Running ``mtp-bench optimize-tree --storage`` in processes of its own, and reading the study as a stranger would."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.trace import RankTrace

# A worker starts when the file GO appears, so that several start at the same moment.
WORKER = """
import sys, time
from pathlib import Path
import optuna
from mtp_bench import cli
from mtp_bench.search import optimize
go = Path(sys.argv[1])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.002)
sys.exit(cli.run(sys.argv[2:]))
"""


def write_inputs(folder: Path) -> list[str]:
    """A trace and costs; the options that name them."""
    generator = np.random.default_rng(0)
    prompts, length, depth, top_k = 12, 60, 4, 10
    ranks = generator.geometric([0.6, 0.45, 0.35, 0.3], size=(prompts * length, depth)) - 1
    ranks[ranks >= top_k] = -1
    for d in range(1, depth + 1):
        ranks.reshape(prompts, length, depth)[:, length - d :, d - 1] = -1
    offsets = np.arange(prompts + 1, dtype=np.int64) * length
    names = tuple(f"p{i}" for i in range(prompts))
    RankTrace(ranks.astype(np.int16), offsets, top_k, names, ("all",) * prompts).save(folder / "trace.npz")
    points = [CostPoint(rows=n, median_ms=40 + 0.5 * n + 6 * (n > 16)) for n in (1, 2, 4, 8, 16, 17, 32, 33, 64)]
    CostTable(tuple(points)).to_csv(folder / "cost.csv")
    return ["--profile", str(folder / "trace.npz"), "--cost", str(folder / "cost.csv"), "--kind", "static"]


def start(folder: Path, arguments: list[str], *, go: str = "go") -> subprocess.Popen[str]:
    """A process that is ready to run the command once the file ``go`` appears."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder / go), "optimize-tree", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Wait for a worker's end; its output."""
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    return output


def read_study(storage: Any, name: str = "mtp-bench") -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=storage).trials


def read_journal(path: Path) -> list[optuna.trial.FrozenTrial]:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return read_study(optuna.storages.JournalStorage(backend))


def check_study(trials: list[optuna.trial.FrozenTrial], total: int) -> None:
    """Exactly ``total`` finished trials, numbered without a gap; nothing lost, nothing done twice."""
    assert [trial.number for trial in trials] == list(range(len(trials)))
    finished = [trial for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    waiting = [trial for trial in trials if trial.state.name == "WAITING"]
    assert len(finished) == total
    assert len(finished) + len(failed) + len(waiting) == len(trials), "a trial is still running"
    scored = Counter(trial.user_attrs["tree_id"] for trial in finished if not trial.user_attrs["cached"])
    assert set(scored.values()) == {1}, "a tree was scored twice"
    assert {trial.user_attrs["tree_id"] for trial in finished} == set(scored), "a tree was never scored"
    values = {t.user_attrs["tree_id"]: t.user_attrs["result"] for t in finished if not t.user_attrs["cached"]}
    assert all(trial.user_attrs["result"] == values[trial.user_attrs["tree_id"]] for trial in finished)
    # Each trial that was lost after it had drawn something is there once more, with the same parameters.
    tasks = Counter(t.user_attrs["task"] for t in trials if "task" in t.user_attrs and "withdrawn" not in t.user_attrs)
    assert not tasks or set(tasks.values()) == {1}, "a task was run twice"
    for trial in failed:
        drawn = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        if drawn and "withdrawn" not in trial.user_attrs:
            (again,) = [t for t in trials if t.user_attrs.get("task") == f"retry of trial {trial.number}"]
            assert drawn.items() <= {**again.system_attrs["fixed_params"], **again.params}.items()
