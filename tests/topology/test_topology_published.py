"""The shipped trees: the published lists, their shapes, and the two derived ones regenerated."""

from __future__ import annotations

import heapq
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

import mtp_bench.topology
from mtp_bench.topology import StaticTree, load, named_trees, resolve

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
PUBLISHED = json.loads((DATA / "medusa_trees.json").read_text())
SCHEMA = json.loads((Path(mtp_bench.topology.__file__).parent / "topology.schema.json").read_text())
CUMULATIVE = np.array(json.loads((DATA / "medusa_head_accuracy.json").read_text())["vicuna"]["7b"])
PER_RANK = np.diff(CUMULATIVE, axis=1, prepend=0.0)

SHAPES = {
    "mc_sim_7b_63": (63, 4, (10, 28, 23, 2), 42),
    "vicuna_7b_stage2": (63, 4, (10, 23, 23, 7), 42),
    "vicuna_7b_stage1_ablation": (63, 4, (10, 21, 25, 7), 42),
    "vicuna_7b_stage1": (63, 4, (10, 32, 20, 1), 44),
    "vicuna_13b_stage2": (63, 4, (10, 19, 25, 9), 42),
    "vicuna_13b_stage1": (63, 4, (10, 29, 23, 1), 44),
    "vicuna_33b_stage2": (63, 4, (10, 24, 24, 5), 43),
    "vicuna_33b_stage1": (63, 3, (10, 34, 19), 46),
    "zephyr_stage2": (63, 4, (10, 27, 23, 3), 44),
    "eagle_mc_sim_7b_63": (25, 5, (4, 8, 8, 3, 2), 15),
}
DERIVED = {"mc_sim_7b_127": (127, 2.4282), "mc_sim_7b_255": (255, 2.4538)}


def node_value(path: tuple[int, ...]) -> float:
    """Product model; ranks that the table does not cover count as never accepted."""
    heads, ranks = PER_RANK.shape
    if len(path) > heads or max(path) >= ranks:
        return 0.0
    return float(np.prod([PER_RANK[depth, rank] for depth, rank in enumerate(path)]))


def best_first(num_nodes: int) -> StaticTree:
    """An independent search: always take the open node of largest value."""
    heap: list[tuple[float, int, tuple[int, ...]]] = [
        (-node_value((rank,)), 1, (rank,)) for rank in range(PER_RANK.shape[1])
    ]
    heapq.heapify(heap)
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < num_nodes:
        _, _, path = heapq.heappop(heap)
        chosen.append(path)
        if len(path) < PER_RANK.shape[0]:
            for rank in range(PER_RANK.shape[1]):
                child = (*path, rank)
                heapq.heappush(heap, (-node_value(child), len(child), child))
    return StaticTree.from_paths(chosen)


def expected_tokens(tree: StaticTree) -> float:
    return 1 + sum(map(node_value, tree.paths))


def test_everything_shipped_is_covered_here() -> None:
    assert set(named_trees()) == set(SHAPES) | set(DERIVED)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_published_tree(name: str) -> None:
    tree = resolve(name)
    assert set(tree.paths) == {tuple(path) for path in PUBLISHED[name]}
    assert (tree.num_nodes, tree.depth, tree.level_widths, len(tree.leaves)) == SHAPES[name]
    assert tree.max_rank <= 9
    source = load(name).source
    assert source["licence"] == "Apache-2.0"
    assert source["project"] == ("SafeAILab/EAGLE" if name.startswith("eagle") else "FasterDecoding/Medusa")
    assert "choices.py" in source["reference"]


@pytest.mark.parametrize("name", sorted(SHAPES | DERIVED))
def test_shipped_file_satisfies_the_schema_and_is_canonical(name: str) -> None:
    text = named_trees()[name].read_text()
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert load(name).dumps() == text


def test_schema_is_a_schema_and_refuses() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = load("mc_sim_7b_63").as_dict()
    for bad in (good | {"extra": 1}, good | {"version": "2.0"}, good | {"kind": "chain"}, good | {"source": {"a": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, SCHEMA)


def test_expected_tokens_of_mc_sim_7b_63() -> None:
    assert expected_tokens(resolve("mc_sim_7b_63")) == pytest.approx(2.3400, abs=5e-5)
    assert sum(max(path) >= 5 for path in resolve("mc_sim_7b_63").paths) == 25


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_derived_tree_is_the_optimum(name: str) -> None:
    num_nodes, published = DERIVED[name]
    document = load(name)
    assert document.tree.num_nodes == num_nodes
    assert document.tree.depth == 5
    assert document.tree == best_first(num_nodes)
    assert expected_tokens(document.tree) == pytest.approx(published, abs=5e-5)
    assert document.expected["acceptance_length_incl_bonus"] == pytest.approx(expected_tokens(document.tree), abs=1e-6)
    rates = document.expected["acceptance_rates_unconditional"]
    assert rates == sorted(rates, reverse=True)
    assert 1 + sum(rates) == pytest.approx(published, abs=1e-4)
    assert "derived" in document.source["project"]
    assert "medusa_acc.csv" in document.source["derived_from"]


def test_readme_snippet_reads_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (ROOT / "trees" / "README.md").read_text().split("```")[1].removeprefix("python\n")
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(code, names)
    tree = resolve("mc_sim_7b_63")
    assert names["paths"] == [list(path) for path in tree.paths]
    assert names["mask"] == tree.ancestor_mask.tolist()


def _derivation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive_mc_sim", ROOT / "trees" / "derive_mc_sim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_derived_file_is_what_the_script_writes(name: str) -> None:
    assert _derivation().derive(DERIVED[name][0]).dumps() == named_trees()[name].read_text()
