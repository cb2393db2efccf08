import numpy as np
import pytest
from acceptance_cases import make_trace, slow_accepted, slow_replay, synthetic_trace, traces, trees
from hypothesis import given

from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, chain
from mtp_bench.trace import StepStats, accepted_lengths, merge_traces, replay


@given(traces(), trees())
def test_accepted_lengths_equal_a_set_lookup(trace, tree):
    accepted = accepted_lengths(trace, tree)
    assert accepted.dtype == np.int8
    assert accepted.tolist() == slow_accepted(trace, tree)


@given(traces(), trees())
def test_replay_equals_decoding_token_by_token(trace, tree):
    run = replay(trace, tree)
    steps, lengths, truncated = slow_replay(trace, tree)
    assert run.steps.tolist() == steps
    assert run.tokens.tolist() == [max(length - 1, 0) for length in trace.prompt_lengths]
    assert run.truncated_steps == truncated
    assert run.accepted_histogram.tolist() == np.bincount(lengths, minlength=tree.depth + 1).tolist()


@given(traces(), trees())
def test_figures_agree_with_each_other(trace, tree):
    run = replay(trace, tree)
    assert run.tokens_per_step == 1 + run.accepted_per_step
    assert 1 <= run.tokens_per_step <= tree.depth + 1
    if run.total_steps:
        assert run.tokens_per_step == pytest.approx(run.total_tokens / run.total_steps)
        rates = run.stats.unconditional_rates
        assert sum(rates) == pytest.approx(run.accepted_per_step)
        assert all(0 <= rate <= 1 for rate in rates)
        assert list(rates) == sorted(rates, reverse=True)
        assert all(rate is None or 0 <= rate <= 1 for rate in run.stats.conditional_rates)
        assert run.depth_accepts.tolist() == list(run.stats.depth_accepts)


@given(traces(), trees(), trees())
def test_a_superset_accepts_at_least_as_much_everywhere(trace, one, other):
    both = StaticTree.from_paths(set(one.paths) | set(other.paths))
    larger = accepted_lengths(trace, both)
    assert (larger >= accepted_lengths(trace, one)).all()
    assert (larger >= accepted_lengths(trace, other)).all()


@given(traces(max_prompts=8), trees())
def test_shards_replay_to_the_same_counts(trace, tree):
    shards = [trace.select(range(s, trace.num_prompts, 4)) for s in range(4)]
    whole, merged = replay(trace, tree), replay(merge_traces(shards), tree)
    assert whole.accepted_histogram.tolist() == merged.accepted_histogram.tolist()
    assert (whole.total_steps, whole.total_tokens) == (merged.total_steps, merged.total_tokens)


def test_a_step_by_hand():
    # Rows 0..5; the chain of 2 accepts [2, 0, 0, 2, 1, 0]: start 0 -> 3, there room for 1 -> 5, the last row.
    ranks = [[0, 0], [1, 0], [-1, 0], [0, 0], [0, 1], [0, 0]]
    run = replay(make_trace([ranks], top_k=2, depth=2), chain(2))
    assert run.steps.tolist() == [2]
    assert run.tokens.tolist() == [5]
    assert run.truncated_steps == 1
    assert run.accepted_histogram.tolist() == [0, 1, 1]


def test_without_speculation_every_token_is_a_step():
    trace = synthetic_trace(0)
    run = replay(trace, chain(0))
    assert run.steps.tolist() == run.tokens.tolist() == (trace.prompt_lengths - 1).tolist()
    assert run.tokens_per_step == 1.0


def test_many_rows_cross_block_borders():
    trace = synthetic_trace(3, prompts=700)  # 84,000 rows
    tree = StaticTree.from_paths([(0,), (1,), (0, 0), (0, 2), (0, 0, 1), (1, 0)])
    assert accepted_lengths(trace, tree).tolist() == slow_accepted(trace, tree)


def test_nodes_beyond_what_was_recorded_are_never_accepted():
    trace = make_trace([[[0, 1], [1, 0], [0, 0], [1, 1]]], top_k=2, depth=2)
    inside = StaticTree.from_paths([(0,), (0, 1)])
    beyond = StaticTree.from_paths([(0,), (0, 1), (0, 1, 0), (2,), (20000,), (20000, 0)])
    assert accepted_lengths(trace, beyond).tolist() == accepted_lengths(trace, inside).tolist()


def test_empty_prompts_take_no_steps():
    trace = make_trace([[], [[0]], [[0], [0], [0]], []], top_k=1, depth=1)
    run = replay(trace, chain(1))
    assert run.steps.tolist() == [0, 0, 1, 0]
    assert run.tokens.tolist() == [0, 0, 2, 0]
    assert replay(trace.select([0, 1]), chain(1)).tokens_per_step == 1.0


# ----- figures from counts


def test_each_definition_by_its_name():
    stats = StepStats.from_accepted([3, 0, 1, 2, 0, 3, 1, 0], depth=3)
    assert (stats.steps, stats.drafted_nodes, stats.accepted_drafts, stats.emitted_tokens) == (8, 24, 10, 18)
    assert stats.draft_accept_rate_nodes == pytest.approx(0.4167, abs=5e-5)
    assert stats.accepted_per_step == 1.25
    assert stats.tokens_per_step == 2.25
    assert stats.unconditional_rates == (0.625, 0.375, 0.25)
    assert stats.conditional_rates == pytest.approx((0.625, 0.6, 2 / 3))


def test_a_tree_has_two_draft_rates():
    stats = StepStats.from_accepted([2, 0], depth=2, nodes_per_step=5)
    assert stats.draft_accept_rate_nodes == 0.2
    assert stats.draft_accept_rate_depth == 0.5


@pytest.mark.parametrize("bad", [4, -1])
def test_impossible_counts_name_the_step(bad):
    with pytest.raises(InputError, match="step 2"):
        StepStats.from_accepted([3, 0, bad], depth=3)


def test_no_steps_is_not_a_rate_of_zero():
    with pytest.raises(InputError, match="no speculation steps"):
        StepStats.from_accepted([], depth=3)


def test_rates_without_observations_are_none():
    assert StepStats.from_accepted([0, 0], depth=2).conditional_rates == (0.0, None)
    assert StepStats.from_accepted([0], depth=0).draft_accept_rate_nodes is None
    assert StepStats.from_accepted([0], depth=0).draft_accept_rate_depth is None
