"""The commands trees, export and import: output, JSON document, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from mtp_bench.cli.export import export, newest_topology
from mtp_bench.cli.import_ import import_
from mtp_bench.cli.trees import app as trees_app
from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, TopologyDocument, TopologyError, chain, named_trees, read_document, resolve

app = typer.Typer()
app.add_typer(trees_app, name="trees")
app.command("export")(export)
app.command("import")(import_)

# Case T5: file content, further options.
BAD_FILES: dict[str, tuple[str, list[str], str]] = {
    "empty": ("[]", [], ""),
    "missing-parent": ("[[0],[0,0,0]]", [], "/1"),
    "missing-root-child": ("[[0,0]]", [], "/0"),
    "duplicate": ("[[0],[0]]", [], "/1"),
    "negative": ("[[0],[-1]]", [], "/1/0"),
    "fraction": ("[[0],[1.5]]", [], "/1/0"),
    "string-rank": ('[[0],["1"]]', [], "/1/0"),
    "not-lists": ("[0,1]", [], "/0"),
    "string": ('"[(0,),(1,)]"', [], ""),
    "top-k": ("[[0],[12]]", ["--top-k", "10"], "/1/0"),
    "heads": ("[[0],[0,0],[0,0,0],[0,0,0,0]]", ["--heads", "3"], "/3"),
}


def run(*arguments: str) -> Result:
    # A wide terminal keeps the table from breaking words that the tests look for.
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "250"})


def document(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("case", sorted(BAD_FILES))
def test_case_t5_exits_2_and_names_the_node(case: str, tmp_path: Path) -> None:
    text, options, pointer = BAD_FILES[case]
    file = write(tmp_path, f"{case}.json", text)
    result = run("trees", "validate", file, *options)
    assert result.exit_code == 2
    assert (pointer or "(document)") in result.stdout
    report = document(run("trees", "validate", file, "--json", *options))["files"][0]
    assert not report["ok"]
    assert report["defects"][0]["pointer"] == pointer


def test_case_t5_combined_file_lists_all(tmp_path: Path) -> None:
    file = write(tmp_path, "all.json", '[[0],[0,0,0],[0],[-1],[1.5],["1"],0,[12],[0,0,0,0]]')
    result = run("trees", "validate", file, "--top-k", "10", "--heads", "3")
    assert result.exit_code == 2
    for part in ("/1", "/2", "/3/0", "/4/0", "/5/0", "/6", "/7/0", "/8", "warning"):
        assert part in result.stdout


def test_legal_trees_exit_0(tmp_path: Path) -> None:
    gap = run("trees", "validate", write(tmp_path, "gap.json", "[[1]]"))
    assert gap.exit_code == 0
    assert "warning" in gap.stdout
    completed = run("trees", "validate", "--complete-prefixes", write(tmp_path, "leaf.json", "[[0,0]]"))
    assert completed.exit_code == 0
    assert "1 added" in completed.stdout
    assert run("trees", "validate", "mc_sim_7b_63", "--top-k", "10", "--heads", "4").exit_code == 0
    assert run("trees", "validate", "mc_sim_7b_63", "--heads", "3").exit_code == 2


def test_several_files_are_all_reported(tmp_path: Path) -> None:
    good, bad = write(tmp_path, "good.json", "[[0]]"), write(tmp_path, "bad.json", "[]")
    result = run("trees", "validate", bad, good, "--json")
    assert result.exit_code == 2
    assert [report["ok"] for report in document(result)["files"]] == [False, True]
    assert isinstance(run("trees", "validate", str(tmp_path / "none.json")).exception, InputError)


def test_list_names_every_tree_with_its_size() -> None:
    plain = run("trees", "list")
    listed = {row["name"]: row for row in document(run("trees", "list", "--json"))["trees"]}
    assert set(listed) == set(named_trees())
    assert all(name in plain.stdout for name in listed)
    assert listed["mc_sim_7b_63"]["level_widths"] == [10, 28, 23, 2]
    assert listed["mc_sim_7b_63"]["source"]["licence"] == "Apache-2.0"


def test_show_draws_and_describes() -> None:
    result = run("trees", "show", "mc_sim_7b_127")
    for part in ("127 nodes", "depth 5", "root\n", "2.42", "derived"):
        assert part in result.stdout
    shown = document(run("trees", "show", "chain:2", "--json"))
    assert shown["paths"] == [[0], [0, 0]]
    assert run("trees", "show", "none").exit_code == 0
    assert isinstance(run("trees", "show", "mc_sim").exception, InputError)


def test_export_then_import_is_the_same_tree(tmp_path: Path) -> None:
    bare, ours = str(tmp_path / "choices.json"), str(tmp_path / "tree.json")
    assert run("export", "--to", "medusa", "--topology", "vicuna_33b_stage2", "--out", bare).exit_code == 0
    result = run("import", bare, "--out", ours, "--json")
    assert document(result)["id"] == resolve("vicuna_33b_stage2").id
    assert read_document(Path(ours)).tree == resolve("vicuna_33b_stage2")
    assert run("trees", "validate", ours).exit_code == 0


def test_export_to_stdout_is_only_the_list() -> None:
    result = run("export", "--to", "medusa", "--topology", "chain:3")
    assert json.loads(result.stdout) == [[0], [0, 0], [0, 0, 0]]
    assert document(run("export", "--to", "medusa", "--topology", "chain:3", "--json"))["id"] == chain(3).id
    assert isinstance(run("export", "--to", "nobody", "--topology", "chain:3").exception, InputError)
    assert isinstance(run("export", "--to", "medusa", "--topology", "none").exception, InputError)


def test_export_takes_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(run("export", "--to", "medusa").exception, InputError)
    for age, length in ((100, 1), (10, 2), (50, 3)):
        file = Path("results") / f"run{length}" / "topology.json"
        TopologyDocument(chain(length)).write(file)
        os.utime(file, (1e9 - age, 1e9 - age))
    assert newest_topology(Path("results")).parent.name == "run2"
    assert json.loads(run("export", "--to", "medusa").stdout) == [[0], [0, 0]]


def test_clipping_a_tree_to_fewer_heads(tmp_path: Path) -> None:
    published, out = str(named_trees()["mc_sim_7b_63"]), tmp_path / "clipped.json"
    result = run("import", published, "--clip-depth", "2", "--clip-rank", "4", "--out", str(out), "--json")
    assert result.exit_code == 0
    assert read_document(out).tree == resolve("mc_sim_7b_63").clip(max_depth=2, max_rank=4)
    assert "dropped 42 of 63" in document(result)["notes"][0]
    assert run("trees", "validate", str(out), "--heads", "2", "--top-k", "5").exit_code == 0


def test_import_of_other_forms(tmp_path: Path) -> None:
    dense = run("import", write(tmp_path, "dense.json", "[3,2,1]"))
    assert json.loads(dense.stdout)["tree"]["level_widths"] == [3, 6, 6]
    assert "15 nodes" in dense.stderr
    leaves = write(tmp_path, "leaves.json", "[[0,0]]")
    assert isinstance(run("import", leaves).exception, TopologyError)
    assert document(run("import", leaves, "--complete-prefixes", "--json"))["num_nodes"] == 2
    literal = write(tmp_path, "tree.txt", "[(0,), (1,), (0, 0)]")
    assert isinstance(run("import", literal).exception, InputError)
    out = tmp_path / "out.json"
    assert run("import", literal, "--format", "vllm", "--method", "eagle", "--out", str(out)).exit_code == 0
    imported = read_document(out)
    assert imported.tree == StaticTree.from_paths([[0], [1], [0, 0]])
    assert imported.method == "eagle"
    assert imported.source["imported_from"] == "tree.txt"
    for option in (["--format", "x"], ["--method", "x"]):
        assert isinstance(run("import", leaves, *option).exception, InputError)
