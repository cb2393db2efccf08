"""Bounds on one budget shared by many requests: closed forms, brute force, and the order in which they must lie."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from acceptance_cases import cost_table, make_trace, synthetic_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kinds import trace_with_pools

from mtp_bench.cost import DYNAMIC_DRAFT, VERIFY, CostPoint, CostTable
from mtp_bench.search.exact.growth import grow_all
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.operating.shared_budget import bounds, divided, filled, gains, static_places, uniform
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import DynamicTree
from mtp_bench.trace import RankTrace, accepted_lengths

NODES = 12


def by_name(trace: RankTrace, depth: int, max_nodes: int = NODES) -> dict[str, np.ndarray]:
    return {one.name: one.tokens for one in gains(trace, max_nodes=max_nodes) if one.depth == depth}


def test_what_must_lie_below_what() -> None:
    trace = trace_with_pools()
    for depth in range(1, trace.depth + 1):
        found = by_name(trace, depth)
        for low, high in (
            ("static", "category"), ("category", "request"), ("request", "nodes"), ("static", "division"),
            ("division", "nodes"), ("pool static", "pool division"), ("pool division", "nodes"),
        ):  # fmt: skip
            assert (found[low] <= found[high] + 1e-9).all(), (low, high, depth)
        assert all(tokens[0] == pytest.approx(1.0) for tokens in found.values())


def test_without_knowledge_it_is_the_exact_curve() -> None:
    trace = synthetic_trace(2, prompts=9)
    curve = exact_search(TrieSource.from_trace(trace), None, max_nodes=NODES, objective="tokens").curve
    static = by_name(trace, trace.depth)["static"]
    for point in curve.best_by_size("tokens"):
        assert static[point.num_nodes] == pytest.approx(point.tokens_per_step)


def test_requests_that_are_all_alike_gain_nothing_by_sharing() -> None:
    """Two categories with the very same prompts: the global heap gives both the same tree."""
    half = synthetic_trace(3, prompts=5)
    twice = half.select([*range(5), *range(5)])
    trace = replace(twice, categories=("a",) * 5 + ("b",) * 5, prompt_ids=tuple(map(str, range(10))))
    found = by_name(trace, trace.depth)
    assert found["category"] == pytest.approx(found["static"])


def test_a_hopeless_category_leaves_its_nodes_to_the_other() -> None:
    """a is always right at rank 0 or 1 (half each), b never: one node each shared is two nodes for a."""
    rows_a = [[0], [1]] * 10 + [[-1]]
    trace = make_trace([rows_a, [[-1]] * 21], top_k=2, depth=1, categories=["a", "b"])
    found = by_name(trace, 1, 2)
    assert found["static"].tolist() == pytest.approx([1, 1.25, 1.5])
    assert found["category"].tolist() == pytest.approx([1, 1.5, 1.5])
    assert found["nodes"].tolist() == pytest.approx([1, 1.5, 1.5]), "half of the positions need one node each"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(-1, 5), min_size=2, max_size=2), min_size=2, max_size=4), st.integers(0, 3))
def test_no_division_of_the_budget_beats_the_bound(rows, mean):
    """All ways to give whole numbers of nodes to a few requests stay below; the bound is the linear programme's."""
    places = np.array([*rows, [-1, -1]])
    trace = make_trace([[[0, 0]] * len(places)], top_k=1, depth=2)
    needed = [np.where(np.minimum.accumulate(row) >= 0, np.maximum.accumulate(row) + 1, 99) for row in places[:-1]]

    def accepted(share):
        return sum(int((need <= n).sum()) for need, n in zip(needed, share, strict=True))

    budget = mean * len(rows)
    shares = itertools.product(range(7), repeat=len(rows))
    best = max(accepted(share) for share in shares if sum(share) <= budget)
    bound = divided(places, trace, 6)[mean]
    assert 1 + best / len(rows) <= bound + 1e-9
    # The optimum of the linear programme: the bound is the least of value + price * budget over all prices.
    prices = {0.0} | {(b - a) / (j - i) for need in needed for (i, a), (j, b) in itertools.combinations(
        [(0, 0), *((int(n), d + 1) for d, n in enumerate(need) if n < 99)], 2) if j > i}  # fmt: skip
    dual = min(
        sum(max(((need <= n).sum() - price * n) for n in range(7)) for need in needed) + price * budget
        for price in prices
    )
    assert bound == pytest.approx(1 + dual / len(rows))


def test_the_static_order_is_replayed_by_places() -> None:
    trace = synthetic_trace(9, prompts=6)
    growth = grow_all(TrieSource.from_trace(trace), max_nodes=NODES, max_depth=trace.depth)
    for depth in (1, trace.depth):
        places = static_places(trace, growth, depth)
        tokens = uniform(places, trace, NODES)
        for nodes in (0, 1, 5, NODES):
            expected = accepted_lengths(trace, growth.tree(nodes, depth)).sum() / trace.num_starts
            assert tokens[nodes] == pytest.approx(1 + expected)


def test_pools_give_what_dynamic_trees_of_that_size_accept() -> None:
    trace = trace_with_pools()
    found = {(one.depth, one.top_k): one.tokens for one in gains(trace, max_nodes=NODES) if one.name == "pool static"}
    for (depth, top_k), tokens in found.items():
        assert top_k is not None
        tree = DynamicTree(depth, top_k, 3) if top_k >= 3 or depth > 1 else DynamicTree(depth, top_k, 2)
        expected = accepted_lengths(trace, tree).sum() / trace.num_starts
        assert tokens[tree.num_nodes] == pytest.approx(1 + expected)


def test_items_fill_the_budget_worthiest_first() -> None:
    tokens = filled(np.array([0.5, 0.9, 0.1]), np.array([1.0, 0.5, 2.0]), 4)
    assert tokens.tolist() == pytest.approx([1, 1.7, 2.0, 2.1, 2.15])


def test_speeds_take_the_best_size_and_depth_at_each_place() -> None:
    trace = synthetic_trace(4, prompts=9)
    cost = cost_table({1: 10.0, 4: 10.5, 8: 14.0, 16: 25.0}, {1: 0.2, 2: 0.5, 3: 1.5, 4: 3.0})
    found = {one.name: one for one in bounds(gains(trace, max_nodes=15), cost)}
    exact = exact_search(TrieSource.from_trace(trace), cost, max_nodes=15).best
    assert found["static"].speedup == pytest.approx(exact.speedup)
    assert (found["static"].num_nodes, found["static"].depth) == (exact.num_nodes, exact.depth)
    assert found["static"].gain == 1
    for one in found.values():
        assert one.gain >= 1 - 1e-12
        assert one.speedup == pytest.approx(one.tokens_per_step * 10.0 / one.step_ms)


def test_pools_need_the_cost_of_their_draft() -> None:
    trace = trace_with_pools()
    points = [CostPoint(VERIFY, rows=rows, median_ms=20 + rows / 4) for rows in (1, 8, 16)]
    found = gains(trace, max_nodes=NODES)
    assert not any(one.top_k for one in bounds(found, CostTable(tuple(points))))
    points.append(CostPoint(DYNAMIC_DRAFT, rows=4, depth=2, median_ms=1.5))
    pooled = [one for one in bounds(found, CostTable(tuple(points))) if one.top_k is not None]
    assert {one.name for one in pooled} == {"pool static", "pool division"}
    for one in pooled:
        assert (one.top_k, one.num_nodes > 0) == (4, True)
        assert one.depth <= 2
        assert "pool" in one.assumes
