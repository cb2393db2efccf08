"""Which topologies race: few, unlike, within reach, and never without the baseline."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from test_kinds import costs, trace_with_pools

from mtp_bench.search.evaluate import evaluate_all
from mtp_bench.search.optimize import Optimization, OptimizeOptions, optimize
from mtp_bench.search.race.candidates import LEAST_RATIO_OF_ROWS, REACH, Candidate, race_candidates
from mtp_bench.topology import StaticTree

TRACE, COST = trace_with_pools(prompts=24), costs()


def candidates(limit: int = 6, **wanted: Any) -> tuple[Optimization, list[Candidate]]:
    found = optimize(TRACE, COST, OptimizeOptions(budget=40, trials=0, **wanted))
    return found, race_candidates(found, TRACE, COST, limit)


def static_of(chosen: list[Candidate]) -> list[Candidate]:
    return [one for one in chosen if one.why in ("best static", "smallest within 1%", "within reach")]


@pytest.mark.parametrize("limit", [1, 3, 6, 50])
def test_the_baseline_then_the_best_of_every_kind_then_trees_within_reach(limit: int) -> None:
    found, chosen = candidates(limit)
    assert len(chosen) <= limit + 1
    assert chosen[0].name == "none"
    assert chosen[0].topology == StaticTree(())
    assert [one.why for one in chosen[1:4]] == [f"best {one.kind}" for one in found.kinds][:limit]
    assert chosen[1].topology == found.topology
    assert len({one.name for one in chosen}) == len({one.topology.id for one in chosen}) == len(chosen)


def test_static_trees_are_unlike_and_as_fast_as_the_best_or_nearly() -> None:
    found, chosen = candidates(50, kind="static")
    static = static_of(chosen)
    assert len(static) > 2
    for one, other in combinations(sorted(tree.topology.rows for tree in static), 2):
        assert other >= LEAST_RATIO_OF_ROWS * one
    for tree in static:
        _, figures = evaluate_all([found.topology, tree.topology], TRACE, COST)
        if tree.why != "best static":
            assert figures.speed_ratio is not None
            assert figures.speed_ratio.value >= 1 - REACH or figures.speed_ratio.high >= 1
    # Nothing within reach is left out but for one that is like it and at least as fast.
    by_size = {point.num_nodes: found.exact.tree_of(point) for point, _ in found.curve if point.num_nodes}
    _, *all_figures = evaluate_all([found.topology, *by_size.values()], TRACE, COST)
    for tree, figures in zip(by_size.values(), all_figures, strict=True):
        assert figures.speed_ratio is not None
        if figures.speed_ratio.value >= 1 - REACH:
            assert any(
                max(tree.rows, one.topology.rows) < LEAST_RATIO_OF_ROWS * min(tree.rows, one.topology.rows)
                for one in static
            )


def test_one_kind_asked_for_is_the_only_one_that_races() -> None:
    assert {one.why for one in candidates(kind="chain")[1]} == {"baseline", "best chain"}
    assert {one.why for one in candidates(kind="static")[1]} <= {
        "baseline", "best static", "smallest within 1%", "within reach",
    }  # fmt: skip


def test_where_speculation_does_not_pay_the_baseline_is_there_once() -> None:
    dear = costs(draft_ms=200.0, dynamic_ms=200.0)
    found = optimize(TRACE, dear, OptimizeOptions(budget=40, trials=0))
    assert found.tree.num_nodes == 0
    chosen = race_candidates(found, TRACE, dear, 6)
    assert [one.topology.num_nodes for one in chosen].count(0) == 1
    assert {one.why for one in chosen} == {"baseline", "best chain", "best dynamic"}
