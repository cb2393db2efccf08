"""Topology files: byte-deterministic, valid against the schema, refused with every defect when they are not."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtp_bench.topology
from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, TopologyDocument, TopologyError, chain, read_document
from mtp_bench.topology.check import find_defects

SCHEMA = json.loads((Path(mtp_bench.topology.__file__).parent / "topology.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PATHS = [[0], [1], [0, 0], [0, 1]]
DOCUMENT = TopologyDocument(
    StaticTree.from_paths(PATHS),
    method="eagle",
    expected={"acceptance_length_incl_bonus": 2.1},
    profile={"model": "m", "versions": {"torch": "2"}},
    limits={"max_nodes": 4},
    source={"project": "p"},
)
random_trees = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=12, unique_by=tuple).map(
    lambda paths: StaticTree.from_paths(paths, complete_prefixes=True)
)


def _edited(**changes: Any) -> dict[str, Any]:
    value = copy.deepcopy(DOCUMENT.as_dict())
    value.update(changes)
    return value


def _edited_tree(**changes: Any) -> dict[str, Any]:
    value = _edited()
    value["tree"].update(changes)
    return value


@given(random_trees)
def test_text_round_trips_and_satisfies_the_schema(tree: StaticTree) -> None:
    text = TopologyDocument(tree).dumps()
    value = json.loads(text)
    VALIDATOR.validate(value)
    assert find_defects(value) == [] or all(d.code == "sibling-gap" for d in find_defects(value))
    again = TopologyDocument.from_value(value)
    assert again.tree == tree
    assert again.dumps() == text


def test_file_round_trip_keeps_everything(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    DOCUMENT.write(file)
    assert read_document(file) == DOCUMENT
    assert file.read_text() == DOCUMENT.dumps()
    VALIDATOR.validate(json.loads(file.read_text()))


def test_case_t6_same_bytes_for_any_order() -> None:
    shuffled = PATHS.copy()
    random.Random(3).shuffle(shuffled)
    assert TopologyDocument(StaticTree.from_paths(shuffled), "eagle").dumps() == (
        TopologyDocument(StaticTree.from_paths(PATHS), "eagle").dumps()
    )


def test_no_speculation_and_chains() -> None:
    assert TopologyDocument(chain(0)).as_dict()["chain"] == {"num_tokens": 0}
    as_chain = {
        "format": "mtp-bench/topology",
        "version": "1.0",
        "id": chain(4).id,
        "method": "mtp",
        "kind": "chain",
        "chain": {"num_tokens": 4},
    }
    VALIDATOR.validate(as_chain)
    assert TopologyDocument.from_value(as_chain).tree == chain(4)
    for wrong in (-1, 1.0, True, 10**9, None):
        assert [d.pointer for d in find_defects(as_chain | {"chain": {"num_tokens": wrong}})] == ["/chain/num_tokens"]
    assert [d.code for d in find_defects(as_chain, heads=3)] == ["deeper-than-heads"]


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        (_edited(format="other"), ["/format"]),
        (_edited(version="2.0"), ["/version"]),
        (_edited(version="0.9"), ["/version"]),
        (_edited(version=1.0), ["/version"]),
        (_edited(version="1"), ["/version"]),
        (_edited(kind="dynamic_tree"), ["/dynamic"]),
        (_edited(kind="dynamic_tree", dynamic={"depth": 2, "top_k": 2}), ["/dynamic/num_nodes"]),
        (_edited(kind="dynamic_tree", dynamic={"depth": 2, "top_k": 2, "num_nodes": 7}), ["/dynamic"]),
        (_edited(kind="dynamic_tree", dynamic={"depth": 2, "top_k": 2, "num_nodes": 6}), ["/id"]),
        (_edited(kind="batch_schedule"), ["/kind"]),
        (_edited(kind="star"), ["/kind"]),
        (_edited(method="magic", expected=3, extra=1), ["/extra", "/method", "/expected"]),
        (_edited(id="sha256:0"), ["/id"]),
        (_edited(tree={"paths": [[0], [0]]}), ["/tree/paths/1"]),
        (_edited(tree=None), ["/tree"]),
        (_edited_tree(num_nodes=5, depth=1), ["/tree/num_nodes", "/tree/depth"]),
        (_edited_tree(num_nodes=4.0), ["/tree/num_nodes"]),
        (_edited_tree(parents=[-1, 0, 0, 1, 2]), ["/tree/parents"]),
        (_edited_tree(uniform_levels=True, note="x"), ["/tree/note", "/tree/uniform_levels"]),
        (_edited_tree(paths=[[0], [-1], [0, 0, 0]]), ["/tree/paths/1/0", "/tree/paths/2"]),
        # One path removed by hand: nothing that follows from the paths fits any more.
        (
            _edited_tree(paths=PATHS[:3]),
            ["/tree/num_nodes", "/tree/parents", "/tree/level_widths", "/tree/max_rank", "/id"],
        ),
        ({}, ["/format"]),
    ],
)
def test_defects_of_our_json(value: dict[str, Any], pointers: list[str]) -> None:
    if value.get("tree", {}) and value["tree"].get("paths") == PATHS[:3]:
        value["tree"]["max_rank"] = 7
    defects = find_defects(value)
    assert [defect.pointer for defect in defects] == pointers
    with pytest.raises(TopologyError) as caught:
        TopologyDocument.from_value(value, where="file.json")
    assert str(caught.value).startswith("file.json: ")
    assert all(pointer in str(caught.value) for pointer in pointers)


def test_newer_minor_version_may_add_keys() -> None:
    value = _edited(version="1.7", colour="blue")
    assert [d.severity for d in find_defects(value)] == ["warning"]
    assert TopologyDocument.from_value(value).tree == DOCUMENT.tree


def test_newer_major_version_says_to_update() -> None:
    with pytest.raises(TopologyError, match=r"version 2\.1 is newer(.|\n)*update mtp-bench"):
        TopologyDocument.from_value(_edited(version="2.1"))


def test_paths_out_of_order_are_a_warning() -> None:
    value = _edited_tree(paths=PATHS[::-1])
    assert [(d.pointer, d.severity) for d in find_defects(value)] == [("/tree/paths", "warning")]
    assert TopologyDocument.from_value(value).tree == DOCUMENT.tree


def test_bare_list_file(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text("[[0, 0], [0]]")
    assert read_document(file).tree == chain(2)
    file.write_text("[[0, 0]]")
    assert read_document(file, complete_prefixes=True).tree == chain(2)
    with pytest.raises(TopologyError, match=r"t\.json: (.|\n)*/0  \[0, 0\]"):
        read_document(file)


@pytest.mark.parametrize("text", ["", "[[0], ", "[" * 100_000, "[[" + "1" * 5000 + "]]", "[(0,)]"])
def test_damaged_files_are_input_errors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"t\.json"):
        read_document(file)


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        TopologyDocument(chain(1), expected={"tokens_per_second": float("nan")}).dumps()


def test_lines_stay_short() -> None:
    tree = StaticTree.from_paths(
        [[a, b, 0][:n] for a in range(9) for b in range(9) for n in (1, 2, 3) if b == 0 or n > 1]
    )
    assert max(map(len, TopologyDocument(tree).dumps().splitlines())) <= 112
