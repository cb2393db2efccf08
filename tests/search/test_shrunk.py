import itertools

import numpy as np
import pytest
from acceptance_cases import hidden_difficulty_trace, synthetic_trace, traces
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search import MarginalSource, TrieSource, exact_search, expected_tokens_per_step, grow, grow_all
from mtp_bench.search.values.shrunk import ShrunkSource
from mtp_bench.topology import StaticTree
from mtp_bench.trace import AcceptanceTable

kappas = st.sampled_from([0.5, 3.0, 20.0, 1e6])


def slow_values(trace, kappa):
    """path -> value of every possible path, from the rows themselves."""
    rows, starts = [tuple(row) for row in trace.ranks.tolist()], trace.num_starts

    def count(path):
        return sum(row[: len(path)] == path for row in rows) if path else starts

    values = {(): 1.0}
    for depth in range(1, trace.depth + 1):
        reached = starts if depth == 1 else sum(min(row[: depth - 1]) >= 0 for row in rows)
        for path in itertools.product(range(trace.top_k), repeat=depth):
            agreeing = sum(min(row[:depth]) >= 0 and row[depth - 1] == path[-1] for row in rows)
            law = agreeing / reached if reached else 0.0
            values[path] = values[path[:-1]] * (count(path) + kappa * law) / (count(path[:-1]) + kappa)
    del values[()]
    return values


@given(traces(max_top_k=3), kappas, st.integers(1, 40))
def test_equals_brute_force_over_all_paths(trace, kappa, max_nodes):
    if trace.num_starts == 0:
        return
    source, expected = ShrunkSource(TrieSource.from_trace(trace), kappa), slow_values(trace, kappa)
    for path, value in expected.items():
        assert source.value(path) == pytest.approx(value, abs=1e-12)
        assert source.value(path) <= source.value(path[:-1])
        below = dict(source.children(path))
        for rank in range(trace.top_k if len(path) < trace.depth else 0):
            assert below.get(rank, 0.0) == pytest.approx(expected[(*path, rank)], abs=1e-12)
    grown = grow(source, max_nodes, trace.depth)
    best = sorted((value for value in expected.values() if value > 0), reverse=True)[:max_nodes]
    assert [value for _, value in grown] == pytest.approx(best)
    tree = StaticTree.from_paths([path for path, _ in grown])
    assert source.node_values(tree) == pytest.approx([expected[path] for path in tree.paths])


@given(traces(max_length=25), st.integers(1, 40), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_caps_on_children_keep_the_most_valuable(trace, max_nodes, caps):
    if trace.num_starts == 0:
        return
    source = ShrunkSource(TrieSource.from_trace(trace))
    growth = grow_all(source, max_nodes=max_nodes, max_depth=4, max_children=caps)
    kept = {()}
    for path in growth.tree(max_nodes, 4).paths:
        assert path[-1] in [rank for rank, _ in source.children(path[:-1])[: caps[len(path) - 1]]]
        assert path[:-1] in kept
        kept.add(path)


def test_little_kappa_is_the_trie_on_paths_it_has_seen():
    trie = TrieSource.from_trace(synthetic_trace(0))
    source = ShrunkSource(trie, 1e-9)
    for path, value in grow(trie, 300, 4):
        assert source.value(path) == pytest.approx(value, rel=1e-6)


def test_much_kappa_is_the_product_of_the_rank_laws():
    trace = synthetic_trace(0)
    source = ShrunkSource(TrieSource.from_trace(trace), 1e12)
    product = MarginalSource(source.laws)
    tree = exact_search(product, None, max_nodes=60, objective="tokens").tree
    assert source.node_values(tree) == pytest.approx(product.node_values(tree), rel=1e-6)
    # The laws are the conditional rates of the acceptance table, but for rows whose text ends before the depth.
    assert source.laws == pytest.approx(AcceptanceTable.from_trace(trace, resamples=1).per_rank, abs=0.01)


def test_unseen_paths_get_their_share_and_depth_one_is_left_alone():
    trie = TrieSource.from_trace(synthetic_trace(0, prompts=2, length=30))
    source = ShrunkSource(trie)
    unseen = [path for path, _ in grow(source, 200, 4) if trie.value(path) == 0]
    assert unseen
    assert {len(path) for path in unseen} <= {2, 3, 4}
    for rank, value in trie.children(()):
        assert source.value((rank,)) == pytest.approx(value, rel=1e-12)


def test_shrinking_promises_less_than_counting_on_a_small_sample():
    """Held out, the counts of few rows flatter; the truth here is the same law sampled without end."""
    few, truth = hidden_difficulty_trace(1, prompts=3), TrieSource.from_trace(hidden_difficulty_trace(2, prompts=400))
    errors = {}
    for name, source in (("trie", TrieSource.from_trace(few)), ("shrunk", ShrunkSource(TrieSource.from_trace(few)))):
        tree = exact_search(source, None, max_nodes=63, objective="tokens").tree
        rare = [path for path in tree.paths if len(path) > 1]
        errors[name] = sum(source.value(path) - truth.value(path) for path in rare)
        assert expected_tokens_per_step(source, tree) > 1
    assert errors["trie"] > errors["shrunk"] > 0


@pytest.mark.parametrize("kappa", [0.0, -1.0, np.inf, np.nan])
def test_kappa_must_be_a_positive_number(kappa):
    with pytest.raises(InputError, match="kappa"):
        ShrunkSource(TrieSource.from_trace(synthetic_trace(0)), kappa)
