import json

import numpy as np
import pytest
from acceptance_cases import cost_table, hidden_difficulty_trace, synthetic_trace, traces
from hypothesis import given

from mtp_bench.errors import InputError
from mtp_bench.search import TrieSource, choose_on_half, exact_search
from mtp_bench.search.optimize import OptimizeOptions, optimize
from mtp_bench.search.robustness.comparison import compare_estimators, overfit_curve
from mtp_bench.search.values.estimators import ESTIMATORS, INDEPENDENT, REFIT, SHRUNK, TRIE, fit
from mtp_bench.search.values.independent import MarginalHits
from mtp_bench.trace import AcceptanceTable, paired_difference, replay

COST = cost_table({1: 10.0, 16: 11.0, 64: 14.0})
TOKENS = {"max_nodes": 63, "objective": "tokens"}


@given(traces())
def test_marginal_rates_are_those_of_the_acceptance_table(trace):
    measured = AcceptanceTable.from_trace(trace, resamples=1).measured
    assert MarginalHits.of(trace).rates() == pytest.approx(np.nan_to_num(measured.marginal_hit_rate))


@pytest.mark.parametrize("estimator", [TRIE, SHRUNK, INDEPENDENT])
def test_weighing_prompts_is_fitting_them_repeated(estimator):
    trace, times = synthetic_trace(2, prompts=5, length=40), np.array([2, 0, 1, 0, 3])
    weighted = exact_search(fit(estimator, trace, None, **TOKENS).weigh(times), None, **TOKENS)
    repeated = fit(estimator, trace.select(np.repeat(np.arange(5), times)), None, **TOKENS).exact
    assert weighted.tree == repeated.tree
    assert weighted.best.tokens_per_step == pytest.approx(repeated.best.tokens_per_step)


def test_weighing_a_refit_keeps_the_visited_positions():
    trace = hidden_difficulty_trace(0, prompts=20)
    found = next(
        one
        for one in (fit(REFIT, trace, None, max_nodes=n, objective="tokens") for n in range(5, 40))
        if one.refit.best > 0
    )
    once = found.weigh(np.ones(20, dtype=np.int64))
    assert once.num_starts == found.source.num_starts == found.refit.starts.sum()
    assert np.array_equal(once.node_values(found.exact.tree), found.source.node_values(found.exact.tree))


def test_where_difficulty_lasts_the_known_biases_show():
    trace, others = hidden_difficulty_trace(0), hidden_difficulty_trace(1)
    found = {estimator: fit(estimator, trace, None, **TOKENS) for estimator in ESTIMATORS}
    own = {name: one.exact.best.tokens_per_step for name, one in found.items()}
    replays = {name: replay(trace, one.exact.tree).tokens_per_step for name, one in found.items()}
    held_out = {name: replay(others, one.exact.tree).tokens_per_step for name, one in found.items()}
    assert own[TRIE] > 1.03 * replays[TRIE]  # positions everywhere are easier than those where steps start
    assert own[INDEPENDENT] < own[TRIE]  # depths are right together, which the product does not know
    assert own[REFIT] == pytest.approx(replays[REFIT], rel=0.01)
    assert replays[REFIT] >= replays[TRIE]
    for name in ESTIMATORS:  # choosing the tree is easy, quoting its speed is not
        assert held_out[name] == pytest.approx(held_out[TRIE], rel=0.01)


def test_unknown_estimators_are_refused():
    with pytest.raises(InputError, match="unknown estimator"):
        fit("magic", synthetic_trace(0), None, **TOKENS)


