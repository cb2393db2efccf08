"""The best tree within rules, against trying every small tree that keeps them."""

import numpy as np
import pytest
from acceptance_cases import cost_table, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_oracles import DEPTH, NODES, RANKS, SMALL_TREES, obeys, rules

from mtp_bench.search import MarginalSource, TrieSource, exact_search, expected_tokens_per_step
from mtp_bench.search.rules.constrained import ConstrainedResult, constrained_search
from mtp_bench.search.rules.constraints import Constraints
from mtp_bench.search.rules.uniform import branching_of
from mtp_bench.topology.shapes import uniform_tree


def uneven_costs(rng):
    """Costs by rows that step and dip, and a draft that costs more the deeper it goes."""
    ms = {rows: float(10 + 3 * rng.random() * (rows // 3) + 2 * rng.random()) for rows in range(1, NODES + 2)}
    draft = {depth: float(depth * rng.uniform(0, 1.5)) for depth in range(1, DEPTH + 1)}
    return cost_table(ms, draft)


def product_source(rng):
    return MarginalSource(rng.dirichlet(np.ones(RANKS + 1), size=DEPTH)[:, :RANKS])


def trie_source(rng):
    """Ranks whose depths depend on each other, so that a poor child may have the richer subtree."""
    first = rng.choice([-1, 0, 1, 2], p=rng.dirichlet(np.ones(4)), size=40)
    laws = rng.dirichlet(np.full(4, 0.5), size=(DEPTH, 5))
    rows = [[r, *(rng.choice([-1, 0, 1, 2], p=laws[d, r + 1]) for d in range(1, DEPTH))] for r in first]
    return TrieSource.from_trace(make_trace([rows], top_k=RANKS, depth=DEPTH))


SOURCES = {"product": product_source, "trace": trie_source}


def value_of(tree, source, cost, objective):
    tokens = expected_tokens_per_step(source, tree)
    return tokens if objective == "tokens" else 1e3 * tokens / cost.step_ms(tree.rows, depth=tree.depth)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("objective", ["speed", "tokens"])
@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), rules())
def test_no_small_tree_within_the_rules_is_better(kind, objective, seed, rule):
    rng = np.random.default_rng(seed)
    source, cost = SOURCES[kind](rng), uneven_costs(rng)
    found = constrained_search(source, cost, max_nodes=NODES, constraints=rule, objective=objective)
    best = max(value_of(tree, source, cost, objective) for tree in SMALL_TREES if obeys(tree, rule))
    assert value_of(found.tree, source, cost, objective) == pytest.approx(best)
    assert obeys(found.tree, rule)
    assert not rule.violations(found.tree)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), rules())
def test_every_point_of_the_curve_is_the_best_of_its_size(kind, seed, rule):
    rng = np.random.default_rng(seed)
    source = SOURCES[kind](rng)
    found = constrained_search(source, uneven_costs(rng), max_nodes=NODES, constraints=rule)
    for point in found.curve.best_by_size("tokens"):
        tree = found.tree_of(point)
        assert (tree.num_nodes, obeys(tree, rule)) == (point.num_nodes, True)
        assert tree.depth <= point.depth
        best = max(
            expected_tokens_per_step(source, tree)
            for tree in SMALL_TREES
            if obeys(tree, rule) and tree.num_nodes <= point.num_nodes
        )
        assert point.tokens_per_step == pytest.approx(best)
        assert expected_tokens_per_step(source, tree) == pytest.approx(best)


@given(rules())
@settings(deadline=None)
def test_violations_are_what_the_definitions_say(rule):
    for tree in SMALL_TREES[::7]:
        assert rule.allows(tree) == obeys(tree, rule), (tree.paths, rule.violations(tree))


