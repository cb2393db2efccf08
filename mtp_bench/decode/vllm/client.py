"""Our end of vLLM: starts ``worker.py`` with the Python that has it, and hands it one prompt after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import LOOKUP_NGRAM, LOOKUP_TOKENS, VLLM_BASELINE, VLLM_LOOKUP
from mtp_bench.decode.generate import Generation, Request
from mtp_bench.errors import InputError
from mtp_bench.models.base import BaseModel
from mtp_bench.progress import say

WORKER = Path(__file__).with_name("worker.py")
# vLLM compiles anew for another limit, so the limit does not follow every prompt.
SMALLEST_LIMIT = 2048
SECONDS_TO_LEAVE = 20
LAST_LINES = 6


@dataclass(frozen=True)
class VllmSettings:
    """What the worker is told before it loads.

    Attributes:
        model: folder or hub id.
        dtype: as torch calls it.
        max_length: prompt and output in tokens, at most.
        processors: those it runs on, one thread each.
        end_tokens: ids that end an answer.
        lookup_tokens: drafted by prompt lookup in each step; None = plain decoding.
        lookup_ngram: longest n-gram that is looked up.
    """

    model: str
    dtype: str
    max_length: int
    processors: tuple[int, ...]
    end_tokens: tuple[int, ...]
    lookup_tokens: int | None = None
    lookup_ngram: int | None = None

    @classmethod
    def like(cls, base: BaseModel, answers: Sequence[Answer]) -> VllmSettings:
        """Model, dtype, threads and end tokens of ``base``, with room for the longest answer.

        Raises:
            InputError: ``base`` is not on a CPU.
        """
        if base.device.type != "cpu":
            raise InputError(
                f"vLLM's CPU build cannot be compared with decoding on {base.device}",
                where="--vllm",
                fix="leave it out, or use --device cpu",
            )
        longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
        limit = max(SMALLEST_LIMIT, 1 << longest.bit_length())
        dtype = str(base.dtype).removeprefix("torch.")
        return cls(base.source, dtype, min(limit, base.max_positions), _processors(), tuple(sorted(base.eos_ids)))


def _processors() -> tuple[int, ...]:
    """As many of the processors that we may use as torch has threads."""
    ours = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return tuple(ours[: torch.get_num_threads()])


@dataclass(frozen=True, eq=False)
class Vllm:
    """A worker.

    Attributes:
        python: the interpreter that runs it.
        replies: its answers, one a line.
        log: all else that it writes.
        facts: versions and settings, as it told them when it had loaded the model.
    """

    python: str
    process: subprocess.Popen[str]
    replies: IO[str]
    log: IO[str]
    facts: dict[str, Any] = field(default_factory=dict)

    def arm(self, answer: Answer) -> Generation:
        """Decode an answer's prompt greedily, to as many tokens as the answer has.

        Raises:
            InputError: the worker ended, or answered with something else.
        """
        request = Request(answer.id, answer.prompt, len(answer.tokens))
        self._ask({"prompt": request.prompt, "max_new_tokens": request.max_new_tokens})
        reply = self.reply()
        try:
            lengths = [int(length) for length in reply["lengths"]]
            return Generation(
                request,
                tokens=[int(token) for token in reply["tokens"]],
                accepted=[after - before - 1 for before, after in pairwise(lengths)],
                first_tokens=lengths[0],
                prefill_s=float(reply["prefill_s"]),
                decode_s=float(reply["decode_s"]),
                stopped_by="vllm",
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"an answer of another kind: {reply}", where=f"--vllm {self.python}") from error

    def _ask(self, question: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def reply(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            InputError: the worker ended, or wrote no JSON object.
        """
        line = self.replies.readline()
        if not line.endswith("\n"):
            raise self._ended()
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise InputError(f"no JSON object: {line.strip()[:200]}", where=f"--vllm {self.python}")
        return reply

    def _ended(self) -> InputError:
        """What its log says last."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_LEAVE)
        self.log.seek(0)
        last = [f"  | {line.rstrip()}" for line in self.log if line.strip()][-LAST_LINES:]
        without = any("No module named 'vllm'" in line for line in last)
        return InputError(
            "\n".join([f"the vLLM worker ended (exit code {self.process.returncode})", *last]),
            where=f"--vllm {self.python}",
            fix="install vLLM's CPU build into an environment of its own, and name its Python" if without else "",
        )


@contextmanager
def vllm_arms(
    base: BaseModel, python: str | None, answers: Sequence[Answer], *, lookup: bool = False
) -> Iterator[dict[str, Vllm]]:
    """Loaded workers by the name of their arm; none without a Python.

    Args:
        python: an interpreter whose environment has vLLM.
        answers: what they will be asked to decode.
        lookup: one more that drafts by vLLM's own prompt lookup, set as Hugging Face's is.

    Raises:
        InputError: see ``vllm_worker``; or asked for lookup alone.
    """
    if lookup and python is None:
        raise InputError("which vLLM?", where="--vllm-lookup", fix="name its Python with --vllm")
    with ExitStack() as stack:
        workers = {}
        if python is not None:
            plain = VllmSettings.like(base, answers)
            workers[VLLM_BASELINE] = stack.enter_context(vllm_worker(python, plain))
            if lookup:
                drafting = replace(plain, lookup_tokens=LOOKUP_TOKENS, lookup_ngram=LOOKUP_NGRAM)
                workers[VLLM_LOOKUP] = stack.enter_context(vllm_worker(python, drafting))
        yield workers


@contextmanager
def vllm_worker(python: str, settings: VllmSettings) -> Iterator[Vllm]:
    """Start a worker, wait until it has loaded the model, and end it with the block, however that ends.

    Raises:
        InputError: it cannot be started, has no vLLM, or cannot load the model.
    """
    say("starting vLLM, which compiles for a minute or two ...")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process, replies = _start(python, settings, log)
        with replies:
            try:
                worker = Vllm(python, process, replies, log)
                yield replace(worker, facts=worker.reply())
                _leave(process)
            finally:
                # Whatever went wrong, Ctrl-C included: there is nothing in it to be saved.
                _kill(process)


def _start(python: str, settings: VllmSettings, log: IO[str]) -> tuple[subprocess.Popen[str], IO[str]]:
    ours, theirs = os.pipe()
    try:
        # A session of its own: Ctrl-C is ours to handle, and what it starts is ended with it.
        process = subprocess.Popen(
            [python, str(WORKER), json.dumps(asdict(settings) | {"replies": theirs})],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(theirs,),
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        raise InputError(
            f"cannot be run: {error.strerror or error}",
            where=f"--vllm {python}",
            fix="name a Python with vLLM, such as venv/bin/python",
        ) from error
    finally:
        os.close(theirs)
    return process, os.fdopen(ours, encoding="utf-8")


def _leave(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, as it does when its stdin is closed."""
    assert process.stdin is not None
    with suppress(OSError, subprocess.TimeoutExpired):
        process.stdin.close()
        process.wait(SECONDS_TO_LEAVE)


def _kill(process: subprocess.Popen[str]) -> None:
    """End it and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
