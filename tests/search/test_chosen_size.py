import json

import numpy as np
import pytest
from acceptance_cases import cost_table, hidden_difficulty_trace, synthetic_trace

from mtp_bench.search import TrieSource, exact_search
from mtp_bench.search.robustness.chosen_size import chosen_sizes
from mtp_bench.search.values.estimators import ESTIMATORS, fit
from mtp_bench.trace import RankTrace, resample_weights

COST = cost_table({1: 10.0, 64: 16.0})


def sizes(trace, estimator="trie", **more):
    return chosen_sizes(fit(estimator, trace, COST, max_nodes=63), trace, COST, max_nodes=63, **more)


def test_each_resample_is_the_search_on_the_drawn_prompts():
    trace = synthetic_trace(3, prompts=7, length=60)
    found = sizes(trace, resamples=12, seed=4)
    for place, weights in enumerate(resample_weights(7, resamples=12, seed=4)):
        drawn = trace.select(np.repeat(np.arange(7), weights))
        best = exact_search(TrieSource.from_trace(drawn), COST, max_nodes=63).best
        assert (found.num_nodes[place], found.depth[place]) == (best.num_nodes, best.depth)


def test_shares_band_and_loss_agree():
    trace = synthetic_trace(3, prompts=20, length=60)
    found, exact = sizes(trace, resamples=60), exact_search(TrieSource.from_trace(trace), COST, max_nodes=63)
    assert found.best == exact.best.num_nodes
    speed = {point.num_nodes: point.tokens_per_s for point in exact.curve.best_by_size()}
    losses = [1 - speed[n] / speed[found.best] for n in found.num_nodes.tolist()]
    assert found.loss == pytest.approx(losses)
    assert found.within_band == pytest.approx(np.mean(np.array(losses) <= 0.01))
    document = json.loads(json.dumps(found.document()))
    assert sum(one["times"] for one in document["num_nodes"]) == document["resamples"] == 60
    assert sum(one["times"] for one in document["depth"]) == 60
    times = {one["num_nodes"]: one["times"] for one in document["num_nodes"]}
    assert document["share_same_size"] == times.get(found.best, 0) / 60
    low, high = document["num_nodes_ci"]
    assert min(times) <= low <= high <= max(times)


def test_plenty_of_prompts_agree_on_the_size():
    few = sizes(hidden_difficulty_trace(0, prompts=6, length=60), resamples=100)
    many = sizes(hidden_difficulty_trace(0, prompts=400, length=60), resamples=100)
    assert np.ptp(many.num_nodes) < np.ptp(few.num_nodes)
    assert many.within_band >= 0.95
    assert many.loss_95 < few.loss_95


def test_a_cliff_in_the_costs_leaves_no_doubt():
    cliff = cost_table({1: 10.0, 16: 10.5, 17: 30.0, 64: 60.0})
    trace = hidden_difficulty_trace(0, prompts=10, length=60)
    found = chosen_sizes(fit("trie", trace, cliff, max_nodes=63), trace, cliff, max_nodes=63, resamples=50)
    assert (found.best, found.same_size, found.within_band, found.loss_95) == (15, 1.0, 1.0, 0.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_can_be_resampled_and_repeats(estimator):
    trace = hidden_difficulty_trace(1, prompts=6, length=40)
    first, again = (sizes(trace, estimator, resamples=10, seed=2).document() for _ in range(2))
    assert first == again
    assert first["resamples"] == 10


def test_draws_of_empty_prompts_are_left_out():
    full = synthetic_trace(0, prompts=1, length=30)
    trace = RankTrace(full.ranks, np.array([0, 30, 30, 30]), full.top_k, ("a", "b", "c"), ("x",) * 3)
    found = sizes(trace, resamples=200)
    assert 100 < found.resamples < 200
    assert found.same_size == 1.0


def test_one_prompt_cannot_be_resampled():
    assert sizes(synthetic_trace(0, prompts=1, length=30)) is None
