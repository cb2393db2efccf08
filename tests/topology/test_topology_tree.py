"""The derived facts of a tree against brute force over its paths."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, TopologyError, chain

loose_paths = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), max_size=20)
trees = loose_paths.map(lambda paths: StaticTree.from_paths(_closure(paths)))


def _closure(paths: list[list[int]]) -> list[list[int]]:
    found = []
    for path in paths:
        for length in range(1, len(path) + 1):
            if path[:length] not in found:
                found.append(path[:length])
    return found


@given(trees)
def test_arrays_equal_brute_force_over_paths(tree: StaticTree) -> None:
    nodes = [(), *tree.paths]
    assert tree.rows == len(nodes)
    for i, node in enumerate(nodes):
        assert tree.row_of(node) == i
        assert tree.depths[i] == len(node)
        if node:
            assert tree.ranks[i] == node[-1]
            assert tree.parents[i] == nodes.index(node[:-1])
        for j, other in enumerate(nodes):
            assert tree.ancestor_mask[i, j] == (node[: len(other)] == other)
        expected = [nodes.index(node[:d]) if d <= len(node) else -1 for d in range(tree.depth + 1)]
        assert tree.path_rows[i].tolist() == expected
    assert tree.parents[0] == tree.ranks[0] == -1
    assert tree.depth == max(len(node) for node in nodes)
    assert tree.max_rank == max((rank for node in nodes for rank in node), default=-1)
    parents = {node[:-1] for node in tree.paths}
    assert tree.leaves == tuple(i for i, node in enumerate(nodes) if node and node not in parents)
    assert tree.level_widths == tuple(sum(len(n) == d for n in nodes) for d in range(1, tree.depth + 1))
    for array in (tree.parents, tree.depths, tree.ranks):
        assert array.dtype == np.int64
        assert array.shape == (tree.rows,)
    assert tree.ancestor_mask.dtype == np.bool_


@given(trees, st.randoms(use_true_random=False))
def test_order_of_input_does_not_matter(tree: StaticTree, shuffler: random.Random) -> None:
    paths = list(tree.paths)
    shuffler.shuffle(paths)
    again = StaticTree.from_paths([list(path) for path in paths])
    assert again == tree
    assert hash(again) == hash(tree)
    assert again.id == tree.id


@given(trees, trees)
def test_id_separates_different_trees(one: StaticTree, two: StaticTree) -> None:
    assert (one.id == two.id) == (set(one.paths) == set(two.paths))


@given(loose_paths)
def test_complete_prefixes_gives_the_smallest_closed_set(paths: list[list[int]]) -> None:
    unique = [list(path) for path in dict.fromkeys(map(tuple, paths))]
    tree = StaticTree.from_paths(unique, complete_prefixes=True)
    assert set(tree.paths) == {tuple(path) for path in _closure(unique)}
    closed = {path[:-1] for path in map(tuple, unique)} <= {(), *map(tuple, unique)}
    if closed:
        assert StaticTree.from_paths(unique) == tree
    else:
        with pytest.raises(TopologyError, match="missing"):
            StaticTree.from_paths(unique)


@given(trees, st.integers(0, 6), st.integers(-1, 6))
def test_clip_keeps_exactly_what_fits(tree: StaticTree, max_depth: int, max_rank: int) -> None:
    fits = {path for path in tree.paths if len(path) <= max_depth and max(path) <= max_rank}
    clipped = tree.clip(max_depth=max_depth, max_rank=max_rank)
    assert set(clipped.paths) == fits
    assert clipped == tree.clip(max_rank=max_rank).clip(max_depth=max_depth)
    assert tree.clip() == tree


@given(trees)
def test_uniform_levels_means_equal_child_counts(tree: StaticTree) -> None:
    counts: dict[int, set[int]] = {}
    for node in [(), *tree.paths]:
        children = sum(path[:-1] == node for path in tree.paths)
        counts.setdefault(len(node), set()).add(children)
    assert tree.uniform_levels == all(len(values) == 1 for values in counts.values())


def test_arrays_are_read_only() -> None:
    tree = StaticTree.from_paths([[0], [0, 0]])
    for array in (tree.parents, tree.depths, tree.ranks, tree.ancestor_mask, tree.path_rows, tree.children_counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_empty_tree_is_no_speculation() -> None:
    tree = StaticTree.from_paths([])
    assert tree == StaticTree() == chain(0)
    assert (tree.num_nodes, tree.rows, tree.depth, tree.max_rank) == (0, 1, 0, -1)
    assert tree.leaves == tree.level_widths == ()
    assert tree.ancestor_mask.tolist() == [[True]]
    assert tree.path_rows.tolist() == [[0]]
    assert tree.uniform_levels
    assert tree.is_chain


def test_chain_and_depth_one() -> None:
    assert chain(3).paths == ((0,), (0, 0), (0, 0, 0))
    assert chain(3).is_chain
    siblings = StaticTree.from_paths([[0], [1], [2], [3]])
    assert siblings.depth == 1
    assert siblings.leaves == (1, 2, 3, 4)
    assert not siblings.is_chain
    with pytest.raises(InputError, match="-1"):
        chain(-1)


def test_numpy_input_and_bare_constructor() -> None:
    assert StaticTree.from_paths(np.array([[0], [1]])) == StaticTree(((0,), (1,)))
    assert StaticTree.from_paths(iter([(np.int64(0).item(),)])) == chain(1)
    for wrong in (((1,), (0,)), ((0, 0),), ((0,), (0,)), ((),)):
        with pytest.raises(ValueError, match="canonical"):
            StaticTree(wrong)


def test_case_t6_order_invariance() -> None:
    mixed = StaticTree.from_paths([[0, 0], [1], [0], [0, 1]])
    ordered = StaticTree.from_paths([[0], [1], [0, 0], [0, 1]])
    assert mixed.id == ordered.id
    # Written out by hand: rows root, 0, 1, 00, 01.
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]
    assert mixed.ancestor_mask.astype(int).tolist() == expected
    assert mixed.depths.tolist() == [0, 1, 1, 2, 2]
    assert mixed.parents.tolist() == [-1, 0, 0, 1, 1]


def test_id_can_be_recomputed_without_this_package() -> None:
    import hashlib

    text = '{"kind":"static_tree","paths":[[0],[1],[0,0]]}'
    expected = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert StaticTree.from_paths([[0, 0], [1], [0]]).id == expected
