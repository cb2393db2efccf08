import json

import numpy as np
import pytest
from acceptance_cases import (
    T3_RATES,
    all_trees,
    array_dp,
    cost_table,
    plain_dp,
    published_accuracies,
    synthetic_trace,
    t3_cost,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search import MarginalSource, TrieSource, exact_search, expected_tokens_per_step
from mtp_bench.topology import StaticTree

SMALL_TREES = [StaticTree.from_paths(paths) for paths in all_trees(ranks=3, depth=3, max_nodes=5)]


def uneven_costs(rng, max_rows):
    """Costs that step, dip, and depend on depth."""
    ms = {rows: float(10 + 3 * rng.random() * (rows // 3) + 2 * rng.random()) for rows in range(1, max_rows + 1)}
    draft = {depth: float(depth * rng.uniform(0, 1.5)) for depth in range(1, 5)}
    return cost_table(ms, draft)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_equals_trying_every_tree(seed):
    rng = np.random.default_rng(seed)
    rates = rng.dirichlet(np.ones(4), size=3)[:, :3]  # by rank, in no order
    source, cost = MarginalSource(rates), uneven_costs(rng, 6)
    found = exact_search(source, cost, max_nodes=5)
    speeds = [
        1e3 * expected_tokens_per_step(source, tree) / cost.step_ms(tree.rows, depth=tree.depth) for tree in SMALL_TREES
    ]
    assert found.best.tokens_per_s == pytest.approx(max(speeds))
    assert found.tree.num_nodes == found.best.num_nodes
    assert found.tree.depth == found.best.depth
    assert expected_tokens_per_step(source, found.tree) == pytest.approx(found.best.tokens_per_step)


def test_all_small_trees_are_there():
    assert len({tree.id for tree in SMALL_TREES}) == len(SMALL_TREES)
    assert sum(tree.num_nodes == 2 for tree in SMALL_TREES) == 3 + 9  # two siblings, or a node and its child


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_equals_the_dynamic_programme_over_sizes_and_depths(seed):
    rng = np.random.default_rng(seed)
    rates, budget = rng.dirichlet(np.full(5, 0.7), size=4)[:, :4], 30
    cost = uneven_costs(rng, budget + 1)
    by_depth = [plain_dp(rates[:d], budget) for d in range(1, 5)]
    speeds = [
        1e3 * tokens / cost.step_ms(n + 1, depth=d)
        for d, curve in enumerate(by_depth, start=1)
        for n, tokens in enumerate(curve)
        if np.isfinite(tokens) and n > 0
    ]
    found = exact_search(MarginalSource(rates), cost, max_nodes=budget)
    assert found.best.tokens_per_s == pytest.approx(max([1e3 / cost.step_ms(1), *speeds]))


def test_both_dynamic_programmes_agree():
    rates = np.random.default_rng(0).dirichlet(np.ones(5), size=4)[:, :4]
    assert array_dp(rates, 40) == pytest.approx(plain_dp(rates, 40))


@pytest.mark.parametrize("size", ["7b", "13b", "33b"])
def test_every_size_equals_the_dynamic_programme(size):
    rates = published_accuracies(size)
    found = exact_search(MarginalSource(rates), None, max_nodes=127, objective="tokens")
    tokens = [point.tokens_per_step for point in found.curve.best_by_size("tokens")]
    assert tokens == pytest.approx(array_dp(rates, 127).tolist())


def test_fastest_is_not_longest():
    found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=39)
    assert found.tree.paths == ((0,), (1,), (0, 0))
    assert found.best.tokens_per_step == pytest.approx(2.04)
    assert found.best.tokens_per_s == pytest.approx(200.0)
    assert found.best.speedup == pytest.approx(2.0)
    by_size = {point.num_nodes: point for point in found.curve.best_by_size()}
    assert by_size[7].tokens_per_s == pytest.approx(192.96)
    assert by_size[15].tokens_per_s == pytest.approx(133.8)
    longest = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=15, objective="tokens")
    assert longest.best.num_nodes == 15
    assert longest.best.tokens_per_step == pytest.approx(2.676)


def test_the_seven_nodes_of_the_case():
    found = exact_search(MarginalSource(T3_RATES), None, max_nodes=7, objective="tokens")
    assert found.best.tokens_per_step == pytest.approx(2.412)
    assert set(found.tree.paths) == {(0,), (1,), (0, 0), (0, 1), (2,), (1, 0), (0, 0, 0)}


def test_not_speculating_is_an_answer():
    source = MarginalSource(np.array([[0.3, 0.2], [0.2, 0.1]]))
    found = exact_search(source, cost_table({1: 10.0, 2: 14.0, 8: 40.0}), max_nodes=6)
    assert found.do_not_speculate
    assert found.best.num_nodes == found.best.depth == found.tree.num_nodes == 0
    assert found.best.speedup == 1.0
    assert found.last_kept is None
    assert found.first_out.path == (0,)
    assert found.first_out.pays is False


def test_plain_decoding_is_always_on_the_curve():
    for max_nodes in (0, 5):
        found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=max_nodes)
        assert found.curve[0].num_nodes == 0
        assert found.curve[0].tokens_per_step == found.curve[0].speedup == 1.0


def test_the_curve_holds_every_size_and_depth_once():
    found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=39)
    shapes = list(zip(found.curve.num_nodes.tolist(), found.curve.depth.tolist(), strict=True))
    assert len(set(shapes)) == len(shapes) == len(found.curve)
    for index, (nodes, depth) in enumerate(shapes):
        tree = found.tree_of(found.curve[index])
        assert (tree.num_nodes, tree.depth) == (nodes, depth)
        assert expected_tokens_per_step(MarginalSource(T3_RATES), tree) == pytest.approx(
            found.curve[index].tokens_per_step
        )


