"""The layout of the tree drawing and the values in it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import make_trace

from mtp_bench.report.trees import draw_tree, first_left_out, lay_out, path_values, table_values
from mtp_bench.search import TrieSource, expected_tokens_per_step
from mtp_bench.topology import StaticTree, chain

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=20)
TREES = PATHS.map(lambda paths: StaticTree.from_paths(set(paths), complete_prefixes=True))
TRACE = make_trace(prompts=6)


@settings(deadline=None, max_examples=30)
@given(TREES)
def test_values_sum_to_what_the_search_expects(tree: StaticTree) -> None:
    values = path_values(TRACE, tree)
    assert 1 + sum(values.values()) == pytest.approx(expected_tokens_per_step(TrieSource.from_trace(TRACE), tree))


@settings(deadline=None, max_examples=30)
@given(TREES)
def test_first_left_out_are_the_best_additions(tree: StaticTree) -> None:
    source = TrieSource.from_trace(TRACE)
    inside = {(), *tree.paths}
    additions = [((*parent, rank), value) for parent in inside for rank, value in source.children(parent)]
    best = sorted((value for path, value in additions if path not in inside), reverse=True)[:5]
    found = first_left_out(TRACE, tree, count=5)
    assert list(found.values()) == pytest.approx(best)
    assert not inside & set(found)
    StaticTree.from_paths([*tree.paths, *found])  # every one of them can be added


@settings(deadline=None, max_examples=50)
@given(TREES)
def test_layout_keeps_nodes_apart_and_parents_above_their_children(tree: StaticTree) -> None:
    drawing = lay_out(tree)
    x = {node.path: node.x for node in drawing.nodes}
    assert set(x) == {(), *tree.paths}
    for depth in range(1, tree.depth + 1):
        level = sorted(node.x for node in drawing.nodes if node.depth == depth)
        assert all(right - left >= 1 - 1e-9 for left, right in pairwise(level))
    for parent in x:
        below = [x[path] for path in tree.paths if path[:-1] == parent]
        assert not below or min(below) <= x[parent] <= max(below)


def test_siblings_stand_in_order_of_rank() -> None:
    drawing = lay_out(StaticTree.from_paths([(2,), (0,), (1,), (0, 1), (0, 0)]))
    at = {node.path: node.x for node in drawing.nodes}
    assert at[(0, 0)] < at[(0, 1)] < at[(1,)] < at[(2,)]


def test_left_out_nodes_are_drawn_but_not_counted() -> None:
    drawing = lay_out(chain(2), {(0,): 0.5, (0, 0): 0.2}, {(1,): 0.1})
    assert [(node.path, node.kept) for node in drawing.nodes[1:]] == [((0,), True), ((1,), False), ((0, 0), True)]
    assert drawing.frame()["in_tree"].tolist() == [True, False, True]
    assert "2 nodes, depth 2" in draw_tree(drawing).axes[0].get_title(loc="left")


def test_values_from_a_table_are_products() -> None:
    rates = np.array([[0.5, 0.2], [0.4, np.nan]])
    tree = StaticTree.from_paths([(0,), (1,), (0, 0), (1, 1), (0, 0, 0)])
    values = table_values(rates, tree)
    assert values == pytest.approx({(0,): 0.5, (1,): 0.2, (0, 0): 0.2, (1, 1): 0.0, (0, 0, 0): 0.0})


def test_a_very_deep_chain_is_laid_out() -> None:
    assert lay_out(chain(40)).width == 1
