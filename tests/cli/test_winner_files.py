"""Which files a search for one tree writes: the run's two, or only the one asked for."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from mtp_bench.cli import run
from mtp_bench.topology import read_document

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
from synthetic_run import write_run

QUESTIONS = [[], ["--objective", "tokens"], ["--objective", "worst-category"], ["--rules", "chain"]]


@pytest.mark.parametrize("question", QUESTIONS, ids=["speed", "tokens", "worst category", "rules"])
def test_a_search_saved_elsewhere_leaves_the_run_as_it_is(
    question: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", name="tiny")
    before = shutil.copytree(folder, tmp_path / "before")
    command = ["optimize-tree", "--profile", str(folder), "--budget", "7", "--trials", "0", "--json", *question]
    assert run([*command, "--out", str(tmp_path / "mine.json")]) == 0
    elsewhere = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert elsewhere["topology"] == str(tmp_path / "mine.json")
    for path in before.rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(before)).read_bytes() == path.read_bytes()
    assert run(command) == 0
    here = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert json.loads((folder / "optimize.json").read_text()) == {"schema": "mtp-bench/optimize", "version": 1, **here}
    one, other = (read_document(path) for path in (tmp_path / "mine.json", folder / "topology.json"))
    assert one.topology == other.topology
    assert one.expected == other.expected
    assert [list(path) for path in one.topology.paths] == here["paths"]
    assert one.expected["acceptance_length_incl_bonus"] == pytest.approx(here["tokens_per_step"], abs=1e-6)
    assert ("tokens_per_second" in one.expected) == (here["tokens_per_s"] is not None)
