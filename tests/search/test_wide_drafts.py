"""The search where a level costs by how many of its nodes are expanded, against trying every tree."""

from dataclasses import replace

import numpy as np
import pytest
from acceptance_cases import all_trees, cost_table, hidden_difficulty_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.search import MarginalSource, TrieSource, evaluate, exact_search, expected_tokens_per_step
from mtp_bench.search.by_category.categories import split
from mtp_bench.search.by_category.worst_category import worst_category
from mtp_bench.search.exact.growth import grow_all
from mtp_bench.search.exact.widths import expanded_along
from mtp_bench.search.operating.pareto import pareto
from mtp_bench.search.optimize import OptimizeOptions, optimize
from mtp_bench.search.robustness.chosen_size import WIDE_RESAMPLES, chosen_sizes
from mtp_bench.search.rules.constrained import constrained_search
from mtp_bench.search.rules.constraints import Constraints
from mtp_bench.search.values.estimators import fit
from mtp_bench.topology import StaticTree, chain, name_of

SMALL_TREES = [StaticTree.from_paths(paths) for paths in all_trees(ranks=3, depth=3, max_nodes=5)]
BINARY_TREES = [StaticTree.from_paths(paths) for paths in all_trees(ranks=2, depth=4, max_nodes=7)]


def wide_costs(level_ms, *, root_ms=1.0, verify=None, depth=5, widths=(1, 2, 3, 4, 8, 16, 32)):
    """Every pass of the draft after the first costs ``level_ms(nodes expanded)``."""
    points = [CostPoint(rows=rows, median_ms=ms) for rows, ms in (verify or {1: 10.0, 64: 16.3}).items()]
    points.append(CostPoint("draft", rows=1, depth=1, median_ms=root_ms))
    points += [
        CostPoint("draft", rows=w, depth=d, median_ms=root_ms + (d - 1) * level_ms(w))
        for d in range(2, depth + 1)
        for w in widths
    ]
    return CostTable(tuple(points))


