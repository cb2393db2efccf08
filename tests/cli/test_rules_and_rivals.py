"""``optimize-tree --for`` and ``--rules``, ``evaluate --against optimum``: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from acceptance_cases import synthetic_trace
from test_commands import ACCEPTANCE, COST, last_json

from mtp_bench.cli import run


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    (tmp_path / "rates.json").write_text(json.dumps(ACCEPTANCE))
    (tmp_path / "cost.csv").write_text(COST)
    return ["--acceptance", str(tmp_path / "rates.json"), "--cost", str(tmp_path / "cost.csv")]


@pytest.fixture
def profiled(tmp_path: Path) -> list[str]:
    synthetic_trace(0, prompts=8, length=80).save(tmp_path / "trace.npz")
    (tmp_path / "cost.csv").write_text(COST)
    return ["--profile", str(tmp_path / "trace.npz"), "--cost", str(tmp_path / "cost.csv")]


def test_an_engine_that_loads_only_chains_gets_one(tables: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize-tree", *tables, "--for", "vllm", "--json"]) == 0
    text = capsys.readouterr().out
    document = last_json(text)
    assert document["paths"] == [[0], [0, 0], [0, 0, 0]]
    assert document["exact"]["engine"] == "vllm"
    assert document["exact"]["constraints"] == {"chain": True}
    assert document["exact"]["unconstrained"]["speedup"] == pytest.approx(2.0)
    assert document["exact"]["lost_to_constraints"] == pytest.approx(1 - 1.912 / 2.04)
    assert document["optuna"] is None
    assert "the rules cost 6.27% of speed" in text


def test_rules_make_the_rows_a_multiple(tables: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize-tree", *tables, "--rules", "rows-multiple=8,contiguous", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["num_nodes"] == 7
    assert run(["optimize-tree", *tables, "--rules", "uniform", "--json"]) == 0
    assert "no tree within the rules is better" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--for", "sglan"], "did you mean sglang"),
        (["--rules", "widest=3"], "no rule"),
        (["--rules", "top-k=0"], "top_k"),
    ],
)
def test_rules_that_mean_nothing_are_refused(
    tables: list[str], arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["optimize-tree", *tables, *arguments]) == 2
    assert word in capsys.readouterr().err


def test_without_rules_nothing_is_said_of_them(tables: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize-tree", *tables, "--trials", "5", "--json"]) == 0
    text = capsys.readouterr().out
    assert "rules" not in text
    assert "constraints" not in last_json(text)["exact"]


def test_rules_hold_on_a_trace_for_every_kind(profiled: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize-tree", *profiled, "--for", "vllm-0.20", "--rules", "max-nodes=6", "--json"]) == 0
    document = last_json(capsys.readouterr().out)
    assert {one["kind"] for one in document["kinds"]} <= {"static", "chain"}
    assert document["num_nodes"] <= 6
    assert document["held_out"]["trees"][0]["num_nodes"] <= 6


def test_given_trees_are_set_against_the_best_of_their_size(
    profiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dense.json").write_text(json.dumps({"a": [2, 2], "b": [3], "c": [[0], [1]]}))
    out = tmp_path / "compared"
    arguments = [
        *profiled,
        "--against",
        "optimum",
        "--out",
        str(out),
        "--json",
        "chain:2",
        str(tmp_path / "dense.json"),
    ]
    assert run(["evaluate", *arguments]) == 0
    document = last_json(capsys.readouterr().out)
    assert [line["tree"] for line in document["trees"]] == ["chain:2", "a", "b", "c"]
    assert document["highlight"] == ["chain:2"]
    assert document["summary"]["never_above_the_optimum_on_all_positions"] is True
    frame = pd.read_csv(out / "trees.csv")
    assert (frame["tokens_per_step_all_positions"] <= frame["optimum_all_positions"] + 1e-9).all()
    assert (out / "plots" / "trees.png").stat().st_size > 1000
    assert json.loads((out / "rivals.json").read_text())["summary"] == document["summary"]


def test_many_trees_of_one_file_are_evaluated_too(
    profiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dense.json").write_text(json.dumps({"a": [2, 2], "b": [3]}))
    assert run(["evaluate", *profiled, "--json", "chain:2", str(tmp_path / "dense.json")]) == 0
    assert [one["tree"] for one in last_json(capsys.readouterr().out)["trees"]] == ["chain:2", "a", "b"]


@pytest.mark.parametrize(("against", "word"), [("median", "use optimum"), ("optimum", "need a trace")])
def test_comparisons_that_cannot_be_made_are_refused(
    tables: list[str], against: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", *tables, "--against", against, "chain:2"]) == 2
    assert word in capsys.readouterr().err