def test_the_comparison_repeats_each_estimators_own_figures():
    trace, limits = hidden_difficulty_trace(0, prompts=24, length=60), {"max_nodes": 31}
    compared = compare_estimators(trace, COST, seed=5, **limits)
    assert [one.estimator for one in compared] == list(ESTIMATORS)
    first = choose_on_half(trace, COST, seed=5, **limits)
    for one in compared:
        found = fit(one.estimator, trace, COST, **limits).exact
        held = choose_on_half(trace, COST, estimator=one.estimator, seed=5, **limits)
        assert (one.num_nodes, one.depth) == (found.best.num_nodes, found.best.depth)
        assert one.tokens_per_step == replay(trace, found.tree).tokens_per_step
        assert one.num_nodes_halves == tuple(tree.num_nodes for tree in held.trees)
        assert one.tokens_per_s == pytest.approx(1e3 * one.tokens_per_step / COST.step_ms(found.tree.rows))
        assert one.estimate_error == pytest.approx(found.best.tokens_per_step / one.tokens_per_step - 1)
        assert one.optimism == held.optimism == one.train_tokens_per_step - one.held_out_tokens_per_step
        if one.estimator == TRIE:
            assert one.held_out_difference is None
            assert one.held_out_speed_ratio is None
            continue
        expected = paired_difference((first.pool.tokens, first.pool.steps), (held.pool.tokens, held.pool.steps), seed=5)
        assert one.held_out_difference == expected
        assert one.held_out_difference.value == pytest.approx(
            held.held_out_tokens_per_step - first.held_out_tokens_per_step
        )
        assert one.held_out_speed_ratio.value == pytest.approx(held.held_out_speedup / first.held_out_speedup)
    assert json.loads(json.dumps([one.document() for one in compared]))[1]["estimator"] == SHRUNK


def test_the_overfit_curve_replays_each_halfs_tree_on_both():
    trace, limits = synthetic_trace(6, prompts=12, length=50), {"max_nodes": 20, "objective": "tokens"}
    points = overfit_curve(trace, None, seed=3, **limits)
    assert {point.num_nodes for point in points} == {1, 2, 3, 5, 7, 11, 15, 20}
    point = next(one for one in points if (one.estimator, one.num_nodes) == (SHRUNK, 11))
    halves = [trace.select(half) for half in trace.split_halves(3)]
    trees = [fit(SHRUNK, half, None, max_nodes=11, objective="tokens").exact.tree for half in halves]
    for figure, order in ((point.train_tokens_per_step, trees), (point.held_out_tokens_per_step, trees[::-1])):
        runs = [replay(half, tree) for half, tree in zip(halves, order, strict=True)]
        assert figure == pytest.approx(sum(r.total_tokens for r in runs) / sum(r.total_steps for r in runs))


def test_noise_overfits_and_less_when_shrunk():
    points = overfit_curve(synthetic_trace(9, prompts=6, length=40), None, max_nodes=63, objective="tokens")
    gap = {
        (point.estimator, point.num_nodes): point.train_tokens_per_step - point.held_out_tokens_per_step
        for point in points
    }
    assert gap[TRIE, 63] > gap[TRIE, 1]
    assert gap[TRIE, 63] > gap[SHRUNK, 63]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_optimize_searches_with_the_estimator(estimator):
    trace = hidden_difficulty_trace(3, prompts=8, length=60)
    found = optimize(trace, COST, OptimizeOptions(budget=31, trials=5, estimator=estimator))
    assert found.tree == fit(estimator, trace, COST, max_nodes=31).exact.tree
    document = found.document()
    assert document["estimator"] == estimator
    assert document["tokens_per_step"] == pytest.approx(replay(trace, found.tree).tokens_per_step)
    assert document["held_out"] == choose_on_half(trace, COST, max_nodes=31, estimator=estimator).document()
    assert (document["refit"] is not None) == (estimator == REFIT)
    assert document["optuna"]["gap_to_exact"] == 0
    json.dumps(document)


def test_rates_alone_know_only_their_product():
    table = AcceptanceTable(np.array([[0.6, 0.2], [0.4, 0.1]]))
    options = OptimizeOptions(budget=5, trials=0, estimator=INDEPENDENT)
    plain = optimize(table, COST, OptimizeOptions(budget=5, trials=0))
    assert optimize(table, COST, options).tree == plain.tree
    with pytest.raises(InputError, match="cannot be refit"):
        optimize(table, COST, OptimizeOptions(estimator=REFIT))


def test_trie_is_what_it_was():
    trace = synthetic_trace(1)
    source = fit(TRIE, trace, COST, max_nodes=31).source
    tree = exact_search(TrieSource.from_trace(trace), COST, max_nodes=31).tree
    assert np.array_equal(source.node_values(tree), TrieSource.from_trace(trace).node_values(tree))
