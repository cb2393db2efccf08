"""Categories: values by category, the slowest one's optimum against brute force, and its bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from acceptance_cases import all_trees, cost_table, make_trace, synthetic_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search.by_category.categories import CategoryTrie, compare_categories, split
from mtp_bench.search.by_category.exchange import exchange
from mtp_bench.search.by_category.worst_category import _game, held_out_worst, worst_category, worst_category_optuna
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.sources import expected_tokens_per_step
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree, chain
from mtp_bench.trace import replay

RANKS, DEPTH, BUDGET = 3, 2, 4
COST = cost_table({1: 10.0, 2: 10.4, 4: 10.8, 5: 13.0}, {1: 0.5, 2: 0.9})
SMALL_TREES = [StaticTree.from_paths(sorted(paths)) for paths in all_trees(RANKS, DEPTH, BUDGET)]


@st.composite
def small_traces(draw):
    """Two or three categories whose ranks follow laws of their own."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    texts, names = [], []
    for name in "abc"[: draw(st.integers(2, 3))]:
        law = rng.dirichlet(np.ones(RANKS + 1) * 0.7, size=DEPTH)
        for _ in range(2):
            columns = [rng.choice(RANKS + 1, size=25, p=row) for row in law]
            texts.append((np.array(columns).T % (RANKS + 1) - (np.array(columns).T == RANKS) * (RANKS + 1)).tolist())
            names.append(name)
    return make_trace(texts, top_k=RANKS, depth=DEPTH, categories=names)


def slowest(trace, tree, cost):
    """Least score of any category, by the plain definition."""
    ms = cost.step_ms(tree.rows, depth=tree.depth) / 1e3 if cost is not None else 1.0
    return min(expected_tokens_per_step(TrieSource.from_trace(part), tree) / ms for part in split(trace).values())


@settings(deadline=None, max_examples=40)
@given(small_traces(), st.sampled_from([COST, None]))
def test_the_bound_holds_and_the_tree_is_within_it(trace, cost):
    best = max(slowest(trace, tree, cost) for tree in SMALL_TREES)
    found = worst_category(trace, cost, max_nodes=BUDGET)
    assert found.value == pytest.approx(slowest(trace, found.tree, cost))
    assert found.value <= best * (1 + 1e-9)
    assert found.bound >= best * (1 - 1e-9)
    nodes = set(found.tree.paths)
    near = [tree for tree in SMALL_TREES if max(len(nodes - set(tree.paths)), len(set(tree.paths) - nodes)) <= 1]
    assert found.value >= max(slowest(trace, tree, cost) for tree in near) * (1 - 1e-9), "one leaf more, less or other"
    assert found.value >= best * 0.95  # not guaranteed, but in a thousand cases at most 1.2% were missing
    assert found.value >= found.average_scores.min() * (1 - 1e-9)


@settings(deadline=None, max_examples=40)
@given(small_traces(), st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=3, max_size=3))
def test_weighted_search_equals_brute_force(trace, weights):
    by_category = {name: w for name, w in zip("abc", weights, strict=True) if name in trace.categories}
    if not any(by_category.values()):
        return
    counts = {name: part.num_starts * by_category.get(name, 1) for name, part in split(trace).items()}

    def speed(tree):
        tokens = {n: expected_tokens_per_step(TrieSource.from_trace(p), tree) for n, p in split(trace).items()}
        mean = sum(tokens[name] * counts[name] for name in tokens) / sum(counts.values())
        return 1e3 * mean / COST.step_ms(tree.rows, depth=tree.depth)

    found = exact_search(TrieSource.from_trace(trace.weighted(by_category)), COST, max_nodes=BUDGET)
    assert found.best.tokens_per_s == pytest.approx(max(speed(tree) for tree in SMALL_TREES))


def test_a_mixture_is_the_weighted_trace() -> None:
    trace = synthetic_trace(3, prompts=12)
    parts = split(trace)
    trie = CategoryTrie.of(parts, trace)
    weights = np.array([0.2, 0.5, 0.3])
    wanted = {n: w / p.num_starts for (n, p), w in zip(parts.items(), weights, strict=True)}
    found = exact_search(trie.mixture(weights), None, max_nodes=20, objective="tokens")
    other = exact_search(TrieSource.from_trace(trace.weighted(wanted)), None, max_nodes=20, objective="tokens")
    assert found.best.tokens_per_step == pytest.approx(other.best.tokens_per_step)
    tokens = trie.curve_tokens(found)
    for index in (0, 3, len(found.curve) - 1):
        tree = found.tree_of(found.curve[index])
        own = [expected_tokens_per_step(TrieSource.from_trace(part), tree) for part in parts.values()]
        assert tokens[:, index].tolist() == pytest.approx(own)
        assert trie.tokens(tree).tolist() == pytest.approx(own)
        assert weights @ tokens[:, index] == pytest.approx(found.curve[index].tokens_per_step)


