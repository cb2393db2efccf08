"""Medusa choices and vLLM token trees: round trips, refusals, what is said about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.engines import EXPORTERS, IMPORTERS
from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, TopologyDocument, TopologyError, chain, named_trees, resolve

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN = json.loads((DATA / "golden_exports.json").read_text())
export_medusa = EXPORTERS["medusa"].export
parse_medusa = IMPORTERS["medusa"].parse
parse_vllm = IMPORTERS["vllm"].parse

trees = (
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=20, unique_by=tuple)
    .map(lambda paths: StaticTree.from_paths(paths, complete_prefixes=True))
)  # fmt: skip


@given(trees)
def test_import_of_export_is_the_tree(tree: StaticTree) -> None:
    text = export_medusa(TopologyDocument(tree)).text
    assert parse_medusa(text, "f", False).tree == tree
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", sorted(named_trees()))
def test_shipped_trees_round_trip(name: str) -> None:
    tree = resolve(name)
    again = parse_medusa(export_medusa(TopologyDocument(tree)).text, "f", False).tree
    assert again.id == tree.id


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_files(name: str) -> None:
    golden = GOLDEN[name]
    tree = StaticTree.from_paths(golden["choices"])
    assert json.loads(export_medusa(TopologyDocument(tree)).text) == golden["choices"]
    assert tree.parents.tolist() == golden["parents"]
    literal = golden["vllm_le_0_20_2"]["speculative_token_tree"]
    for text in (literal, json.dumps(literal), json.dumps(golden["vllm_le_0_20_2"])):
        assert parse_vllm(text, "f", False).tree == tree


def test_export_refuses_what_medusa_cannot_hold() -> None:
    with pytest.raises(InputError, match="no nodes"):
        export_medusa(TopologyDocument(chain(0)))
    with pytest.raises(InputError, match="rank 10"):
        export_medusa(TopologyDocument(StaticTree.from_paths([[r] for r in range(11)])))


def test_export_tells_of_gaps() -> None:
    assert export_medusa(TopologyDocument(chain(2))).notes == ()
    (note,) = export_medusa(TopologyDocument(StaticTree.from_paths([[0], [2]]))).notes
    assert "rank 1 is" in note


@pytest.mark.parametrize(
    ("branching", "widths"),
    [([3, 2, 1], (3, 6, 6)), ([4], (4,)), ([1, 1, 1], (1, 1, 1)), ([3, 3, 3, 2, 3], (3, 9, 27, 54, 162))],
)
def test_dense_branching_vector(branching: list[int], widths: tuple[int, ...]) -> None:
    imported = parse_medusa(json.dumps(branching), "f", False)
    assert imported.tree.level_widths == widths
    assert imported.tree.uniform_levels
    assert str(sum(widths)) in imported.notes[0]


def test_dense_vector_with_leading_one_is_pointed_out() -> None:
    imported = parse_medusa("[1, 7, 6]", "f", False)
    assert imported.tree.level_widths == (1, 7, 42)
    assert "root" in imported.notes[1]


@pytest.mark.parametrize("text", ["[0, 1]", "[3, -2]", "[100, 100, 100]", "[1000000000]"])
def test_impossible_dense_vectors(text: str) -> None:
    with pytest.raises(InputError, match="branching"):
        parse_medusa(text, "f.json", False)


def test_leaves_only() -> None:
    with pytest.raises(TopologyError, match="--complete-prefixes"):
        parse_medusa("[[0, 0, 0], [1]]", "f", False)
    imported = parse_medusa("[[0, 0, 0], [1]]", "f", True)
    assert imported.tree.paths == ((0,), (1,), (0, 0), (0, 0, 0))
    assert imported.notes == ("added 2 missing parents",)


@pytest.mark.parametrize("text", ["", "[[0]", "[" * 100_000, "[(0,)]"])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(InputError, match=r"f\.json: not JSON"):
        parse_medusa(text, "f.json", False)


def test_json_string_needs_the_vllm_format() -> None:
    with pytest.raises(TopologyError, match="--format vllm"):
        parse_medusa('"[(0,),(1,)]"', "f", False)
    assert parse_vllm('"[(0,),(1,)]"', "f", False).tree.paths == ((0,), (1,))


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "[(0,) for _ in 'a']", "(" * 5000, "[(0,", "\0"])
def test_vllm_text_is_never_evaluated(text: str) -> None:
    with pytest.raises(InputError):
        parse_vllm(text, "f", False)


def test_vllm_text_of_absurd_length() -> None:
    with pytest.raises(InputError, match="too many"):
        parse_vllm("[" + "(0,)," * 300_000 + "]", "f", False)
