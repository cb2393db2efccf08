"""The command line: exit codes, messages that say what, where and what to do, and JSON on the last line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import save_tiny_model, tiny_base

from mtp_bench.cli import run
from mtp_bench.trace import RankTrace

ACCEPTANCE = {"kind": "per_rank", "rates": [[0.6, 0.2, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.05]]}
COST = "rows,median_ms\n1,10.0\n2,10.2\n4,10.2\n5,12.5\n8,12.5\n9,20.0\n16,20.0\n"


@pytest.fixture
def tables(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "rates.json").write_text(json.dumps(ACCEPTANCE))
    (tmp_path / "cost.csv").write_text(COST)
    return str(tmp_path / "rates.json"), str(tmp_path / "cost.csv")


def last_json(text: str) -> dict:  # type: ignore[type-arg]
    return json.loads(text.strip().splitlines()[-1])  # type: ignore[no-any-return]


def test_help_needs_no_torch_and_lists_every_command() -> None:
    code = "import sys, mtp_bench.cli as c; c.run(['--help']); print('torch' in sys.modules, 'pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"
    for name in ("quickstart", "profile", "optimize-tree", "bench", "evaluate", "export", "train-heads", "trees"):
        assert name in result.stdout


def test_optimize_tree_finds_the_fastest_not_the_longest(
    tables: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "top.json"
    assert run(["optimize-tree", "--acceptance", tables[0], "--cost", tables[1], "--out", str(out), "--json"]) == 0
    document = last_json(capsys.readouterr().out)
    assert document["paths"] == [[0], [1], [0, 0]]
    assert document["tokens_per_step"] == pytest.approx(2.04)
    assert document["speedup_predicted"] == pytest.approx(2.0)
    assert document["optuna"]["gap_to_exact"] == 0
    assert json.loads(out.read_text())["tree"]["paths"] == [[0], [1], [0, 0]]
    assert run(["export", "--to", "medusa", "--topology", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == [[0], [1], [0, 0]]


def test_optimize_tree_says_do_not_speculate(
    tables: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dear.csv").write_text("rows,median_ms\n1,10\n2,40\n4,80\n")
    arguments = ["optimize-tree", "--acceptance", tables[0], "--cost", str(tmp_path / "dear.csv"), "--json"]
    assert run([*arguments, "--out", str(tmp_path / "top.json")]) == 0
    output = capsys.readouterr().out
    assert "do not speculate" in output
    assert last_json(output)["num_nodes"] == 0


def test_optimize_tree_on_a_bare_trace_maximises_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = np.tile(np.array([[0, 1], [2, 0], [0, 0], [-1, -1], [-1, -1]], dtype=np.int16), (4, 1))
    ranks[:, :][4::5] = -1
    ranks[3::5, 1] = -1
    trace = RankTrace(ranks, np.arange(0, 21, 5), 3, tuple("abcd"), ("x",) * 4)
    trace.save(tmp_path / "trace.npz")
    assert run(["optimize-tree", "--profile", str(tmp_path / "trace.npz"), "--budget", "2", "--json"]) == 0
    document = last_json(capsys.readouterr().out)
    assert document["objective"] == "tokens"
    assert document["num_nodes"] == 2
    assert document["held_out"] is not None


def test_evaluate_pairs_trees(tables: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "chain:2", "chain:3", "--acceptance", tables[0], "--cost", tables[1], "--json"]) == 0
    trees = last_json(capsys.readouterr().out)["trees"]
    assert [tree["tokens_per_step"] for tree in trees] == pytest.approx([1.84, 1.912])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize-tree", "--profile", "nowhere"], "no such run folder"),
        (["optimize-tree", "--acceptance", "nowhere.json"], "no such file"),
        (["evaluate", "no_such_tree", "--acceptance", "RATES"], "no_such_tree"),
        (["profile", "--shard", "4/4"], "not a shard"),
        (["profile", "--prompts", "BROKEN"], "broken.jsonl:2"),
        (["profile", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["measure-cost", "--model", "no-such-alias", "--load-format", "dummy"], "unknown alias"),
        (["measure-cost", "--load-format", "fast"], "unknown load format"),
        (["measure-cost", "--batch", "1,x"], "no list of batch sizes"),
        (["measure-cost", "--engine", "graph", "--device", "cpu"], "graphs are CUDA's"),
        (["measure-cost", "--engine", "compiled", "--attention", "flex", "--device", "cpu"], "FlexAttention cannot"),
        (["measure-cost", "--load-format", "dummy", "--attention", "flex_attention"], "no arbitrary attention mask"),
        (["train-heads", "--method", "magic"], "unknown value 'magic'"),
        (["train-heads", "--lm-head", "magic"], "unknown value 'magic'"),
        (["bench", "--profile", "nowhere"], "no such run folder"),
        (["export", "--to", "magic", "--topology", "chain:2"], "no exporter"),
        (["merge", "nowhere", "--out", "x"], "no such run folder"),
        (["report", "nowhere"], "no such run folder"),
    ],
)
def test_bad_input_is_exit_code_2_with_advice(
    arguments: list[str],
    message: str,
    tables: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"category": "math", "turns": ["1 + 1?"]}\n{"category": "math", \n')
    names = {"RATES": tables[0], "BROKEN": "broken.jsonl"}
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run([names.get(argument, argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "->" in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_usage_errors_are_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["no-such-command"]) == 2
    assert run(["optimize-tree", "--budget", "many"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_run_yet_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["optimize-tree"]) == 2
    assert "mtp-bench profile" in capsys.readouterr().err


def test_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mtp_bench.topology.named_trees", interrupt)
    assert run(["trees", "list"]) == 130
    assert "run the same command again" in capsys.readouterr().err


def test_a_full_disk_loses_nothing(
    tables: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "top.json"
    out.write_text("old")
    import mtp_bench.files

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mtp_bench.files.os, "fsync", full)
    arguments = ["optimize-tree", "--acceptance", tables[0], "--cost", tables[1], "--trials", "0", "--out", str(out)]
    assert run(arguments) == 2
    assert "No space left" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert list(tmp_path.glob(".*tmp*")) == []


def test_results_record_the_command_that_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another program runs it, whose own arguments are something else."""
    monkeypatch.setattr(sys, "argv", ["suite.py", "--other"])
    out = str(tmp_path / "costs")
    model = save_tiny_model(tiny_base(), tmp_path / "model")
    arguments = ["measure-cost", "--model", str(model), "--dtype", "fp32", "--max-rows", "2", "--rounds", "3"]
    assert run([*arguments, "--context", "16", "--out", out]) == 0
    recorded = json.loads((tmp_path / "costs" / "run.json").read_text())["command"]
    assert recorded == shlex.join(["mtp-bench", *arguments, "--context", "16", "--out", out])
