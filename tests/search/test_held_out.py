import json

import numpy as np
import pytest
from acceptance_cases import cost_table, make_trace, synthetic_trace

from mtp_bench.errors import InputError
from mtp_bench.search import TrieSource, choose_on_half, exact_search
from mtp_bench.search.values.estimators import fit
from mtp_bench.trace import replay

COST = cost_table({1: 10.0, 16: 11.0, 64: 14.0})


def test_each_half_is_quoted_with_the_other_halfs_tree():
    trace = synthetic_trace(6)
    found = choose_on_half(trace, COST, max_nodes=63, seed=3)
    halves = [trace.select(half) for half in trace.split_halves(3)]
    trees = [exact_search(TrieSource.from_trace(half), COST, max_nodes=63).tree for half in halves]
    assert found.trees == tuple(trees)
    other = [replay(half, tree) for half, tree in zip(halves, trees[::-1], strict=True)]
    own = [replay(half, tree) for half, tree in zip(halves, trees, strict=True)]
    for value, runs in ((found.held_out_tokens_per_step, other), (found.train_tokens_per_step, own)):
        assert value == pytest.approx(sum(r.total_tokens for r in runs) / sum(r.total_steps for r in runs))
    time = sum(run.total_steps * COST.step_ms(tree.rows) for run, tree in zip(other, trees[::-1], strict=True))
    assert found.held_out_speedup == pytest.approx(10.0 * sum(r.total_tokens for r in other) / time)
    low, high = found.held_out_speedup_ci
    assert low < found.held_out_speedup < high


def test_choosing_from_noise_is_optimistic():
    rng = np.random.default_rng(0)  # ranks without any pattern: whatever looks frequent in one half is chance
    texts = [rng.integers(-1, 30, size=(12, 3)).tolist() for _ in range(8)]
    found = choose_on_half(make_trace(texts, top_k=30, depth=3), None, max_nodes=40, objective="tokens")
    assert found.optimism > 0.3
    assert found.held_out_speedup is None


def test_plenty_of_data_is_not():
    found = choose_on_half(synthetic_trace(1, prompts=100), COST, max_nodes=31)
    assert abs(found.optimism) < 0.03
    low, high = found.held_out_tokens_per_step_ci
    assert low < found.train_tokens_per_step < high


def test_the_document_repeats():
    documents = [json.dumps(choose_on_half(synthetic_trace(6), COST, max_nodes=31).document()) for _ in range(2)]
    assert documents[0] == documents[1]
    assert json.loads(documents[0])["optimism"] == pytest.approx(
        choose_on_half(synthetic_trace(6), COST, max_nodes=31).optimism
    )


def test_one_prompt_cannot_be_halved():
    with pytest.raises(InputError, match="too few prompts"):
        choose_on_half(synthetic_trace(0, prompts=1), COST, max_nodes=7)


def test_the_estimator_that_is_asked_for_chooses():
    trace, limits = synthetic_trace(6), {"max_nodes": 63, "objective": "tokens"}
    halves = [trace.select(half) for half in trace.split_halves(0)]
    trees = {
        name: choose_on_half(trace, None, estimator=name, **limits).trees for name in ("trie", "shrunk", "independent")
    }
    assert len(set(trees.values())) == 3
    for name, chosen in trees.items():
        assert chosen == tuple(fit(name, half, None, **limits).exact.tree for half in halves)
