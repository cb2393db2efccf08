"""Exact search against a dynamic programme over budget, depth and branch. Run with ``pytest -n 0 -s`` to see the times.

Depth 16, top-k 32, product model with rates that do not always fall with rank. Asserted: the same optimum at every size
up to the budget. Two versions of the dynamic programme are timed: plain Python (its time grows with the square of the
budget, so at 1,024 nodes only when this file is run as a program), and one whose innermost loop is an array operation.
The exact search answers for every depth limit at once; the last figure is the plain programme's time for that answer,
one run per limit (as its rates differ by depth), checked and timed at 64 nodes, and as a program at 256.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when run as a program
from acceptance_cases import array_dp, plain_dp

from mtp_bench.search import MarginalSource, exact_search

DEPTH, TOP_K = 16, 32
MOST_PLAIN = 256
MOST_DEPTHS = 64


def rates():
    rng = np.random.default_rng(7)
    falling = 0.62 * 0.97 ** np.arange(DEPTH)[:, None] * np.array([1.0, *(0.28 / np.arange(1, TOP_K) ** 1.4)])
    table = falling * rng.uniform(0.7, 1.3, size=falling.shape)
    return table / np.maximum(table.sum(axis=1, keepdims=True) / 0.98, 1)


def timed(function):
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def search(nodes):
    source = MarginalSource(rates())
    found, seconds = timed(lambda: exact_search(source, None, max_nodes=nodes, objective="tokens"))
    seconds = min(
        seconds, *(timed(lambda: exact_search(source, None, max_nodes=nodes, objective="tokens"))[1] for _ in range(4))
    )
    return np.array([point.tokens_per_step for point in found.curve.best_by_size("tokens")]), found, seconds


@pytest.mark.parametrize("nodes", [64, 256, 1024, pytest.param(4096, marks=pytest.mark.slow)])
def test_same_optimum_as_the_dynamic_programme(nodes):
    tokens, found, seconds = search(nodes)
    expected, array_seconds = timed(lambda: array_dp(rates(), nodes))
    line = f"\nexact search, {nodes} nodes: {seconds * 1e3:.1f} ms"
    line += f"; array DP {array_seconds:.2f} s ({array_seconds / seconds:.0f}x)"
    if nodes <= MOST_PLAIN:
        plain, plain_seconds = timed(lambda: plain_dp(rates(), nodes))
        line += f"; plain DP {plain_seconds:.2f} s ({plain_seconds / seconds:.0f}x)"
        assert tokens == pytest.approx(plain, rel=1e-12)
    if nodes <= MOST_DEPTHS:
        by_depth, depth_seconds = timed(lambda: [plain_dp(rates()[:depth], nodes) for depth in range(1, DEPTH + 1)])
        line += f"; for every depth limit {depth_seconds:.2f} s ({depth_seconds / seconds:.0f}x)"
        for depth, expected_tokens in enumerate(by_depth, start=1):
            values = found.growth.value[found.growth.order(depth)][:nodes]
            known = [value for value in expected_tokens[1:] if value > 0]  # depth 1 has no more than top-k nodes
            assert (1 + np.cumsum(values))[: len(known)] == pytest.approx(known, rel=1e-12)
    print(line)
    assert tokens == pytest.approx(expected, rel=1e-12)
    assert found.tree.num_nodes == nodes


if __name__ == "__main__":
    MOST_PLAIN, MOST_DEPTHS = 1024, 256
    for size in (64, 256, 1024):
        test_same_optimum_as_the_dynamic_programme(size)
