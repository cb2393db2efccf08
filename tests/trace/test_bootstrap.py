import numpy as np
import pytest
from acceptance_cases import read_data, synthetic_trace

from mtp_bench.errors import InputError
from mtp_bench.topology import chain
from mtp_bench.trace import paired_difference, paired_ratio, ratio_interval, replay, resample_weights


def published_run(name):
    """Tokens and steps of each of the 80 MT-bench questions."""
    questions = read_data("medusa_mtbench_runs.json")["runs"][name]
    return [sum(q["tokens"]) for q in questions], [sum(q["steps"]) for q in questions]


@pytest.mark.parametrize(("model", "expected"), [("7b", 2.565), ("13b", 2.639), ("33b", 2.514)])
def test_published_runs_pool_to_their_tokens_per_step(model, expected):
    for repeat in ("", "-1", "-2"):
        interval = ratio_interval(*published_run(f"vicuna-{model}{repeat}"))
        assert interval.value == pytest.approx(expected, abs=5e-4)


def test_the_published_7b_interval():
    interval = ratio_interval(*published_run("vicuna-7b"))
    assert interval.low == pytest.approx(2.49, abs=0.01)
    assert interval.high == pytest.approx(2.64, abs=0.01)


def test_the_interval_is_that_of_a_plain_bootstrap():
    tokens, steps = (np.array(column) for column in published_run("vicuna-7b"))
    rng = np.random.default_rng(5)
    drawn = [rng.integers(0, len(tokens), len(tokens)) for _ in range(4000)]
    low, high = np.percentile([tokens[d].sum() / steps[d].sum() for d in drawn], [2.5, 97.5])
    interval = ratio_interval(tokens, steps)
    assert interval.low == pytest.approx(low, abs=0.01)
    assert interval.high == pytest.approx(high, abs=0.01)


def test_every_resample_draws_as_many_prompts():
    weights = resample_weights(7, resamples=50, seed=1)
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert (weights != 1).any()


def test_the_seed_decides():
    run = published_run("vicuna-7b")
    assert ratio_interval(*run, seed=3) == ratio_interval(*run, seed=3)
    assert ratio_interval(*run, seed=3) != ratio_interval(*run, seed=4)


def test_one_prompt_has_no_interval():
    assert ratio_interval([10], [4]) is None
    assert paired_difference(([10], [4]), ([10], [5])) is None


def test_paired_differences_are_much_narrower():
    trace = synthetic_trace(1, prompts=80)
    one, two = (replay(trace, chain(n)) for n in (2, 3))
    alone = ratio_interval(two.tokens, two.steps)
    paired = paired_difference((one.tokens, one.steps), (two.tokens, two.steps))
    assert paired.value == pytest.approx(two.tokens_per_step - one.tokens_per_step)
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)
    assert paired.excludes(0)


def test_a_tree_ties_with_itself():
    run = published_run("vicuna-7b")
    assert paired_difference(run, run).bounds == (0, 0)
    assert paired_ratio(run, run).bounds == (1, 1)
    assert not paired_ratio(run, run).excludes(1)


def test_a_paired_ratio_by_hand():
    interval = paired_ratio(([10, 20], [5, 10]), ([10, 20], [4, 8]))
    assert (interval.value, interval.low, interval.high) == pytest.approx((1.25, 1.25, 1.25))


def test_prompts_without_steps_do_not_break_it():
    interval = ratio_interval([0, 0, 30], [0, 0, 10])
    assert interval.bounds == pytest.approx((3, 3))
    assert ratio_interval([0, 0], [0, 0]) is None


def test_different_prompts_cannot_be_paired():
    with pytest.raises(InputError, match="same prompts"):
        paired_difference(([1, 2], [1, 1]), ([1, 2, 3], [1, 1, 1]))
    with pytest.raises(InputError, match="one value per prompt"):
        ratio_interval([1, 2], [1])
