"""What estimating costs beside the plain trie. Run with ``pytest -n 0 -s`` to see the ratios.

The shrunk source offers every rank below every node, seen or not, so its search has more to look at than the trie's; a
resample counts the paths of the trace anew instead of finding them again. Asserted: that both answer the same question.
"""

import time

import numpy as np
import pytest
from acceptance_cases import cost_table, synthetic_trace

from mtp_bench.search import TrieSource, exact_search
from mtp_bench.search.values.shrunk import ShrunkSource
from mtp_bench.search.values.trie import PathIndex
from mtp_bench.trace import RankTrace, resample_weights

COST = cost_table({1: 10.0, 64: 14.0, 1025: 60.0})


def best_of(function, times=5):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def long_trace(repeats=25):
    """About 120,000 positions: the same prompts again and again, so that only the row count grows."""
    one = synthetic_trace(0)
    return one.select(np.tile(np.arange(one.num_prompts), repeats))


@pytest.mark.parametrize("nodes", [63, 1023])
def test_searching_the_shrunk_values(nodes):
    trie = TrieSource.from_trace(synthetic_trace(0))
    plain, plain_seconds = best_of(lambda: exact_search(trie, COST, max_nodes=nodes))
    shrunk, seconds = best_of(lambda: exact_search(ShrunkSource(trie), COST, max_nodes=nodes))
    faint = exact_search(ShrunkSource(trie, 1e-9), COST, max_nodes=nodes)
    print(f"\n{nodes} nodes: trie {plain_seconds * 1e3:.2f} ms, shrunk {seconds * 1e3:.2f} ms", end="")
    print(f" ({seconds / plain_seconds:.1f}x)")
    assert faint.best.tokens_per_step == pytest.approx(plain.best.tokens_per_step, rel=1e-6)
    assert shrunk.best.num_nodes > 0


@pytest.mark.parametrize("trace", [synthetic_trace(0), long_trace()], ids=["4,800 rows", "120,000 rows"])
def test_counting_a_resample_anew(trace: RankTrace):
    weights = resample_weights(trace.num_prompts, resamples=1, seed=0)[0]
    drawn = np.repeat(np.arange(trace.num_prompts), weights)
    index = PathIndex.of(trace).by_prompt(trace)
    counted, seconds = best_of(lambda: index.counted(weights))
    rebuilt, rebuilt_seconds = best_of(lambda: TrieSource.from_trace(trace.select(drawn)))
    print(f"\n{trace.num_positions} rows: counted anew {seconds * 1e3:.2f} ms, ", end="")
    print(f"found again {rebuilt_seconds * 1e3:.2f} ms ({rebuilt_seconds / seconds:.1f}x)")
    ways = [exact_search(source, COST, max_nodes=63) for source in (counted, rebuilt)]
    assert ways[0].tree == ways[1].tree
