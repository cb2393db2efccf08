"""Replay of a 63-node tree over a million positions. Run with ``pytest -n 0 -s tests/benchmarks/test_replay_speed.py``.

Prints the time (aim: below 0.1 s on one core); asserts only that the result is that of decoding token by token.
"""

import time

import numpy as np
from acceptance_cases import read_data, slow_replay

from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace, replay

POSITIONS, PROMPT_LENGTH, DEPTH, TOP_K = 1_000_000, 250, 5, 10


def million_positions():
    rng = np.random.default_rng(0)
    ranks = (rng.geometric(0.4, size=(POSITIONS, DEPTH)) - 1).astype(np.int16)
    ranks[ranks >= TOP_K] = -1
    offsets = np.arange(0, POSITIONS + 1, PROMPT_LENGTH)
    left = PROMPT_LENGTH - 1 - np.arange(POSITIONS) % PROMPT_LENGTH
    ranks[left[:, None] < np.arange(1, DEPTH + 1)] = -1
    prompts = len(offsets) - 1
    return RankTrace(ranks, offsets, TOP_K, tuple(map(str, range(prompts))), ("all",) * prompts)


def test_replay_of_a_million_positions():
    trace = million_positions()
    tree = StaticTree.from_paths(read_data("medusa_trees.json")["mc_sim_7b_63"])
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        run = replay(trace, tree)
        seconds.append(time.perf_counter() - start)
    first, best = seconds[0], min(seconds)
    start = time.perf_counter()
    steps, lengths, _ = slow_replay(trace, tree)
    plain = time.perf_counter() - start
    print(
        f"\nreplay, {tree.num_nodes} nodes, {POSITIONS:,} positions, {run.total_steps:,} steps: "
        f"first {first * 1e3:.0f} ms, best of 5 {best * 1e3:.0f} ms; plain Python {plain:.1f} s ({plain / best:.0f}x)"
    )
    assert run.steps.tolist() == steps
    assert run.accepted_histogram.tolist() == np.bincount(lengths, minlength=tree.depth + 1).tolist()
