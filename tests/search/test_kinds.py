"""Kinds of topologies side by side: the dynamic grid is scored whole, Optuna finds its best, costs decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mtp_bench.cost import DRAFT, DYNAMIC_DRAFT, VERIFY, CostPoint, CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.by_category.transfer import transfer
from mtp_bench.search.kinds import Question, best_chain, compare_kinds, dynamic_search, wanted_kinds
from mtp_bench.search.optimize import OptimizeOptions, optimize
from mtp_bench.topology import DynamicTree, StaticTree, chain, name_of
from mtp_bench.trace import AcceptanceTable, RankTrace, replay

DEPTH, TOP_KS = 4, (2, 4)


def trace_with_pools(prompts: int = 8, length: int = 40, seed: int = 0) -> RankTrace:
    """Random ranks, and pools in which a deeper node of the path stands behind its parent."""
    draw = np.random.default_rng(seed)
    total = prompts * length
    ranks = draw.geometric(0.5, (total, DEPTH)).astype(np.int16) - 1
    left = np.tile(np.arange(length - 1, -1, -1), prompts)
    gone = left[:, None] < np.arange(1, DEPTH + 1)
    pools = {}
    for top_k in TOP_KS:
        places = np.full((total, DEPTH, DEPTH), -1, dtype=np.int16)
        for d in range(DEPTH):
            size = top_k + d * top_k**2
            steps = draw.geometric(0.3, (total, d + 1)).cumsum(axis=1) - 1
            places[:, d, : d + 1] = np.where(steps < size, steps, -1)
        places[np.broadcast_to(gone[:, None, :], places.shape)] = -1
        pools[top_k] = places
    return RankTrace(
        ranks=np.where(gone | (ranks >= 10), -1, ranks).astype(np.int16),
        prompt_offsets=np.arange(prompts + 1) * length,
        top_k=10,
        prompt_ids=tuple(f"p{i}" for i in range(prompts)),
        categories=tuple("ab"[i % 2] for i in range(prompts)),
        pools=pools,
    )


def costs(*, draft_ms: float = 1.0, dynamic_ms: float = 1.0) -> CostTable:
    points = [CostPoint(VERIFY, rows=rows, median_ms=20 + rows / 4) for rows in (1, 8, 16, 32, 64)]
    points += [CostPoint(DRAFT, depth=d, median_ms=draft_ms * d) for d in range(1, DEPTH + 1)]
    points += [
        CostPoint(DYNAMIC_DRAFT, rows=k, depth=d, median_ms=dynamic_ms * d) for d in range(1, DEPTH + 1) for k in TOP_KS
    ]
    return CostTable(tuple(points))


def question(cost: CostTable | None = None, **changes: Any) -> Question:
    return replace(Question(trace_with_pools(), cost, 20, None, None, 1, "speed"), **changes)


def test_the_grid_is_scored_whole_and_its_best_is_the_best() -> None:
    asked = question(costs())
    found = dynamic_search(asked)
    assert found is not None
    grid = [
        DynamicTree(depth, k, n)
        for k in TOP_KS
        for depth in range(1, DEPTH + 1)
        for n in range(1, min(20, k + (depth - 1) * k * k) + 1)
    ]
    assert found.scored == len(grid)
    expected = max(1e3 * replay(asked.trace, tree).tokens_per_step / asked.cost.topology_ms(tree) for tree in grid)  # type: ignore[union-attr]
    assert found.value == pytest.approx(expected)
    assert asked.value(found.best) == pytest.approx(expected)


def test_optuna_alone_comes_within_a_percent() -> None:
    found = dynamic_search(question(costs()), trials=200, seed=1)
    assert found is not None
    assert found.optuna_gap is not None
    assert 0 <= found.optuna_gap < 0.01


def test_dynamic_trees_whose_draft_was_not_measured_are_left_out() -> None:
    table = CostTable(tuple(p for p in costs().points if p.component != DYNAMIC_DRAFT or (p.rows == 2 and p.depth < 3)))
    asked = question(table)
    assert asked.dynamic_limits() == {2: 2}
    found = dynamic_search(asked)
    assert found is not None
    assert found.best.top_k == 2
    assert found.best.depth <= 2
    with pytest.raises(InputError, match=r"draft cost of dynamic:3,4,9 is not known"):
        table.topology_ms(DynamicTree(3, 4, 9))
    assert dynamic_search(question(CostTable(tuple(p for p in costs().points if p.component == VERIFY)))) is None


def test_costs_decide_between_the_kinds() -> None:
    trace = trace_with_pools()
    cheap = optimize(trace, costs(dynamic_ms=0.1, draft_ms=5.0), OptimizeOptions(budget=20, trials=0))
    dear = optimize(trace, costs(dynamic_ms=30.0, draft_ms=0.1), OptimizeOptions(budget=20, trials=0))
    assert cheap.kinds[0].kind == "dynamic"
    assert isinstance(cheap.topology, DynamicTree)
    assert dear.kinds[0].kind != "dynamic"
    assert isinstance(dear.topology, StaticTree)
    assert {one.kind for one in dear.kinds} == {"static", "dynamic", "chain"}
    ratios = [one.evaluation.speed_ratio for one in dear.kinds]
    assert ratios[0] is None
    assert all(one is not None and one.value <= 1 for one in ratios[1:])
    assert cheap.document()["kind"] == "dynamic"
    assert cheap.document()["tokens_per_step"] == cheap.best.tokens_per_step


@pytest.mark.parametrize("kind", ["static", "dynamic", "chain"])
def test_one_kind_can_be_asked_for(kind: str) -> None:
    found = optimize(trace_with_pools(), costs(), OptimizeOptions(budget=20, trials=0, kind=kind))
    assert [one.kind for one in found.kinds] == [kind]


def test_what_cannot_be_judged_is_refused() -> None:
    rates = AcceptanceTable.from_trace(trace_with_pools(), resamples=1)
    with pytest.raises(InputError, match="cannot judge a dynamic topology"):
        optimize(rates, None, OptimizeOptions(objective="tokens", trials=0, kind="dynamic"))
    plain = replace(trace_with_pools(), pools={})
    with pytest.raises(InputError, match="no topology of this kind"):
        optimize(plain, costs(), OptimizeOptions(trials=0, kind="dynamic"))
    assert wanted_kinds("auto", plain) == ("static", "chain")


def test_the_best_chain() -> None:
    asked = question(costs(draft_ms=8.0))
    found = best_chain(asked)
    assert found is not None
    assert found == max((chain(n) for n in range(1, DEPTH + 1)), key=asked.value)
    assert best_chain(replace(asked, budget=0)) is None


def test_best_first_with_paired_ratios() -> None:
    asked = question(costs())
    kinds = compare_kinds(asked, {"chain": chain(1), "static": StaticTree.from_paths([(0,), (1,), (0, 0)])})
    values = [asked.value(one.topology) for one in kinds]
    assert values == sorted(values, reverse=True)


def test_names() -> None:
    assert [name_of(one) for one in (StaticTree(()), chain(3), DynamicTree(5, 4, 12))] == [
        "none",
        "chain:3",
        "dynamic:5,4,12",
    ]
    assert name_of(StaticTree.from_paths([(0,), (1,)])) == "2 nodes"


def test_transfer_of_trees_between_categories() -> None:
    """Where the text of one category is all rank 1 and of the other all rank 0, a foreign tree is worthless."""
    length = 30
    ranks = np.concatenate([np.zeros((length, 2)), np.ones((length, 2))]).astype(np.int16)
    left = np.tile(np.arange(length - 1, -1, -1), 2)
    ranks[left[:, None] < np.arange(1, 3)] = -1
    trace = RankTrace(ranks, np.array([0, length, 2 * length]), 4, ("p", "q"), ("zero", "one"))
    found = transfer(trace, None, budget=2)
    assert found is not None
    assert found.tuned_on == ("one", "zero", "all")
    assert found.used_on == ("one", "zero")
    assert found.loss[0, 0] == found.loss[1, 1] == 0
    assert found.loss[0, 1] == pytest.approx(found.loss[1, 0])
    assert found.loss[0, 1] > 0.6
    assert transfer(replace(trace, categories=("zero", "zero")), None) is None
