import json
from dataclasses import replace

import numpy as np
import pytest
from acceptance_cases import T3_RATES, cost_table, published_accuracies, read_data, synthetic_trace, t3_cost

from mtp_bench.cost import CostTable
from mtp_bench.search import MarginalSource, evaluate, evaluate_all, grow
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree, chain
from mtp_bench.trace import ratio_interval, replay

TRACE = synthetic_trace(4, prompts=60)
COST = cost_table({1: 10.0, 16: 11.0, 64: 14.0}, {d: 0.3 * d for d in range(1, 5)})


def best_tree(nodes):
    return StaticTree.from_paths([path for path, _ in grow(TrieSource.from_trace(TRACE), nodes, 4)])


def with_spread(table, relative, n=9):
    spread = [
        replace(p, low_ms=p.median_ms * (1 - relative), high_ms=p.median_ms * (1 + relative), n=n) for p in table.points
    ]
    return CostTable(tuple(spread))


def test_tokens_are_replayed_with_their_interval():
    found, run = evaluate(best_tree(15), TRACE), replay(TRACE, best_tree(15))
    assert found.tokens_per_step == run.tokens_per_step
    assert found.tokens_per_step_ci == ratio_interval(run.tokens, run.steps).bounds
    assert found.tokens_per_step_all_positions > found.tokens_per_step  # steps start at harder positions
    assert found.step_ms is None
    assert found.speedup_predicted is None


def test_speed_is_tokens_over_cost():
    found = evaluate(best_tree(15), TRACE, COST)
    assert found.step_ms == pytest.approx(11.0 + 0.3 * found.depth)
    assert found.tokens_per_s == pytest.approx(1e3 * found.tokens_per_step / found.step_ms)
    assert found.speedup_predicted == pytest.approx(found.tokens_per_step * 10.0 / found.step_ms)
    # Without a spread of costs the two intervals are the same, scaled.
    assert found.speedup_predicted_ci == pytest.approx([x * 10.0 / found.step_ms for x in found.tokens_per_step_ci])


def test_doubtful_costs_widen_the_speedup():
    widths = []
    for relative in (0.0, 0.02, 0.2):
        low, high = evaluate(best_tree(15), TRACE, with_spread(COST, relative)).speedup_predicted_ci
        widths.append(high - low)
    assert widths[0] <= widths[1] < widths[2]


def test_a_table_alone_gives_expected_values_without_intervals():
    found = evaluate(StaticTree.from_paths([(0,), (1,), (0, 0)]), MarginalSource(T3_RATES), t3_cost())
    assert found.tokens_per_step == pytest.approx(2.04)
    assert found.tokens_per_s == pytest.approx(200.0)
    assert found.tokens_per_step_ci is None
    assert found.speedup_predicted_ci is None


def test_plain_decoding():
    found = evaluate(chain(0), TRACE, with_spread(COST, 0.1))
    assert (found.tokens_per_step, found.speedup_predicted) == (1.0, 1.0)
    assert found.speedup_predicted_ci == pytest.approx((1.0, 1.0))
    assert found.notes == ()


def test_comparisons_are_paired_with_the_first():
    first, small, same = evaluate_all([best_tree(31), chain(1), best_tree(31)], TRACE, with_spread(COST, 0.05))
    assert first.difference_tokens_per_step is None
    assert small.difference_tokens_per_step.value == pytest.approx(small.tokens_per_step - first.tokens_per_step)
    assert small.difference_tokens_per_step.high < 0
    assert small.speed_ratio.value == pytest.approx(small.tokens_per_s / first.tokens_per_s)
    assert small.speed_ratio.low < small.speed_ratio.value < small.speed_ratio.high
    assert same.difference_tokens_per_step.bounds == (0, 0)
    assert same.speed_ratio.bounds == (1, 1)


def test_nodes_that_were_not_measured_are_noted():
    tree = StaticTree.from_paths(read_data("medusa_trees.json")["mc_sim_7b_63"])
    found = evaluate(tree, MarginalSource(published_accuracies("7b")))
    assert found.tokens_per_step == pytest.approx(2.34, abs=5e-5)
    assert "25 of 63 nodes" in found.notes[0]
    assert "1 of 5 nodes" in evaluate(chain(5), TRACE).notes[0]


def test_trees_beyond_the_costs_get_none():
    for tree, cost in ((best_tree(63), t3_cost()), (chain(3), cost_table({1: 10.0, 8: 11.0}, {2: 1.0}))):
        found = evaluate(tree, TRACE, cost)
        assert found.step_ms is found.speedup_predicted is None
        assert found.tokens_per_step > 1
        assert "no cost" in found.notes[0]


def test_the_same_seed_gives_the_same_document():
    documents = [
        json.dumps(
            [e.document() for e in evaluate_all([best_tree(7), chain(2)], TRACE, with_spread(COST, 0.05), seed=s)]
        )
        for s in (1, 1, 2)
    ]
    assert documents[0] == documents[1] != documents[2]
    assert json.loads(documents[0])[1]["paths"] == [[0], [0, 0]]
    assert np.isfinite(json.loads(documents[0])[1]["speed_ratio"]["low"])
