"""``optimize-tree`` over batch sizes, contexts and categories, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acceptance_cases import synthetic_trace

from mtp_bench.cli import run
from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.trie import TrieSource


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Arguments that name a trace and costs of two batch sizes and two contexts."""
    synthetic_trace(0, prompts=12, length=60).save(tmp_path / "trace.npz")
    points = [
        CostPoint(batch=batch, context=context, rows=rows, median_ms=max(20.0, 0.6 * rows * batch) + context / 1000,
                  low_ms=19.0, high_ms=21.0, n=20)
        for batch in (1, 16) for context in (512, 2048) for rows in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    CostTable(tuple(points)).to_csv(tmp_path / "cost.csv")
    return ["optimize-tree", "--profile", str(tmp_path / "trace.npz"), "--cost", str(tmp_path / "cost.csv")]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])  # type: ignore[no-any-return]


def test_a_map_with_its_files(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "map" / "range.json"
    arguments = ["--batch", "1,16", "--context", "512,1000", "--budget", "15", "--out", str(out), "--json"]
    assert run([*files, *arguments]) == 0
    found = document(capsys)
    assert json.loads(out.read_text()) == found
    assert {path.name for path in (out.parent / "plots").iterdir()} == {
        "operating_range.png", "operating_range.svg", "operating_range.csv",
    }  # fmt: skip
    assert [(one["batch"], one["context"], one["basis"]) for one in found["cells"]] == [
        (1, 512, "measured"), (16, 512, "measured"), (1, 1000, "interpolated"), (16, 1000, "interpolated"),
    ]  # fmt: skip
    assert found["cells"][0]["num_nodes"] > found["cells"][1]["num_nodes"]
    first = {one["name"]: one for one in found["shared_budget"][0]["bounds"]}
    assert set(first) == {"static", "category", "request", "division", "nodes"}
    assert first["nodes"]["speedup"] >= first["division"]["speedup"] >= first["static"]["speedup"]
    assert all(one["assumes"] for one in first.values())


def test_a_front_with_its_files(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "front" / "pareto.json"
    arguments = ["--batch", "1,16", "--context", "512", "--objective", "pareto", "--trials", "20", "--budget", "15"]
    assert run([*files, *arguments, "--out", str(out), "--json"]) == 0
    found = document(capsys)
    assert [one["batch"] for one in found["front"]] == [16, 1]
    assert 0 < found["optuna"]["hypervolume_share"] <= 1 + 1e-12
    assert (out.parent / "plots" / "pareto.csv").is_file()
    assert "weights" not in found
    assert run([*files, *arguments, "--weight", "c=4", "--out", str(out), "--json"]) == 0
    assert document(capsys)["weights"] == {"c": 4}


def test_weights_change_the_question_and_say_so(files: list[str], tmp_path: Path, capsys) -> None:
    arguments = ["--weight", "a=20", "--weight", "b=0.1", "--budget", "15", "--context", "512", "--trials", "0"]
    assert run([*files, *arguments, "--out", str(tmp_path / "top.json"), "--json"]) == 0
    found = document(capsys)
    trace, cost = synthetic_trace(0, prompts=12, length=60), CostTable.from_csv(tmp_path / "cost.csv")
    weighted = TrieSource.from_trace(trace.weighted({"a": 20, "b": 0.1}))
    exact = exact_search(weighted, cost, max_nodes=15, context=512)
    assert found["static"]["paths"] == [list(path) for path in exact.tree.paths]
    assert found["maximised"] == "speed, prompts weighted by category"
    assert json.loads((tmp_path / "top.json").read_text())["profile"]["category_weights"] == {"a": 20, "b": 0.1}
    assert run(["trees", "validate", str(tmp_path / "top.json")]) == 0
    assert [one["category"] for one in found["categories"]] == ["a", "b", "c"]
    assert found["categories"][0]["gain"]["value"] >= 1 - 1e-9 or found["categories"][0]["gain"]["high"] >= 1


def test_the_worst_category_comes_with_its_bound(files: list[str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "top.json"
    arguments = ["--objective", "worst-category", "--context", "512", "--budget", "15", "--trials", "15"]
    assert run([*files, *arguments, "--out", str(out), "--json"]) == 0
    found = document(capsys)
    worst = found["worst_category"]
    assert worst["value"] == min(worst["scores"].values())
    assert worst["unweighted_optimum"]["value"] <= worst["value"] * (1 + 1e-9)
    assert worst["value"] <= worst["upper_bound"] * (1 + 1e-9)
    assert found["optuna_worst_category"]["value"] <= worst["upper_bound"] * (1 + 1e-9)
    assert found["held_out_worst_category"]["worst_category"] > 0
    assert json.loads(out.read_text())["tree"]["paths"] == found["paths"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight", "coding=3"], "no prompt is of category 'coding'\n  -> there are: a, b, c"),
        (["--weight", "a"], "'a' is no weight"),
        (["--weight", "a=x"], "'a=x' is no weight"),
        (["--weight", "a=1", "--weight", "a=2"], "'a=2' is no weight"),
        (["--context", "512,x"], "no list of contexts"),
        (["--context", "0"], "contexts start at 1, not 0"),
        (["--context", "512,9000"], "no costs for context 9000: measured 512, 2048"),
        (["--batch", "1,32", "--context", "512,600"], "no costs for batch 32"),
        (["--objective", "worst-category", "--weight", "a=2"], "knows no weights"),
        (["--objective", "pareto", "--context", "512,600"], "of one context"),
        (["--objective", "pareto", "--kind", "chain"], "among static trees"),
        (["--objective", "tokens", "--batch", "1,16"], "the longest step is the same"),
        (["--objective", "latency"], "objective 'latency'"),
    ],
)
def test_impossible_questions_are_refused(files, arguments, message, tmp_path, capsys) -> None:
    assert run([*files, "--out", str(tmp_path / "out.json"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_table_of_rates_knows_no_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.json").write_text('{"kind": "per_rank", "rates": [[0.6, 0.2]]}')
    for arguments in (["--weight", "a=2"], ["--objective", "worst-category"]):
        assert run(["optimize-tree", "--acceptance", str(tmp_path / "rates.json"), *arguments]) == 2
        assert "knows no categories" in capsys.readouterr().err
