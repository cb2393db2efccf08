"""Random traces, trees and costs, and slow, obvious ways to compute what the package computes fast."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace

DATA = Path(__file__).parent / "data"


def read_data(name):
    return json.loads((DATA / name).read_text())


def published_accuracies(size="7b"):
    """float64 [5, 5]: rates by rank of the published Medusa-1 heads (the file holds cumulative ones)."""
    return np.diff(np.array(read_data("medusa_head_accuracy.json")["vicuna"][size]), axis=1, prepend=0.0)


# ----- traces


def make_trace(rows_by_prompt, *, top_k, depth, categories=None):
    """A trace from lists of rank rows; ranks past the end of a prompt are cleared."""
    lengths = [len(rows) for rows in rows_by_prompt]
    ranks = np.array([row for rows in rows_by_prompt for row in rows], dtype=np.int16).reshape(-1, depth)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    left = np.repeat(offsets[1:], lengths) - 1 - np.arange(len(ranks))
    ranks[left[:, None] < np.arange(1, depth + 1)] = -1
    names = tuple(f"p{i}" for i in range(len(lengths)))
    return RankTrace(ranks, offsets, top_k, names, tuple(categories or ["all"] * len(lengths)))


def synthetic_trace(seed, *, prompts=40, length=120, depth=4, top_k=10):
    """Prompts of differing difficulty whose answers have easy and hard stretches, as real ones do."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(prompts):
        ease = rng.choice([0.25, 0.45, 0.7], p=[0.3, 0.4, 0.3])
        stretch = np.repeat(rng.uniform(0.6, 1.3, size=length // 10 + 1), 10)[:length, None]
        ranks = rng.geometric(np.clip(ease * stretch / np.arange(1, depth + 1) ** 0.4, 0.05, 0.95)) - 1
        texts.append(np.where(ranks >= top_k, -1, ranks).tolist())
    categories = ["abc"[i % 3] for i in range(prompts)]
    return make_trace(texts, top_k=top_k, depth=depth, categories=categories)


def hidden_difficulty_trace(seed, *, prompts=160, length=200, depth=5, top_k=10):
    """Every token is easy, middling or hard, and difficulty lasts (a hidden Markov chain); deeper drafts are worse.

    The same hard token is missed by every draft that reaches it, so depths are right together, and steps, which start
    behind a token that was missed, start in harder places than the average.
    """
    rng = np.random.default_rng(seed)
    ease = np.array([0.85, 0.5, 0.15])
    lasting = 0.8 * np.eye(3) + 0.2 / 3
    texts = []
    for _ in range(prompts):
        state = [int(rng.integers(3))]
        while len(state) < length + depth:
            state.append(int(rng.choice(3, p=lasting[state[-1]])))
        token = np.arange(length)[:, None] + np.arange(1, depth + 1)
        ranks = rng.geometric(ease[np.array(state)][token - 1] * 0.88 ** np.arange(depth)) - 1
        texts.append(np.where(ranks >= top_k, -1, ranks).tolist())
    return make_trace(texts, top_k=top_k, depth=depth)


@st.composite
def traces(draw, *, max_prompts=4, max_length=12, max_depth=4, max_top_k=4):
    depth, top_k = draw(st.integers(1, max_depth)), draw(st.integers(1, max_top_k))
    row = st.lists(st.integers(-1, top_k - 1), min_size=depth, max_size=depth)
    prompts = draw(st.lists(st.lists(row, max_size=max_length), max_size=max_prompts))
    categories = draw(st.lists(st.sampled_from("xy"), min_size=len(prompts), max_size=len(prompts)))
    return make_trace(prompts, top_k=top_k, depth=depth, categories=categories)


@st.composite
def trees(draw, *, max_nodes=12, max_depth=5, max_rank=4):
    path = st.lists(st.integers(0, max_rank), min_size=1, max_size=max_depth)
    wanted = draw(st.lists(path, max_size=max_nodes))
    return StaticTree.from_paths({tuple(p) for p in wanted}, complete_prefixes=True)


def slow_accepted(trace, tree):
    """Accepted length of every row, by looking prefixes up in a set."""
    paths = set(tree.paths)
    lengths = []
    for row in trace.ranks.tolist():
        length = 0
        while length < len(row) and tuple(row[: length + 1]) in paths:
            length += 1
        lengths.append(length)
    return lengths


def slow_replay(trace, tree):
    """(steps by prompt, accepted lengths of all steps, truncated steps), token by token."""
    accepted, steps, lengths, truncated = slow_accepted(trace, tree), [], [], 0
    for start, end in itertools.pairwise(trace.prompt_offsets.tolist()):
        count, row = 0, start
        while row < end - 1:
            room = end - 2 - row
            truncated += accepted[row] > room
            lengths.append(min(accepted[row], room))
            row += 1 + lengths[-1]
            count += 1
        steps.append(count)
    return steps, lengths, truncated


# ----- costs


def cost_table(ms_by_rows, draft_ms=None, **fields):
    """A table of verify costs by row count, and draft costs by depth."""
    verify = [CostPoint(rows=rows, median_ms=ms, **fields) for rows, ms in ms_by_rows.items()]
    draft = [CostPoint(component="draft", depth=d, median_ms=ms) for d, ms in (draft_ms or {}).items()]
    return CostTable((*verify, *draft))


T3_RATES = np.array([[0.6, 0.2, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.05]])


def t3_cost():
    """10.0 ms for 1 row, 10.2 for 2-4, 12.5 for 5-8, 20.0 from 9 on."""
    return cost_table({1: 10.0, 2: 10.2, 4: 10.2, 5: 12.5, 8: 12.5, 9: 20.0, 40: 20.0})


# ----- search oracles


def all_trees(ranks, depth, max_nodes):
    """Every tree of up to ``max_nodes`` nodes over the given ranks and depth, by adding one node at a time."""
    level = {frozenset()}
    yield frozenset()
    for _ in range(max_nodes):
        grown = set()
        for tree in level:
            for parent in ((), *tree):
                if len(parent) < depth:
                    grown |= {tree | {(*parent, r)} for r in range(ranks) if (*parent, r) not in tree}
        level = grown
        yield from level


def plain_dp(rates, max_nodes):
    """Best expected tokens for 0..max_nodes nodes under the product model: budget x depth x branch, plain Python.

    ``below[n]`` is the most that n nodes below a node of one depth add, given that it was accepted; the children are
    offered one rank after the other, each with any share of the budget. Ranks may be left out.
    """
    below = [0.0] + [float("-inf")] * max_nodes
    for depth_rates in reversed(np.asarray(rates).tolist()):
        subtree = [1.0 + value for value in below[:-1]]  # a child and n nodes below it, by n
        taken = [0.0] + [float("-inf")] * max_nodes
        for rate in depth_rates:
            if rate <= 0:
                continue
            best = list(taken)
            for n in range(1, max_nodes + 1):
                for share in range(1, n + 1):
                    value = taken[n - share] + rate * subtree[share - 1]
                    if value > best[n]:
                        best[n] = value
            taken = best
        below = taken
    return [1.0 + value for value in below]


def array_dp(rates, max_nodes):
    """The same dynamic programme with its innermost loop as one array operation, for large budgets."""
    nothing = np.full(max_nodes + 1, -np.inf)
    nothing[0] = 0.0
    below = nothing
    for depth_rates in np.asarray(rates)[::-1]:
        subtree = 1.0 + below[:-1]
        taken = nothing
        for rate in depth_rates[depth_rates > 0]:
            best = taken.copy()
            for share in range(1, max_nodes + 1):
                if subtree[share - 1] == -np.inf:
                    break
                np.maximum(best[share:], taken[: max_nodes + 1 - share] + rate * subtree[share - 1], out=best[share:])
            taken = best
        below = taken
    return 1.0 + below
