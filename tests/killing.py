"""Commands that are killed: run in processes forked from a server that has the imports done, ended by SIGKILL.

What a command times is written down, one line per timing, by the process itself, so that a test can count what was
timed although the process was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = Callable[..., None]
KILLS = 20
PRELOADED = [
    "mtp_bench.cli.loading",
    "mtp_bench.heads.load",
    "mtp_bench.models.load",
    "mtp_bench.profile.cost_run",
    "mtp_bench.profile.run",
    "transformers.models.llama.modeling_llama",
    "tiny_models",
    "killing",
]


class Victims:
    """Starts a job over and over, kills it at random moments of its life, and lets it finish in between."""

    def __init__(self, job: Job, seed: int = 0) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._job, self._draw = job, random.Random(seed)
        self.kills = 0
        # So that starting the server is not taken for a part of the job's life.
        self._finish(self._started(self._context.Process(target=_nothing)))

    def undisturbed_s(self, *arguments: Any) -> float:
        """Run to the end; seconds it took."""
        start = time.perf_counter()
        self._finish(self._start(*arguments))
        return time.perf_counter() - start

    def until_done(self, life_s: float, *arguments: Any) -> int:
        """Kill at random moments until one run ends before it is killed, or there were kills enough; then let it end.

        Args:
            life_s: the moments are drawn from this many seconds.

        Returns:
            kills of this job.
        """
        before = self.kills
        while self.kills < KILLS:
            process = self._start(*arguments)
            process.join(self._draw.uniform(0, life_s))
            if process.exitcode is not None:
                assert process.exitcode == 0
                return self.kills - before
            process.kill()
            process.join()
            self.kills += 1
        self._finish(self._start(*arguments))
        return self.kills - before

    def _start(self, *arguments: Any) -> Any:
        return self._started(self._context.Process(target=quietly, args=(self._job, *arguments)))

    @staticmethod
    def _started(process: Any) -> Any:
        process.start()
        return process

    @staticmethod
    def _finish(process: Any) -> None:
        process.join(60)
        assert process.exitcode == 0, f"exit code {process.exitcode}"


def _nothing() -> None:
    pass


def quietly(job: Job, *arguments: Any) -> None:
    """Run a job on one thread; what it prints goes nowhere unless it fails."""
    import torch

    torch.set_num_threads(1)
    printed = open(os.devnull, "w")  # noqa: SIM115
    sys.stderr, errors = printed, sys.stderr
    sys.stdout = printed
    try:
        job(*arguments)
    except BaseException:
        sys.stderr = errors
        raise


def measure_cost_job(model: Path, out: Path, log: Path) -> None:
    """``mtp-bench measure-cost`` on a model folder, with a log of its timings."""
    from mtp_bench.cli import run

    _watch(log)
    arguments = ["--model", str(model), "--dtype", "fp32", "--device", "cpu", "--engine", "eager", "--max-rows", "16"]
    settings = ["--points", "8", "--rounds", "6", "--batch", "1,2", "--context", "16", "--context", "40"]
    assert run(["measure-cost", *arguments, *settings, "--max-minutes", "100", "--out", str(out)]) == 0


def profile_job(out: Path, log: Path) -> None:
    """A profile of a tiny random model with random heads, with a log of its timings and answers."""
    from tiny_models import ToyTokenizer, random_heads, tiny_base

    from mtp_bench.profile.costs import SweepOptions
    from mtp_bench.profile.run import ProfileOptions, run_profile
    from mtp_bench.prompts.prompt import Prompt, PromptSet
    from mtp_bench.runs import RunFolder

    _watch(log)
    base = tiny_base(tokenizer=ToyTokenizer())
    heads = random_heads(base)
    prompts = PromptSet(
        tuple(Prompt(f"p{index}", "writing", (f"Question {index}", "Why?")) for index in range(6)),
        name="tests",
        sha256="0" * 64,
    )
    options = ProfileOptions(max_new_tokens=24, batch=2, live_prompts=2)
    sweep = SweepOptions(rows=(1, 2, 8), contexts=(16, 40), rounds=6)
    run_profile(base, heads, heads.meta, prompts, RunFolder(out), options, sweep, "mtp-bench profile")


def _watch(log: Path) -> None:
    """Write a line to ``log`` before every timing that counts and every answer stored; measure limits quickly."""
    from mtp_bench.decode import answers
    from mtp_bench.profile import accounting, costs, timings

    accounting.COPIED_BYTES, accounting.PRODUCT_SIZE = 1 << 16, {"cpu": 32}
    costs.UNSTABLE_SPREAD = 1e9

    def note(line: str) -> None:
        with open(log, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    opened = timings.TimingFolder.open
    stage = ["sweep"]

    def open_stage(self: timings.TimingFolder, name: str) -> timings.Timings:
        stage[0] = name
        return opened(self, name)

    timed, warmed, stored = costs._time_ms, costs._warm_up, answers.AnswerFile.append
    warming = [False]

    def time_ms(cell: Any, device: Any) -> float:
        if not warming[0]:
            note(f"timing {stage[0]} {cell.name}")
        return timed(cell, device)

    def warm_up(cell: Any, device: Any) -> None:
        warming[0] = True
        warmed(cell, device)
        warming[0] = False

    def append(self: Any, answer: Any) -> None:
        note(f"answer {answer.id}")
        stored(self, answer)

    timings.TimingFolder.open = open_stage  # type: ignore[assignment,method-assign]
    costs._time_ms, costs._warm_up = time_ms, warm_up  # type: ignore[assignment]
    answers.AnswerFile.append = append  # type: ignore[method-assign]


def counted(log: Path, what: str) -> Counter[str]:
    """How often each thing of a kind was done."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return Counter(line.removeprefix(what + " ") for line in lines if line.startswith(what + " "))
