"""Every defect of a list of paths is found, at its JSON pointer, and all of them at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.topology import StaticTree, TopologyError
from mtp_bench.topology.validate import Defect, errors_of, find_path_defects

# (value, options, [(pointer, code)]): one defect each, as people really write them.
SINGLE: list[tuple[Any, dict[str, Any], list[tuple[str, str]]]] = [
    ([], {}, [("", "empty")]),
    ([[0], [0, 0, 0]], {}, [("/1", "missing-parent")]),
    ([[0, 0]], {}, [("/0", "missing-parent")]),
    ([[0], [0]], {}, [("/1", "duplicate")]),
    ([[0], [-1]], {}, [("/1/0", "bad-rank")]),
    ([[0], [1.5]], {}, [("/1/0", "bad-rank")]),
    ([[0], ["1"]], {}, [("/1/0", "bad-rank")]),
    ([[0], [True]], {}, [("/1/0", "bad-rank")]),
    ([[0], [None]], {}, [("/1/0", "bad-rank")]),
    ([[0], [10**5000]], {}, [("/1/0", "bad-rank")]),
    ([[0], [-(10**5000)]], {}, [("/1/0", "bad-rank")]),
    ([[0], []], {}, [("/1", "empty-path")]),
    ([0, 1], {}, [("/0", "path-not-a-list"), ("/1", "path-not-a-list")]),
    ([[0], "1"], {}, [("/1", "path-not-a-list")]),
    ("[(0,),(1,)]", {}, [("", "string")]),
    (7, {}, [("", "not-a-list")]),
    (None, {}, [("", "not-a-list")]),
    ([[0], [0] * 300], {}, [("/1", "too-deep")]),
    ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], {"heads": 3}, [("/3", "deeper-than-heads")]),
]


def _codes(defects: list[Defect], severity: str = "error") -> list[tuple[str, str]]:
    return [(defect.pointer, defect.code) for defect in defects if defect.severity == severity]


@pytest.mark.parametrize(("value", "options", "expected"), SINGLE)
def test_single_defect(value: Any, options: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    defects = find_path_defects(value, **options)
    assert _codes(defects) == expected
    assert all(defect.message for defect in defects)


def test_rank_beyond_top_k_is_also_a_gap() -> None:
    defects = find_path_defects([[0], [12]], top_k=10)
    assert _codes(defects) == [("/1/0", "rank-beyond-top-k")]
    assert _codes(defects, "warning") == [("/1", "sibling-gap")]
    assert "ranks 1 to 11 are" in next(d.message for d in defects if d.code == "sibling-gap")


def test_limits_are_exact() -> None:
    paths = [[rank] for rank in range(11)] + [[0, 0]]
    assert find_path_defects(paths, top_k=11, heads=2) == []
    assert _codes(find_path_defects(paths, top_k=10, heads=1)) == [
        ("/10/0", "rank-beyond-top-k"),
        ("/11", "deeper-than-heads"),
    ]


@pytest.mark.parametrize("paths", [[[1]], [[0], [2]], [[0], [0, 1]]])
def test_gap_is_only_a_warning(paths: list[list[int]]) -> None:
    defects = find_path_defects(paths)
    assert not errors_of(defects)
    assert _codes(defects, "warning") == [(f"/{len(paths) - 1}", "sibling-gap")]
    assert StaticTree.from_paths(paths).num_nodes == len(paths)


def test_one_gap_is_reported_once() -> None:
    assert len(find_path_defects([[2], [3], [4]])) == 1


def test_complete_prefixes_mends_parents_but_nothing_else() -> None:
    assert find_path_defects([[0, 0]], complete_prefixes=True) == []
    assert _codes(find_path_defects([[0, 0], [0, 0], [-1]], complete_prefixes=True)) == [
        ("/1", "duplicate"),
        ("/2/0", "bad-rank"),
    ]
    assert StaticTree.from_paths([[0, 0]], complete_prefixes=True).paths == ((0,), (0, 0))


def test_case_t5_combined_lists_all() -> None:
    value = [[0], [0, 0, 0], [0], [-1], [1.5], ["1"], 0, [12], [0, 1], [0, 1, 0], [0, 1, 0, 0], [], [True, 0]]
    defects = find_path_defects(value, top_k=10, heads=3)
    assert _codes(defects) == [
        ("/1", "missing-parent"),
        ("/2", "duplicate"),
        ("/3/0", "bad-rank"),
        ("/4/0", "bad-rank"),
        ("/5/0", "bad-rank"),
        ("/6", "path-not-a-list"),
        ("/7/0", "rank-beyond-top-k"),
        ("/10", "deeper-than-heads"),
        ("/11", "empty-path"),
        ("/12/0", "bad-rank"),
    ]
    # [0, 1] comes without [0, 0], and [12] without [1] to [11].
    assert _codes(defects, "warning") == [("/7", "sibling-gap"), ("/8", "sibling-gap")]


def test_error_carries_and_prints_every_defect() -> None:
    with pytest.raises(TopologyError) as caught:
        StaticTree.from_paths([[0], [0, 0, 0], [0], [-1]])
    error = caught.value
    assert [defect.pointer for defect in error.defects] == ["/1", "/2", "/3/0"]
    assert error.exit_code == 2
    text = str(error)
    for part in ("3 errors", "/1 ", "[0, 0] is missing", "/2 ", "duplicate of /0", "/3/0", "rank -1 is negative"):
        assert part in text
    assert "--complete-prefixes" in text


def test_string_is_refused_with_advice() -> None:
    (defect,) = find_path_defects("[(0,),(1,)]")
    assert "--format vllm" in defect.fix


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner))


@given(anything)
def test_never_raises_and_agrees_with_the_constructor(value: Any) -> None:
    defects = find_path_defects(value, allow_empty=True)
    assert all(str(defect) for defect in defects)
    if isinstance(value, list):
        if errors_of(defects):
            with pytest.raises(TopologyError):
                StaticTree.from_paths(value)
        else:
            assert len(StaticTree.from_paths(value).paths) == len(value)
