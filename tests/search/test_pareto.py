"""The front of latency against throughput: brute force over all pairs, areas, and Optuna beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_schedule import BATCHES, costs, trace

from mtp_bench.search.operating.pareto import ParetoPoint, area, pareto, undominated
from mtp_bench.search.optimize import OptimizeOptions
from mtp_bench.topology import chain
from mtp_bench.trace import replay

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25)


@given(POINTS)
def test_the_front_is_what_no_pair_says_is_beaten(points):
    first, second = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    kept = undominated(first, second)

    def beaten(i):
        return any(
            a >= first[i] and b >= second[i] and (a > first[i] or b > second[i] or j < i)
            for j, (a, b) in enumerate(points)
            if j != i
        )

    assert sorted(kept) == [i for i in range(len(points)) if not beaten(i)]
    assert first[kept].tolist() == sorted(first[kept])


@given(POINTS)
def test_the_area_counts_the_unit_squares_below_the_front(points):
    first, second = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    front = [ParetoPoint(1, chain(0), 1.0, 1.0, first[i], second[i], 1.0) for i in undominated(first, second)]
    squares = sum(any(x < a and y < b for a, b in points) for x in range(6) for y in range(6))
    assert area(front) == pytest.approx(squares)


def test_one_batch_size_has_one_point_on_the_front_and_it_is_its_fastest() -> None:
    """At one batch size throughput is latency times the batch, so the same tree is best in both."""
    found = pareto(trace(), costs(), OptimizeOptions(budget=15, context=128, trials=0), BATCHES)
    assert found.optuna == ()
    assert found.hypervolume_share is None
    for one in found.front:
        others = [p for p in found.points if p.batch == one.batch]
        assert one.per_user == max(p.per_user for p in others)
        assert one.total == pytest.approx(one.batch * one.per_user)
        assert one.tokens_per_step == replay(trace(), one.tree).tokens_per_step
        assert one.per_user == pytest.approx(
            1e3 * one.tokens_per_step / costs().step_ms(one.tree.rows, batch=one.batch, context=128)
        )
    assert [p.batch for p in found.front] == sorted((p.batch for p in found.front), reverse=True)


def test_a_dominated_batch_size_is_left_out() -> None:
    """At batch 16 costs grow faster than the batch: slower for each user and in all than batch 4."""
    table = costs()
    dear = tuple(
        p if p.batch < 16 else type(p)(p.component, p.device, p.dtype, 16, p.rows, p.context, 0, 40 * p.median_ms)
        for p in table.points
    )
    found = pareto(trace(), type(table)(dear), OptimizeOptions(budget=7, context=128, trials=0), BATCHES)
    assert {one.batch for one in found.front} <= {1, 4}


def test_optuna_comes_near_and_never_beyond() -> None:
    found = pareto(trace(), costs(), OptimizeOptions(budget=15, context=128, trials=80, seed=2), BATCHES)
    share = found.hypervolume_share
    assert share is not None
    assert 0.95 < share <= 1 + 1e-12
    document = found.document()
    assert document["optuna"]["trials"] == 80
    assert sum(point["front"] for point in document["points"]) == len(document["front"])
