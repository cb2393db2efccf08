"""Finding a topology by what a user types."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, TopologyDocument, chain, named_trees, resolve
from mtp_bench.topology import named as named_module


def test_names_chains_and_none() -> None:
    assert resolve("mc_sim_7b_63").num_nodes == 63
    assert resolve("chain:4") == chain(4)
    assert resolve("chain:0") == resolve("none") == StaticTree()


def test_file_wins_over_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mc_sim_7b_63").write_text("[[0]]")
    assert resolve("mc_sim_7b_63") == chain(1)


def test_run_folder(tmp_path: Path) -> None:
    TopologyDocument(chain(3)).write(tmp_path / "topology.json")
    assert resolve(str(tmp_path)) == chain(3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mc_sim_7b_36", "mc_sim_7b_63"),
        ("vicuna_7b_stage3", "vicuna_7b_stage2"),
        ("tree.json", "no such file"),
        ("dir/none", "no such file"),
        ("chain:x", "chain:4"),
        ("chain:", "chain:4"),
        ("chain:-1", "chain:4"),
        ("chain:\u00b2", "chain:4"),
        ("chain:99999", "from 0 to"),
        ("dynamic:5,4", "no dynamic tree"),
        ("dynamic:5,x,4", "no dynamic tree"),
        ("dynamic:0,4,4", "depth of a dynamic tree must be an integer from 1"),
        ("dynamic:2,2,7", "keeps 7 nodes of a pool of 6"),
        ("", "no topology"),
    ],
)
def test_errors_help(spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        resolve(spec)


def test_installed_trees_win_over_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "site" / "mtp_bench" / "topology" / "named.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(named_module, "__file__", str(module))
    for folder in (tmp_path / "site" / "trees", tmp_path / "site" / "mtp_bench" / "trees"):
        folder.mkdir()
        assert named_module.trees_folder() == folder
        TopologyDocument(chain(2)).write(folder / f"{folder.parent.name}.json")
    assert list(named_trees()) == ["mtp_bench"]