def test_two_categories_that_want_different_children_share() -> None:
    """a always has rank 0, b always rank 1: one node serves one of them, the fair tree holds both."""
    trace = make_trace([[[0]] * 11, [[0]] * 11, [[1]] * 6], top_k=2, depth=1, categories=["a", "a", "b"])
    cost = cost_table({1: 10.0, 2: 10.1, 3: 16.0})
    found = worst_category(trace, cost, max_nodes=2)
    assert found.average.paths == ((0,),), "most positions are of a"
    assert found.average_scores.tolist() == pytest.approx([2000 / 10.1, 1000 / 10.1])
    assert found.tree.paths == ((0,), (1,))
    assert found.value == pytest.approx(2000 / 16)
    document = found.document()
    assert document["gap_to_bound"] == pytest.approx(1 - (2000 / 16) / found.bound)
    assert found.bound == pytest.approx(1500 / 10.1, rel=1e-3), "half the weight on each: one node, 1.5 tokens a step"
    assert document["unweighted_optimum"]["category"] == "b"


def test_the_game_is_solved() -> None:
    """Matching pennies with a bias has a known solution; a dominated category gets all the weight."""
    assert _game(np.array([[3.0, 1.0], [1.0, 2.0]])).tolist() == pytest.approx([1 / 3, 2 / 3], abs=2e-3)
    assert _game(np.array([[3.0, 1.0], [4.0, 2.0]])).tolist() == pytest.approx([0.0, 1.0], abs=1e-3)


def test_exchange_never_loses_and_keeps_to_the_limits() -> None:
    trace = synthetic_trace(8, prompts=12)
    trie = CategoryTrie.of(split(trace), trace)

    def step_ms(num_nodes: int, depth: int) -> float:
        return 10.0 + num_nodes if num_nodes <= 6 and depth <= 2 else np.inf

    better = exchange(trie, chain(2), step_ms)
    assert better.num_nodes <= 6
    assert better.depth <= 2
    assert trie.tokens(better).min() / (10 + better.num_nodes) > trie.tokens(chain(2)).min() / 12


def test_optuna_beside_it_stays_below_the_bound() -> None:
    trace = synthetic_trace(4, prompts=18)
    cost = cost_table({1: 10.0, 8: 11.0, 16: 13.0, 32: 20.0})
    found = worst_category(trace, cost, max_nodes=20)
    tree, value = worst_category_optuna(trace, cost, trials=60, max_nodes=20)
    assert value == pytest.approx(slowest(trace, tree, cost))
    assert 0.97 * found.value < value <= found.bound * (1 + 1e-9)


def test_held_out_figures_are_replays_on_the_other_half() -> None:
    trace = synthetic_trace(6, prompts=24)
    held = held_out_worst(trace, None, max_nodes=10)
    assert held is not None
    halves = [trace.select(half) for half in trace.split_halves(0)]
    tokens = steps = 0
    for chosen_on, other in (halves, halves[::-1]):
        tree = worst_category(chosen_on, None, max_nodes=10).tree
        runs = [replay(part, tree) for part in split(other).values()]
        tokens = tokens + np.array([run.total_tokens for run in runs])
        steps = steps + np.array([run.total_steps for run in runs])
    assert held["worst_category"] == pytest.approx(float((tokens / steps).min()))
    assert held_out_worst(trace.select([0, 1, 2]), None, max_nodes=4) is None


def test_each_category_beside_the_reference() -> None:
    trace = synthetic_trace(7, prompts=12).weighted({"a": 0})
    lines = compare_categories(trace, None, chain(3), chain(1))
    assert [one.name for one in lines] == ["a", "b", "c"]
    for one in lines:
        part = split(trace)[one.name]
        assert one.tokens_per_step == replay(part, chain(3)).tokens_per_step
        ratio = replay(part, chain(3)).tokens_per_step / replay(part, chain(1)).tokens_per_step
        assert one.ratio is not None
        assert one.ratio.value == pytest.approx(ratio)
        assert one.ratio.low <= ratio <= one.ratio.high


def test_one_category_is_refused() -> None:
    trace = replace(synthetic_trace(0, prompts=4), categories=("all",) * 4)
    with pytest.raises(InputError, match="1 category"):
        worst_category(trace, None, max_nodes=3)
