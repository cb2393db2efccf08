"""Text drawings: every node is there, at the right place, and 63 nodes fit on a screen."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.topology import StaticTree, chain, draw, resolve

random_trees = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), max_size=15, unique_by=tuple).map(
    lambda paths: StaticTree.from_paths(paths, complete_prefixes=True)
)


def read_back(drawing: str) -> set[tuple[int, ...]]:
    """Recover the paths from a drawing: three columns are one line of ancestors, a dash is one level."""
    found: set[tuple[int, ...]] = set()
    stack: list[tuple[int, tuple[int, ...]]] = [(-1, ())]
    for line in drawing.splitlines()[1:]:
        match = re.match(r"((?:│  |   )*)[├└]─ (.*)", line)
        assert match, line
        indent = len(match[1]) // 3
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        for leaf in match[2].split("  "):
            path = parent
            for rank in leaf.split(" ─ "):
                path = (*path, int(rank))
                found.add(path)
        stack.append((indent, path))
    return found


@given(random_trees, st.integers(20, 100))
def test_drawing_holds_exactly_the_tree(tree: StaticTree, width: int) -> None:
    assert read_back(draw(tree, width=width)) == set(tree.paths)


def test_small_drawing() -> None:
    tree = StaticTree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 0, 0]])
    expected = "root\n├─ 0\n│  └─ 0  1\n├─ 1 ─ 0 ─ 0\n└─ 2"
    assert draw(tree) == expected


def test_values_are_printed() -> None:
    text = draw(StaticTree.from_paths([[0], [1], [0, 0]]), {(0,): 0.5604, (0, 0): 0.2, (1,): 0.1})
    assert text == "root\n├─ 0 (0.560) ─ 0 (0.200)\n└─ 1 (0.100)"


def test_63_nodes_fit_on_a_screen() -> None:
    text = draw(resolve("mc_sim_7b_63"))
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 80


def test_empty_and_long() -> None:
    assert draw(StaticTree()) == "root"
    assert len(draw(chain(256)).splitlines()) == 2
    caterpillar = StaticTree.from_paths([(0,) * d + (r,) for d in range(200) for r in (0, 1)])
    assert len(draw(caterpillar).splitlines()) == 400
