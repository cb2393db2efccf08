"""vLLM as an arm: the real worker and the real pipes, with a stand-in for vLLM itself on the worker's path."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import ONEHOT, onehot_base

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import (
    ENGINE_BASELINE,
    LOOKUP_TOKENS,
    VLLM_BASELINE,
    VLLM_LOOKUP,
    WARM_UP_TOKENS,
    run_bench,
)
from mtp_bench.decode.vllm import worker as worker_module
from mtp_bench.decode.vllm.client import Vllm, VllmSettings, vllm_arms, vllm_worker
from mtp_bench.errors import InputError

STAND_IN = Path(__file__).with_name("stand_in")
LENGTH = 25
ANSWERS = [
    Answer(name, "test", [start], [(start + 1 + i) % ONEHOT for i in range(LENGTH)], 0, "length")
    for start, name in enumerate(("a", "b", "c"))
]
SETTINGS = VllmSettings("model", "float32", 64, (0,), ())


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([[answer.prompt, answer.tokens] for answer in ANSWERS]))
    monkeypatch.setenv("STAND_IN_ANSWERS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))


def talking(tmp_path: Path, *replies: str) -> str:
    """An interpreter that says these lines where replies go, and ends when it is asked something."""
    script = tmp_path / "python"
    lines = "".join(line + "\n" for line in replies)
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "with os.fdopen(json.loads(sys.argv[2])['replies'], 'w') as out:\n"
        f"    out.write({lines!r})\n    out.flush()\n    sys.stdin.readline()\n"
    )
    script.chmod(0o755)
    return str(script)


def test_decodes_prompt_by_prompt_among_the_other_arms(stand_in: None) -> None:
    base = onehot_base()
    seen: list[str] = []
    with vllm_arms(base, sys.executable, ANSWERS, lookup=True) as workers:

        def noted(answer: Answer, worker: Vllm) -> object:
            seen.append(answer.id)
            return worker.arm(answer)

        rows = run_bench(
            base, {}, ANSWERS, repeats=2, with_hf=False, between=lambda: seen.append("|"),
            more={name: lambda answer, worker=worker: noted(answer, worker) for name, worker in workers.items()},
        )  # fmt: skip
    assert "".join(seen) == "aa" + 2 * "aa|bb|cc|"
    assert {row.arm for row in rows} == {ENGINE_BASELINE, VLLM_BASELINE, VLLM_LOOKUP}
    for row in rows:
        assert (row.first_divergence, row.tokens, row.tokens_in_steps) == (None, LENGTH, LENGTH - 1)
        assert row.prefill_s > 0
        assert row.decode_s > 0
    assert {row.steps for row in rows if row.arm == VLLM_BASELINE} == {LENGTH - 1}
    # Everything drafted is accepted, so a pass emits one more than that.
    assert {row.steps for row in rows if row.arm == VLLM_LOOKUP} == {-(-(LENGTH - 1) // (LOOKUP_TOKENS + 1))}


def test_told_what_the_other_arms_are_told(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    base = onehot_base()
    with vllm_arms(base, sys.executable, ANSWERS) as workers:
        assert list(workers) == [VLLM_BASELINE]
        facts = workers[VLLM_BASELINE].facts
    assert (facts["vllm"], facts["torch"], facts["dtype"]) == ("0.0.stand-in", "0.0+stand.in", "float32")
    assert (facts["prefix_caching"], facts["lookup_tokens"]) == (False, None)
    assert facts["max_length"] == min(2048, base.max_positions)
    environment = facts["environment"]
    assert environment["OMP_NUM_THREADS"] == str(min(torch.get_num_threads(), len(os.sched_getaffinity(0))))
    assert environment["VLLM_CPU_OMP_THREADS_BIND"].count(",") == int(environment["OMP_NUM_THREADS"]) - 1
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2", "the user's own settings stay"


def test_stops_at_the_models_end_tokens(stand_in: None) -> None:
    with vllm_worker(sys.executable, replace(SETTINGS, end_tokens=(5, 9))) as worker:
        assert worker.arm(ANSWERS[0]).tokens == [1, 2, 3, 4, 5]
        short = worker.arm(replace(ANSWERS[1], tokens=ANSWERS[1].tokens[:2]))
    assert short.tokens == [2, 3]
    assert (short.first_tokens, short.steps) == (1, 1)


def test_without_a_python_there_is_no_arm() -> None:
    with vllm_arms(onehot_base(), None, ANSWERS) as workers:
        assert workers == {}
    with (
        pytest.raises(InputError, match="name its Python with --vllm"),
        vllm_arms(onehot_base(), None, [], lookup=True),
    ):
        pass


def test_ends_with_the_block(stand_in: None) -> None:
    with vllm_worker(sys.executable, SETTINGS) as worker:
        assert worker.process.poll() is None
    assert worker.process.returncode == 0
    with pytest.raises(KeyboardInterrupt), vllm_worker(sys.executable, SETTINGS) as worker:
        raise KeyboardInterrupt
    assert worker.process.returncode == -signal.SIGKILL


def test_death_in_the_middle_says_its_last_words(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_DIES_AT", "2")
    with vllm_worker(sys.executable, SETTINGS) as worker:
        arms = {VLLM_BASELINE: worker.arm}
        with pytest.raises(InputError, match=r"ended \(exit code 1\)\n(  \| .*\n)+  \| MemoryError: no room") as caught:
            run_bench(onehot_base(), {}, ANSWERS, repeats=1, with_hf=False, more=arms)
    assert caught.value.where == f"--vllm {sys.executable}"
    assert worker.process.returncode == 1


def test_a_python_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(InputError, match="No module named 'vllm'") as caught, vllm_worker(sys.executable, SETTINGS):
        pass
    assert "install vLLM's CPU build" in caught.value.fix


def test_what_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be run"), vllm_worker(str(tmp_path / "missing"), SETTINGS):
        pass
    with pytest.raises(InputError, match=r"ended \(exit code 0\)$"), vllm_worker("true", SETTINGS):
        pass


READY = '{"vllm": "1"}'


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        (["INFO: starting"], "no JSON object: INFO: starting"),
        (["[1]"], "no JSON object"),
        ([READY, '{"tokens": [1]}'], "an answer of another kind"),
        ([READY, '{"tokens": [1], "lengths": [], "prefill_s": 1, "decode_s": 1}'], "an answer of another kind"),
        ([READY, '{"tokens": ["x"], "lengths": [1], "prefill_s": 1, "decode_s": 1}'], "an answer of another kind"),
        ([READY], r"ended \(exit code 0\)"),
    ],
)
def test_another_protocol(tmp_path: Path, replies: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message), vllm_worker(talking(tmp_path, *replies), SETTINGS) as worker:
        worker.arm(ANSWERS[0])


def test_openmp_is_preloaded_beside_what_the_user_preloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module.sys, "prefix", str(tmp_path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    told = {"model": str(tmp_path), "processors": [4, 6]}
    assert "LD_PRELOAD" not in worker_module.prepared(told)
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    found = worker_module.prepared(told)
    assert found["LD_PRELOAD"] == str(library)
    assert (found["OMP_NUM_THREADS"], found["VLLM_CPU_OMP_THREADS_BIND"], found["HF_HUB_OFFLINE"]) == ("2", "4,6", "1")
    monkeypatch.setenv("LD_PRELOAD", "tcmalloc.so")
    assert worker_module.prepared(told)["LD_PRELOAD"] == f"tcmalloc.so:{library}"


def test_a_long_answer_raises_the_limit() -> None:
    base = onehot_base()
    base.config.max_position_embeddings = 5000
    long = replace(ANSWERS[0], prompt=[0] * 2040, tokens=[1] * 9)
    assert VllmSettings.like(base, ANSWERS).max_length == 2048
    assert VllmSettings.like(base, [long]).max_length == 4096
    assert VllmSettings.like(base, [replace(long, prompt=[0] * 4900)]).max_length == 5000


def test_warm_up_is_short(stand_in: None) -> None:
    """The first request asks for a few tokens of the first answer only."""
    base, asked = onehot_base(), []
    with vllm_arms(base, sys.executable, ANSWERS) as workers:
        worker = workers[VLLM_BASELINE]
        more = {VLLM_BASELINE: lambda answer: asked.append(len(answer.tokens)) or worker.arm(answer)}
        run_bench(base, {}, ANSWERS[:1], repeats=1, with_hf=False, more=more)
    assert asked == [WARM_UP_TOKENS, LENGTH]