def test_ties_go_to_the_smaller_tree():
    rates = np.array([[0.5, 0.0]])  # more nodes bring nothing
    found = exact_search(MarginalSource(rates), cost_table({1: 10.0, 8: 10.0}), max_nodes=7)
    assert found.best.num_nodes == 1


def test_the_budget_is_cut_to_the_costs():
    found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=100)
    assert found.max_nodes == 39
    assert "known to 40 rows" in found.notes[0]
    shallow = exact_search(MarginalSource(T3_RATES), cost_table({1: 10.0, 8: 11.0}, {1: 0.1, 2: 0.2}), max_nodes=7)
    assert shallow.max_depth == 2
    assert "known to depth 2" in shallow.notes[0]
    assert exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=39).notes == ()


def test_a_context_outside_the_measured_ones_is_noted():
    found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=5, context=512)
    assert "context 512" in found.notes[0]


def test_longest_without_costs_beyond_the_table():
    found = exact_search(MarginalSource(T3_RATES), cost_table({1: 10.0, 4: 11.0}), max_nodes=7, objective="tokens")
    assert found.best.num_nodes == 7
    assert found.best.step_ms is None
    assert found.curve[1].step_ms is not None
    assert found.notes == ()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_marginal_rule_holds_at_the_optimum(seed):
    rng = np.random.default_rng(seed)
    rates = rng.dirichlet(np.full(4, 0.6), size=3)[:, :3]
    found = exact_search(MarginalSource(rates), uneven_costs(rng, 30), max_nodes=20)
    if found.last_kept is not None:
        assert found.last_kept.value >= found.last_kept.threshold - 1e-9
        assert found.last_kept.path in found.tree.paths
    if found.first_out is not None and found.best.num_nodes < 20:
        assert found.first_out.value <= found.first_out.threshold + 1e-9
        assert found.first_out.path not in found.tree.paths
        assert found.first_out.path[:-1] in ((), *found.tree.paths)


def test_the_marginal_rule_by_hand():
    found = exact_search(MarginalSource(T3_RATES), t3_cost(), max_nodes=39)
    assert found.last_kept.value == pytest.approx(0.2)
    assert found.last_kept.delta_ms == 0.0
    assert found.first_out.path == (0, 1)
    assert found.first_out.value == pytest.approx(0.12)
    assert found.first_out.threshold == pytest.approx(2.3 * 2.04 / 10.2)


def test_the_first_node_left_out_at_the_budget():
    found = exact_search(MarginalSource(T3_RATES), cost_table({1: 10.0, 8: 10.0}), max_nodes=4)
    assert found.best.num_nodes == 4
    assert found.first_out.pays  # a larger budget would be better, and this says so


def test_the_band():
    source = TrieSource.from_trace(synthetic_trace(0))
    cost = cost_table({1: 10.0, 16: 11.0, 64: 14.0})
    found = exact_search(source, cost, max_nodes=63)
    by_size = {point.num_nodes: point.tokens_per_s for point in found.curve.best_by_size()}
    inside = [size for size, speed in by_size.items() if speed >= 0.99 * found.best.tokens_per_s]
    assert list(found.band.sizes) == inside
    assert found.best.num_nodes in found.band.sizes
    assert found.band.smallest.num_nodes == min(inside) < found.best.num_nodes


def test_bad_requests():
    source = MarginalSource(T3_RATES)
    with pytest.raises(InputError, match="no costs"):
        exact_search(source, None, max_nodes=5)
    with pytest.raises(InputError, match="objective"):
        exact_search(source, t3_cost(), max_nodes=5, objective="fast")
    with pytest.raises(InputError, match="budget"):
        exact_search(source, t3_cost(), max_nodes=-1)


def test_the_document_is_json_and_repeats():
    source = TrieSource.from_trace(synthetic_trace(0))
    documents = [
        json.dumps(exact_search(source, t3_cost(), max_nodes=39).document(), allow_nan=False) for _ in range(2)
    ]
    assert documents[0] == documents[1]
    tokens = exact_search(source, None, max_nodes=9, objective="tokens").document()
    assert tokens["best"]["step_ms"] is None
    assert tokens["last_kept"]["pays"] is None
