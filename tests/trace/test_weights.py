"""Weights of categories: a prompt of weight 3 counts like three such prompts, in the search's counts and in replay."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance_cases import synthetic_trace, traces, trees
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import evaluate
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.sources import expected_tokens_per_step
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import chain
from mtp_bench.trace import RankTrace, replay


def repeated(trace: RankTrace, by_category: dict[str, int]) -> RankTrace:
    """The same question without weights: prompts really repeated."""
    return trace.select([p for p, name in enumerate(trace.categories) for _ in range(by_category.get(name, 1))])


@given(traces(), trees(), st.integers(0, 3), st.integers(1, 3))
def test_a_weight_is_a_number_of_copies(trace, tree, x, y):
    known = {name: weight for name, weight in {"x": x, "y": y}.items() if name in trace.categories}
    copies = repeated(trace, known)
    if copies.num_starts == 0:
        with pytest.raises(InputError, match="no step counts"):
            trace.weighted(known)
        return
    weighted = trace.weighted(known)
    assert weighted.start_weight == copies.num_starts
    assert replay(weighted, tree).tokens_per_step == pytest.approx(replay(copies, tree).tokens_per_step)
    assert replay(weighted, tree).accepted_per_step == pytest.approx(replay(copies, tree).accepted_per_step)
    source, other = TrieSource.from_trace(weighted), TrieSource.from_trace(copies)
    assert expected_tokens_per_step(source, tree) == pytest.approx(expected_tokens_per_step(other, tree))
    figures = evaluate(tree, weighted)
    assert figures.tokens_per_step_all_positions == pytest.approx(expected_tokens_per_step(other, tree))


def test_search_and_figures_follow_the_weights() -> None:
    trace = synthetic_trace(5)
    heavy = trace.weighted({"a": 6})
    assert exact_search(TrieSource.from_trace(heavy), None, max_nodes=12, objective="tokens").tree == (
        exact_search(TrieSource.from_trace(repeated(trace, {"a": 6})), None, max_nodes=12, objective="tokens").tree
    )
    one, other = evaluate(chain(3), trace), evaluate(chain(3), heavy)
    assert one.tokens_per_step != other.tokens_per_step
    assert other.tokens_per_step_ci is not None
    assert other.tokens_per_step_ci[0] < other.tokens_per_step < other.tokens_per_step_ci[1]


def test_weights_follow_the_prompts_and_stay_out_of_files(tmp_path) -> None:
    trace = synthetic_trace(1, prompts=6)
    heavy = trace.weighted({"b": 2.5})
    assert heavy.select([1, 0, 4]).weights.tolist() == [2.5, 1, 2.5]
    assert heavy.digest == trace.digest
    heavy.save(tmp_path / "trace.npz")
    assert RankTrace.load(tmp_path / "trace.npz").weights is None
    assert not heavy.weights.flags.writeable


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"coding": 3.0}, "no prompt is of category 'coding'\n  -> there are: a, b, c"),
        ({"a": -1.0}, "negative"),
        ({"a": float("nan")}, "negative or no number"),
        ({"a": 0.0, "b": 0.0, "c": 0.0}, "no step counts"),
    ],
)
def test_impossible_weights_are_refused(weights, message) -> None:
    with pytest.raises(InputError, match=message.replace("\n", ".*\n")):
        synthetic_trace(0, prompts=6).weighted(weights)


def test_equal_weights_change_nothing() -> None:
    trace = synthetic_trace(2, prompts=9)
    same = trace.weighted({"a": 1.0})
    assert replay(same, chain(2)).tokens_per_step == pytest.approx(replay(trace, chain(2)).tokens_per_step)
    assert np.array_equal(TrieSource.from_trace(same).levels[0].hits, TrieSource.from_trace(trace).levels[0].hits)
