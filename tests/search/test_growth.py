import heapq
import itertools

import numpy as np
import pytest
from acceptance_cases import published_accuracies, read_data, synthetic_trace, traces
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search import MarginalSource, TrieSource, expected_tokens_per_step, grow, grow_all
from mtp_bench.topology import StaticTree
from mtp_bench.trace import accepted_lengths


def best_first(source, max_nodes, max_depth):
    """The textbook way: a heap of nodes, each opening its children when taken."""
    heap, taken = [(-value, 1, (rank,)) for rank, value in source.children(())], []
    heapq.heapify(heap)
    while heap and len(taken) < max_nodes:
        value, depth, path = heapq.heappop(heap)
        if depth > max_depth:
            continue
        taken.append((path, -value))
        for rank, below in source.children(path):
            heapq.heappush(heap, (-below, depth + 1, (*path, rank)))
    return taken


@st.composite
def rates(draw, max_depth=4, max_ranks=5):
    """A table of rates, some equal, some zero, not falling with rank."""
    shape = draw(st.integers(1, max_depth)), draw(st.integers(1, max_ranks))
    parts = draw(st.lists(st.integers(0, 6), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    table = np.array(parts, dtype=float).reshape(shape)
    return table / np.maximum(table.sum(axis=1, keepdims=True) * draw(st.sampled_from([1.0, 1.25])), 1)


@given(rates(), st.integers(0, 40), st.integers(0, 5))
def test_equals_best_first_search_on_a_heap(table, max_nodes, max_depth):
    source = MarginalSource(table)
    assert grow(source, max_nodes, max_depth) == best_first(source, max_nodes, max_depth)


@given(traces(), st.integers(0, 30), st.integers(0, 5))
def test_equals_best_first_search_on_a_trace(trace, max_nodes, max_depth):
    if trace.num_starts == 0:
        return
    source = TrieSource.from_trace(trace)
    assert grow(source, max_nodes, max_depth) == best_first(source, max_nodes, max_depth)


class Capped:
    """A source whose nodes offer only their most valuable children."""

    def __init__(self, source, caps):
        self.source, self.caps = source, caps

    def children(self, path):
        return self.source.children(path)[: self.caps[len(path)]] if len(path) < len(self.caps) else []


caps_by_depth = st.lists(st.integers(1, 3), min_size=4, max_size=4)


@given(rates(), st.integers(1, 40), caps_by_depth)
def test_caps_on_children_are_kept_and_exact(table, max_nodes, caps):
    source = MarginalSource(table)
    growth = grow_all(source, max_nodes=max_nodes, max_depth=4, max_children=caps)
    assert set(growth.tree(max_nodes, 4).paths) == {path for path, _ in best_first(Capped(source, caps), max_nodes, 4)}


@given(traces(max_length=25), st.integers(1, 40), caps_by_depth)
def test_caps_on_children_hold_on_a_trace_too(trace, max_nodes, caps):
    if trace.num_starts == 0:
        return
    source = TrieSource.from_trace(trace)
    growth = grow_all(source, max_nodes=max_nodes, max_depth=4, max_children=caps)
    assert set(growth.tree(max_nodes, 4).paths) == {path for path, _ in best_first(Capped(source, caps), max_nodes, 4)}


def test_ties_go_to_the_smaller_path_even_when_a_level_is_cut():
    source = MarginalSource(np.array([[0.25, 0.5, 0.125, *[0.01] * 5], [0.25, 0.5, *[0.0] * 6]]))
    paths = [path for path, _ in grow(source, 5, 2)]
    assert paths == [(1,), (0,), (1, 1), (2,), (0, 1)]  # not (1, 0), which is worth as much


def test_published_expected_tokens():
    grown = grow(MarginalSource(published_accuracies("7b")), 255, 5)
    expected = {
        1: 1.5604, 3: 1.8490, 7: 2.0354, 15: 2.2110, 31: 2.3172, 63: 2.3845, 127: 2.4282, 255: 2.4538,
    }  # fmt: skip
    for nodes, tokens in expected.items():
        assert 1 + sum(value for _, value in grown[:nodes]) == pytest.approx(tokens, abs=5e-5)
    depths = [max(len(path) for path, _ in grown[:nodes]) for nodes in expected]
    assert depths == [1, 2, 3, 3, 4, 4, 5, 5]


def test_the_published_tree_on_the_published_rates():
    tree = StaticTree.from_paths(read_data("medusa_trees.json")["mc_sim_7b_63"])
    source = MarginalSource(published_accuracies("7b"))
    assert expected_tokens_per_step(source, tree) == pytest.approx(2.3400, abs=5e-5)
    assert sum(max(path) >= 5 for path in tree.paths) == 25


@pytest.mark.parametrize(("nodes", "tokens"), [(63, 3.8600), (127, 4.2077), (255, 4.5505)])
def test_rates_that_do_not_fall_with_rank(nodes, tokens):
    vector = read_data("sequoia_acceptance_vector.json")["rates"][1:-1]
    assert any(later > earlier for earlier, later in itertools.pairwise(vector))
    grown = grow(MarginalSource(np.tile(vector, (20, 1))), nodes, 20)
    assert 1 + sum(value for _, value in grown) == pytest.approx(tokens, abs=5e-5)


@given(rates(), st.integers(1, 30))
def test_best_trees_are_nested_and_their_curve_is_concave(table, max_nodes):
    grown = grow(MarginalSource(table), max_nodes, 4)
    values = [value for _, value in grown]
    assert values == sorted(values, reverse=True)
    paths = [path for path, _ in grown]
    for n in range(len(paths) + 1):
        StaticTree.from_paths(paths[:n])  # every prefix is a tree


@given(traces(max_length=25), st.integers(0, 20))
def test_trie_values_are_the_average_over_all_positions(trace, nodes):
    if trace.num_starts == 0:
        return
    source = TrieSource.from_trace(trace)
    tree = StaticTree.from_paths([path for path, _ in grow(source, nodes, trace.depth)])
    measured = 1 + accepted_lengths(trace, tree).sum() / trace.num_starts
    assert expected_tokens_per_step(source, tree) == pytest.approx(measured)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_no_tree_of_equal_size_accepts_more_on_its_trace(seed, nodes):
    trace = synthetic_trace(seed % 5, prompts=6, length=60)
    source = TrieSource.from_trace(trace)
    best = StaticTree.from_paths([path for path, _ in grow(source, nodes, 4)])
    rng, paths = np.random.default_rng(seed), [()]
    while len(paths) <= best.num_nodes:
        parent = paths[rng.integers(len(paths))]
        child = (*parent, int(rng.integers(4)))
        if len(child) <= 4 and child not in paths:
            paths.append(child)
    other = StaticTree.from_paths(paths[1:])
    assert accepted_lengths(trace, best).sum() >= accepted_lengths(trace, other).sum()


def test_values_of_single_paths():
    source = MarginalSource(np.array([[0.6, 0.2], [0.5, 0.1]]))
    assert source.value((0, 1)) == pytest.approx(0.06)
    assert source.value(()) == 1.0
    assert source.value((2,)) == source.value((0, 0, 0)) == 0.0
    assert source.children((0, 0)) == []
    trie = TrieSource.from_trace(synthetic_trace(0))
    for path, value in grow(trie, 50, 4):
        assert trie.value(path) == value
    assert trie.value(()) == 1.0
    assert trie.value((9, 9, 9, 9, 9)) == 0.0
    assert trie.children((0, 0, 0, 0)) == []


def test_children_come_best_first():
    trie = TrieSource.from_trace(synthetic_trace(0))
    for path in ((), (0,), (1, 0)):
        children = trie.children(path)
        assert len(children) > 1
        assert children == sorted(children, key=lambda child: (-child[1], child[0]))


def test_nodes_that_are_never_accepted_are_never_taken():
    assert grow(MarginalSource(np.array([[0.5, 0.0], [0.0, 0.0]])), 10, 2) == [((0,), 0.5)]


@pytest.mark.parametrize(
    "table", [np.zeros((0, 2)), np.array([0.5]), np.array([[1.5]]), np.array([[-0.1]]), np.array([[np.nan]])]
)
def test_tables_that_are_not_rates_are_refused(table):
    with pytest.raises(InputError):
        MarginalSource(table)


def test_a_trace_without_steps_is_refused():
    with pytest.raises(InputError, match="no position"):
        TrieSource.from_trace(synthetic_trace(0, length=1))