def random_costs(rng, max_rows):
    """Verification that steps; passes that rise with width in leaps."""
    verify = {rows: float(10 + 3 * rng.random() * (rows // 3) + 2 * rng.random()) for rows in range(1, max_rows + 1)}
    level = np.cumsum(rng.exponential(rng.uniform(0.05, 1.0), size=5) * (rng.random(5) < 0.7)) + rng.uniform(0, 1)
    return wide_costs(
        lambda w: float(level[w - 1]), root_ms=rng.uniform(0, 1), verify=verify, depth=4, widths=(1, 2, 3, 4)
    )


def every_speed(source, cost, trees):
    return np.array([1e3 * expected_tokens_per_step(source, tree) / cost.topology_ms(tree) for tree in trees])


def check(source, cost, trees, max_nodes):
    """The loss against the best of ``trees``; all that the search says of itself is checked."""
    found = exact_search(source, cost, max_nodes=max_nodes)
    best = every_speed(source, cost, trees).max()
    assert found.best.tokens_per_s == pytest.approx(every_speed(source, cost, [found.tree])[0])
    assert (found.tree.num_nodes, found.tree.depth) == (found.best.num_nodes, found.best.depth)
    assert found.best.tokens_per_s <= best * (1 + 1e-9)
    assert best <= found.bound_tokens_per_s * (1 + 1e-9), "no tree may be faster than the bound"
    loss = 1 - found.best.tokens_per_s / best
    assert loss <= found.gap + 1e-9
    for point in found.curve.best_by_size():
        tree = found.tree_of(point)
        assert (tree.num_nodes, tree.depth) == (point.num_nodes, point.depth)
        assert point.step_ms == pytest.approx(cost.topology_ms(tree))
    return loss


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_against_every_tree_of_three_ranks(seed):
    rng = np.random.default_rng(seed)
    rates = rng.dirichlet(np.ones(4), size=3)[:, :3]  # by rank, in no order
    check(MarginalSource(rates), random_costs(rng, 7), SMALL_TREES, 5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_against_every_deep_tree_on_a_trace(seed):
    rng = np.random.default_rng(seed)
    source = TrieSource.from_trace(hidden_difficulty_trace(seed, prompts=4, length=30, depth=4, top_k=2))
    check(source, random_costs(rng, 9), BINARY_TREES, 7)


def test_the_best_tree_is_found_nearly_always():
    """Of 50 random cases; the trees by size and depth alone miss it in most of those where width matters."""
    losses, plain = [], []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        source = MarginalSource(rng.dirichlet(np.ones(4), size=3)[:, :3])
        cost = random_costs(rng, 7)
        losses.append(check(source, cost, SMALL_TREES, 5))
        growth = grow_all(source, max_nodes=5, max_depth=3)
        by_size = [growth.tree(n, d) for d in (1, 2, 3) for n in range(6)]
        plain.append(1 - every_speed(source, cost, by_size).max() / every_speed(source, cost, SMALL_TREES).max())
    missed, missed_plain = np.array(losses) > 1e-9, np.array(plain) > 1e-9
    assert missed.sum() <= 2
    assert max(losses) < 0.01
    assert missed_plain.sum() > 3 * missed.sum()


def test_a_chain_where_width_is_dear():
    """Two good ranks at every depth: without the price of width the tree is wide, with it a chain."""
    source = MarginalSource(np.array([[0.5, 0.4, 0.05]] * 3))
    flat, dear = wide_costs(lambda w: 0.2), wide_costs(lambda w: 0.2 + 3.0 * (w - 1))
    wide, narrow = (exact_search(source, cost, max_nodes=5) for cost in (flat, dear))
    assert max(wide.tree.expanded_widths) > 1
    assert set(narrow.tree.expanded_widths) == {1}
    for found, cost in ((wide, flat), (narrow, dear)):
        best = SMALL_TREES[int(every_speed(source, cost, SMALL_TREES).argmax())]
        assert found.best.tokens_per_s == pytest.approx(every_speed(source, cost, [best])[0])
        assert best.expanded_widths == found.tree.expanded_widths
    # A chain proper where siblings are never right.
    only = MarginalSource(np.array([[0.6, 0.01], [0.6, 0.01], [0.6, 0.01]]))
    dearest = wide_costs(lambda w: 0.2 + 3.0 * (w - 1), verify={1: 10.0, 7: 16.0})
    assert exact_search(only, dearest, max_nodes=5).tree == chain(3)


@pytest.mark.parametrize(
    ("level_ms", "most"),
    [(lambda w: 4.0, 0.005), (lambda w: 4 + 0.6 * w, 0.005), (lambda w: 4 + 4.0 * (w > 8), 0.005),
     (lambda w: 2 + 3 * w**0.5, 0.03)],
    ids=["flat", "linear", "step", "concave"],
)  # fmt: skip
def test_a_budget_of_63_on_a_trace_is_nearly_closed(level_ms, most):
    source = TrieSource.from_trace(hidden_difficulty_trace(0))
    cost = wide_costs(level_ms, root_ms=2.0, verify={1: 40.0, 64: 72.0})
    found = exact_search(source, cost, max_nodes=63)
    assert 0 <= found.gap < most
    document = found.document()
    assert document["bound_tokens_per_s"] >= found.best.tokens_per_s
    assert document["gap"] == found.gap


def test_width_that_costs_nothing_changes_nothing():
    source = TrieSource.from_trace(hidden_difficulty_trace(1))
    by_depth = {d: 2.0 + 4.0 * (d - 1) for d in range(1, 6)}
    old = exact_search(source, cost_table({1: 40.0, 64: 72.0}, by_depth), max_nodes=40)
    new = exact_search(
        source, wide_costs(lambda w: 4.0, root_ms=2.0, verify={1: 40.0, 64: 72.0}), max_nodes=40
    )  # fmt: skip
    assert new.tree == old.tree
    assert new.best.tokens_per_s == pytest.approx(old.best.tokens_per_s)
    assert old.bound_tokens_per_s is None
    assert "gap" not in old.document()
    assert new.curve.best_by_size()[-1].tokens_per_s == pytest.approx(old.curve.best_by_size()[-1].tokens_per_s)


def test_expanded_nodes_along_an_order_are_those_of_its_trees():
    growth = grow_all(TrieSource.from_trace(hidden_difficulty_trace(2)), max_nodes=40, max_depth=5)
    widths = expanded_along(growth, growth.order(5))
    for size in range(1, 41):
        expected = growth.tree(size, 5).expanded_widths
        assert tuple(widths[size - 1][: len(expected)]) == expected
        assert not widths[size - 1][len(expected) :].any()


def test_tokens_are_searched_as_before_and_priced_by_width():
    source = TrieSource.from_trace(hidden_difficulty_trace(3))
    cost = wide_costs(lambda w: 4 + 0.6 * w)
    found = exact_search(source, cost, max_nodes=20, objective="tokens")
    assert found.tree == exact_search(source, None, max_nodes=20, objective="tokens").tree
    assert found.best.step_ms == pytest.approx(cost.topology_ms(found.tree))
    assert found.bound_tokens_per_s is None


def test_levels_wider_than_measured_are_left_out():
    source = TrieSource.from_trace(hidden_difficulty_trace(3))
    cost = wide_costs(lambda w: 0.1, widths=(1, 2))
    found = exact_search(source, cost, max_nodes=40)
    assert max(found.tree.expanded_widths) <= 2
    wide = exact_search(source, wide_costs(lambda w: 0.1), max_nodes=40).tree
    [note] = evaluate(wide, source, cost).notes
    assert "measured to 2 nodes expanded at a level" in note
    assert evaluate(wide, source, cost).step_ms is None


def test_a_single_node_and_none():
    source = MarginalSource(np.array([[0.6, 0.2], [0.5, 0.1]]))
    assert exact_search(source, wide_costs(float), max_nodes=0).do_not_speculate
    assert name_of(exact_search(source, wide_costs(lambda w: 50.0 * w), max_nodes=1).tree) == "chain:1"
    assert exact_search(source, wide_costs(float, root_ms=90.0), max_nodes=6).do_not_speculate


def test_trees_within_rules_pay_for_their_widths():
    source = TrieSource.from_trace(hidden_difficulty_trace(4, prompts=20))
    cost = wide_costs(lambda w: 1.0 + w)
    found = constrained_search(source, cost, max_nodes=20, constraints=Constraints(contiguous=True))
    assert found.best.step_ms == pytest.approx(cost.topology_ms(found.tree))
    assert not found.proven or found.best.tokens_per_s == pytest.approx(found.bound.tokens_per_s)
    assert found.method.endswith("real widths")


def test_everything_that_optimizes_sees_the_widths():
    """The chain is the fastest kind where width is dear, though the static trees by tokens are wide."""
    trace = hidden_difficulty_trace(5, prompts=12, length=60)
    dear = wide_costs(lambda w: 0.2 + 6.0 * (w - 1))
    found = optimize(trace, dear, OptimizeOptions(budget=16, trials=20))
    assert [one.kind for one in found.kinds][-1] in ("static", "chain")
    for one in found.kinds:
        assert one.evaluation.step_ms == pytest.approx(dear.topology_ms(one.topology))
    for point, figures in found.curve:
        assert point.step_ms == pytest.approx(figures.step_ms)
    assert found.winner.step_ms == pytest.approx(found.exact.best.step_ms)
    assert set(found.tree.expanded_widths) <= {1}
    document = found.document()
    assert document["exact"]["bound_tokens_per_s"] >= found.exact.best.tokens_per_s
    assert document["exact"]["last_kept"] is document["exact"]["first_out"] is None
    assert found.optuna.best.value <= document["exact"]["bound_tokens_per_s"]
    tried = [trial for trial in found.optuna.trials if trial.depth > 1]
    assert {trial.step_ms for trial in tried} != {dear.step_ms(t.num_nodes + 1, depth=t.depth) for t in tried}


def test_worst_category_and_pareto_pay_for_widths():
    trace = hidden_difficulty_trace(6, prompts=12, length=60)
    trace = replace(trace, categories=tuple("ab"[i % 2] for i in range(12)))
    cost = wide_costs(lambda w: 0.5 + w)
    worst = worst_category(trace, cost, max_nodes=16)
    least = min(
        1e3 * expected_tokens_per_step(TrieSource.from_trace(part), worst.tree) / cost.topology_ms(worst.tree)
        for part in split(trace).values()
    )
    assert worst.scores.min() == pytest.approx(least)
    assert worst.scores.min() <= worst.bound * (1 + 1e-9)
    for point in pareto(trace, cost, OptimizeOptions(budget=16, trials=0), [1]).points:
        assert point.step_ms == pytest.approx(cost.topology_ms(point.tree))


def test_resampled_sizes_where_not_every_size_has_a_tree_of_known_cost():
    trace = hidden_difficulty_trace(7, prompts=8, length=40, top_k=2)
    cost = wide_costs(lambda w: 0.1, widths=(1,))
    found = fit("trie", trace, cost, max_nodes=40)
    known = {point.num_nodes for point in found.exact.curve.best_by_size()}
    assert len(known) < 1 + max(known) or max(known) < 40
    sizes = chosen_sizes(found, trace, cost, resamples=20, max_nodes=40)
    assert sizes.resamples == 20
    assert ((sizes.loss >= 0) & (sizes.loss < 1)).all()
    assert chosen_sizes(found, trace, cost, resamples=500, max_nodes=3).resamples == WIDE_RESAMPLES
