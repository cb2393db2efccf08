"""The programme over subtrees on published numbers, and its table of level widths against trying every tree."""

import heapq

import numpy as np
import pytest
from acceptance_cases import read_data
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_oracles import DEPTH, NODES, SMALL_TREES
from test_constrained_search import SOURCES

from mtp_bench.search import MarginalSource, expected_tokens_per_step, grow
from mtp_bench.search.rules.constrained import constrained_search
from mtp_bench.search.rules.constraints import Constraints, contiguous_siblings
from mtp_bench.search.rules.subtrees import Siblings, Subtrees, levels_of


@pytest.fixture(scope="module")
def sequoia():
    """Sequoia's published acceptance by rank, the same at every depth; it does not fall with rank."""
    return MarginalSource(np.tile(read_data("sequoia_acceptance_vector.json")["rates"][1:-1], (20, 1)))


@pytest.fixture(scope="module")
def contiguous(sequoia):
    rule = Constraints(contiguous=True)
    return constrained_search(sequoia, None, max_nodes=255, constraints=rule, objective="tokens")


def next_sibling_heap(source, max_nodes):
    """What published code does: a heap in which a node, once taken, offers its first child and its next sibling."""
    rates, heap, total = source.per_rank, [(-source.per_rank[0, 0], (0,))], 1.0
    for _ in range(max_nodes):
        value, path = heapq.heappop(heap)
        total -= value
        depth, rank = len(path), path[-1]
        if rank + 1 < rates.shape[1]:
            sibling = value / rates[depth - 1, rank] * rates[depth - 1, rank + 1] if rates[depth - 1, rank] else 0.0
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1)))
        if depth < len(rates):
            heapq.heappush(heap, (value * rates[depth, 0], (*path, 0)))
    return total


@pytest.mark.parametrize(
    ("nodes", "with_gaps", "without", "heap"),
    [(63, 3.8600, 3.8554, 3.8554), (127, 4.2077, 4.2021, 4.1787), (255, 4.5505, 4.5456, 4.5373)],
)
def test_published_vector(sequoia, contiguous, nodes, with_gaps, without, heap):
    assert 1 + sum(value for _, value in grow(sequoia, nodes, 20)) == pytest.approx(with_gaps, abs=5e-5)
    point = max((p for p in contiguous.curve.best_by_size("tokens") if p.num_nodes <= nodes), key=lambda p: p.num_nodes)
    tree = contiguous.tree_of(point)
    assert point.tokens_per_step == pytest.approx(without, abs=5e-5)
    assert expected_tokens_per_step(sequoia, tree) == pytest.approx(point.tokens_per_step)
    assert contiguous_siblings(tree)
    assert next_sibling_heap(sequoia, nodes) == pytest.approx(heap, abs=5e-5)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.none() | st.integers(1, 3))
def test_every_vector_of_widths_has_its_best_tree(kind, seed, contiguous, max_children):
    source = SOURCES[kind](np.random.default_rng(seed))
    top_k = max_children if contiguous else None
    siblings = Siblings(contiguous, None if contiguous else max_children)
    programme = Subtrees(levels_of(source, max_depth=DEPTH, top_k=top_k), siblings, NODES, [3, 4, 4])
    depth = programme.tokens.ndim
    most = programme.tokens.copy()
    for axis in range(depth):
        most = np.maximum.accumulate(most, axis=axis)
    best = {}
    for tree in SMALL_TREES:
        counts = [int(count) for count in tree.children_counts]
        fits = (not contiguous or contiguous_siblings(tree)) and (max_children is None or max(counts) <= max_children)
        if fits and tree.depth <= depth:
            widths = (*tree.level_widths, *[0] * (depth - tree.depth))
            best[widths] = max(best.get(widths, 0.0), expected_tokens_per_step(source, tree))
    for widths in np.ndindex(*most.shape):
        smaller = [value for known, value in best.items() if all(a <= b for a, b in zip(known, widths, strict=True))]
        if sum(widths) <= NODES:
            assert most[widths] == pytest.approx(max(smaller))
        if programme.tokens[widths] > 0:
            tree = programme.tree(widths)
            assert (*tree.level_widths, *[0] * (depth - tree.depth)) == widths
            assert expected_tokens_per_step(source, tree) == pytest.approx(programme.tokens[widths])


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_costs_that_depend_on_level_widths(kind, seed):
    """A draft that pays for each level by its width: the table of widths holds the optimum of any such cost."""
    rng = np.random.default_rng(seed)
    source = SOURCES[kind](rng)
    verify = 10 + np.cumsum(rng.choice([0.0, 0.0, 3.0], size=8))  # in steps
    draft = np.cumsum(rng.uniform(0, 2, size=(DEPTH, 7)), axis=1)  # ms of drafting a level below 0..6 nodes

    def step_ms(widths):
        above = (1, *widths[:-1])
        return verify[sum(widths)] + sum(draft[d, above[d]] for d, width in enumerate(widths) if width)

    levels = levels_of(source, max_depth=DEPTH)
    programme = Subtrees(levels, Siblings(), NODES, [3, NODES, NODES])
    within = [widths for widths in np.ndindex(*programme.tokens.shape) if sum(widths) <= NODES]
    found = max(programme.tokens[widths] / step_ms(widths) for widths in within)
    tried = max(expected_tokens_per_step(source, tree) / step_ms(tree.level_widths) for tree in SMALL_TREES)
    assert found == pytest.approx(tried)


def test_a_tree_that_is_not_there_is_refused():
    programme = Subtrees(levels_of(MarginalSource(np.array([[0.5]])), max_depth=1), Siblings(), 5)
    with pytest.raises(ValueError, match="no tree"):
        Subtrees(programme.levels, Siblings(), 5, [3]).tree((2,))
