import itertools

import numpy as np
import pytest
from acceptance_cases import cost_table, hidden_difficulty_trace, slow_accepted, synthetic_trace, traces, trees
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search import TrieSource, exact_search, expected_tokens_per_step
from mtp_bench.search.values.refit import refit
from mtp_bench.search.values.trie import PathIndex
from mtp_bench.topology import StaticTree
from mtp_bench.trace import replay, step_starts

COST = cost_table({1: 10.0, 8: 11.0, 16: 13.0, 64: 22.0})


def slow_starts(trace, tree):
    accepted, starts = slow_accepted(trace, tree), np.zeros(trace.num_positions, dtype=bool)
    for start, end in itertools.pairwise(trace.prompt_offsets.tolist()):
        row = start
        while row < end - 1:
            starts[row] = True
            row += 1 + min(accepted[row], end - 2 - row)
    return starts


@given(traces(max_length=25), trees())
def test_counted_where_its_steps_start_a_tree_is_worth_its_replay(trace, tree):
    if trace.num_starts == 0:
        return
    starts = step_starts(trace, tree)
    assert starts.tolist() == slow_starts(trace, tree).tolist()
    source = PathIndex.of(trace, room=1).counted(starts)
    assert expected_tokens_per_step(source, tree) == pytest.approx(replay(trace, tree).tokens_per_step)


@given(traces(max_prompts=3), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_weighted_rows_count_like_repeated_prompts(trace, times):
    weights = np.array(times[: trace.num_prompts], dtype=np.int64)
    repeated = trace.select(np.repeat(np.arange(trace.num_prompts), weights))
    if repeated.num_starts == 0:
        return
    rows = weights[trace.prompt_of_row]
    counted = TrieSource.from_trace(repeated)
    for weighted in (TrieSource.from_trace(trace, rows), PathIndex.of(trace).by_prompt(trace).counted(weights)):
        assert weighted.num_starts == counted.num_starts
        paths = [()]
        while paths:
            path = paths.pop()
            assert weighted.children(path) == counted.children(path)
            paths += [(*path, rank) for rank, _ in counted.children(path)]
        everything = {"max_nodes": 30, "objective": "tokens"}
        assert exact_search(weighted, None, **everything).tree == exact_search(counted, None, **everything).tree


@pytest.mark.parametrize("objective", ["speed", "tokens"])
@pytest.mark.parametrize("seed", range(4))
def test_never_replays_worse_than_the_tree_of_the_trie(seed, objective):
    trace, limits = hidden_difficulty_trace(seed, prompts=12, length=80), {"max_nodes": 31, "objective": objective}
    found = refit(trace, COST, **limits)
    trie = exact_search(TrieSource.from_trace(trace), COST, **limits)
    first, best = found.rounds[0], found.rounds[found.best]
    assert (first.num_nodes, first.depth) == (trie.best.num_nodes, trie.best.depth)
    assert first.tokens_per_step == replay(trace, trie.tree).tokens_per_step
    if objective == "speed":
        assert best.tokens_per_s == max(one.tokens_per_s for one in found.rounds)
    else:
        assert best.tokens_per_step == max(one.tokens_per_step for one in found.rounds)
    assert (found.starts is None) == (found.best == 0)


def test_some_refit_gains_by_replay():
    gains = []
    for seed in range(6):
        found = refit(hidden_difficulty_trace(seed, prompts=30), None, max_nodes=15, objective="tokens")
        gains.append(found.rounds[found.best].tokens_per_step - found.rounds[0].tokens_per_step)
        # Every round's own figure is made where the tree before started its steps, so it is close to the replay.
        last = found.rounds[-1]
        assert last.tokens_per_step_estimated == pytest.approx(last.tokens_per_step, rel=0.02)
    assert max(gains) > 0


def test_a_tree_that_comes_back_ends_the_rounds():
    trace = synthetic_trace(0)
    found = refit(trace, None, rounds=50, max_nodes=3, objective="tokens")
    assert len(found.rounds) < 20


def test_rows_without_weight_are_refused():
    trace = synthetic_trace(0, prompts=2, length=10)
    with pytest.raises(InputError, match="weight"):
        TrieSource.from_trace(trace, np.zeros(trace.num_positions))
    assert step_starts(trace, StaticTree(())).sum() == trace.num_starts