def test_the_most_valuable_children_are_not_the_best_ones():
    """One child a node: the chain below the second child is worth more than the first child with nothing below it."""
    rows = [[0, -1]] * 5 + [[1, 0]] * 4 + [[-1, -1]] * 2
    source = TrieSource.from_trace(make_trace([rows], top_k=2, depth=2))
    rule = Constraints(max_children=1)
    found = constrained_search(source, None, max_nodes=2, constraints=rule, objective="tokens")
    assert found.tree.paths == ((1,), (1, 0))
    assert isinstance(found, ConstrainedResult)
    assert found.method == "dynamic programme"
    assert found.proven


def test_without_rules_it_is_the_exact_search():
    source = product_source(np.random.default_rng(1))
    found = constrained_search(source, None, max_nodes=5, objective="tokens")
    assert not isinstance(found, ConstrainedResult)
    assert found.document() == exact_search(source, None, max_nodes=5, objective="tokens").document()


@pytest.mark.parametrize("rule", [Constraints(uniform=True), Constraints(max_width=2)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_optuna_finds_what_the_exact_methods_find(monkeypatch, rule, seed):
    rng = np.random.default_rng(seed)
    source, cost = trie_source(rng), uneven_costs(rng)
    exact = constrained_search(source, cost, max_nodes=NODES, constraints=rule)
    monkeypatch.setattr("mtp_bench.search.rules.uniform.MOST_VECTORS", 0)
    monkeypatch.setattr("mtp_bench.search.rules.constrained.MOST_WORK", 0)
    found = constrained_search(source, cost, max_nodes=NODES, constraints=rule, trials=150)
    assert exact.proven
    assert found.method.startswith("optuna")
    assert obeys(found.tree, rule)
    assert found.best.tokens_per_s == pytest.approx(exact.best.tokens_per_s)
    assert value_of(found.tree, source, cost, "speed") == pytest.approx(found.best.tokens_per_s)
    assert found.proven == (found.lost == 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.none() | st.integers(1, 3), st.booleans())
def test_what_optuna_finds_keeps_the_rules_and_its_word(seed, width, contiguous, children, uniform):
    rng = np.random.default_rng(seed)
    source, cost = trie_source(rng), uneven_costs(rng)
    rule = Constraints(max_width=width, contiguous=contiguous, max_children=children, uniform=uniform)
    exact = constrained_search(source, cost, max_nodes=NODES, constraints=rule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtp_bench.search.rules.uniform.MOST_VECTORS", 0)
        patch.setattr("mtp_bench.search.rules.constrained.MOST_WORK", 0)
        found = constrained_search(source, cost, max_nodes=NODES, constraints=rule, trials=12)
    for point in found.curve.best_by_size("tokens"):
        tree = found.tree_of(point)
        assert obeys(tree, rule)
        assert expected_tokens_per_step(source, tree) == pytest.approx(point.tokens_per_step)
    assert found.best.tokens_per_s <= exact.best.tokens_per_s * (1 + 1e-12)


def test_no_branching_is_scored_twice(monkeypatch):
    """Many parameters name one branching: it ends where a level has no children, or the budget does."""
    asked = []
    real = __import__("mtp_bench.search.rules.uniform", fromlist=["x"]).UniformTokens.__call__
    monkeypatch.setattr("mtp_bench.search.rules.uniform.MOST_VECTORS", 0)
    monkeypatch.setattr("mtp_bench.search.rules.constrained.uniform.UniformTokens.__call__",
                        lambda self, b: (asked.append(b), real(self, b))[1])  # fmt: skip
    found = constrained_search(
        trie_source(np.random.default_rng(0)), None, max_nodes=NODES, constraints=Constraints(uniform=True),
        objective="tokens", trials=80,
    )  # fmt: skip
    scored = asked[: len(asked) - found.scored]  # what follows only builds the family
    assert len(scored) == len(set(scored)) == found.scored < 80


def test_the_study_starts_from_the_clipped_optimum():
    assert branching_of(uniform_tree((3, 2))) == (3, 2)
    tree = exact_search(product_source(np.random.default_rng(3)), None, max_nodes=5, objective="tokens").tree
    assert all(1 <= children <= RANKS for children in branching_of(tree))
