"""The map over batch size and context, on costs whose answers are known; and schedules without a direction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from acceptance_cases import make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.operating.operating_range import operating_range
from mtp_bench.search.operating.schedule import join
from mtp_bench.search.optimize import OptimizeOptions

# Rank 0 is right with 0.6, rank 1 with 0.3; depth 1 only.
TRACE = make_trace([[[0]] * 6 + [[1]] * 3 + [[-1]] * 1 + [[-1]]] * 4, top_k=2, depth=1)


def table(ms_by_place: dict[tuple[int, int], tuple[float, float, float]]) -> CostTable:
    """(batch, context) -> ms of 1, 2 and 3 rows."""
    return CostTable(
        tuple(
            CostPoint(batch=batch, context=context, rows=row, median_ms=ms)
            for (batch, context), costs in ms_by_place.items()
            for row, ms in enumerate(costs, start=1)
        )
    )


# Replayed, a step with rank 0 emits 10 / 5 = 2 tokens on this text, with both ranks more.
CHEAP, SLOPED, DEAR = (10.0, 10.0, 10.0), (10.0, 10.0, 30.0), (10.0, 30.0, 60.0)
OPTIONS = OptimizeOptions(budget=2)


def test_each_place_has_its_known_best() -> None:
    cost = table({(1, 512): CHEAP, (4, 512): SLOPED, (1, 4096): SLOPED, (4, 4096): DEAR})
    found = operating_range(TRACE, cost, OPTIONS, (1, 4), (512, 4096))
    best = {(cell.batch, cell.context): cell for cell in found.cells}
    nodes = {place: cell.topology.num_nodes for place, cell in best.items()}
    assert nodes == {(1, 512): 2, (4, 512): 1, (1, 4096): 1, (4, 4096): 0}
    loser = best[4, 4096]
    assert loser.draft is not None
    assert loser.draft.num_nodes == 1
    assert loser.draft_evaluation is not None
    assert loser.draft_evaluation.speedup_predicted == pytest.approx(
        loser.draft_evaluation.tokens_per_step * 10.0 / 30.0
    )
    assert loser.draft_evaluation.speedup_predicted < 1
    assert loser.evaluation.speedup_predicted == 1
    assert all(cell.basis == "measured" for cell in found.cells)
    document = found.document()
    assert document["without_costs"] == []
    assert [one["context"] for one in document["schedules"]] == [512, 4096]
    assert document["schedules"][1]["batch_schedule"][-1]["num_nodes"] == 0


def test_interpolated_places_are_marked_and_nothing_is_taken_from_beyond() -> None:
    cost = table({(1, 512): CHEAP, (1, 4096): CHEAP, (4, 512): SLOPED, (4, 4096): SLOPED, (8, 512): DEAR})
    found = operating_range(TRACE, cost, OPTIONS, (1, 2, 4, 8), (512, 1000, 4096))
    basis = {(cell.batch, cell.context): cell.basis for cell in found.cells}
    assert basis[1, 512] == basis[4, 4096] == basis[8, 512] == "measured"
    assert basis[2, 512] == basis[1, 1000] == basis[2, 1000] == "interpolated"
    assert (8, 4096) not in basis, "batch 8 was measured at 512 only"
    assert found.document()["without_costs"] == [{"batch": 8, "context": 1000}, {"batch": 8, "context": 4096}]
    ranges = {context: (one[0].first, one[-1].last) for context, one in found.schedules.items()}
    assert ranges == {512: (1, 8), 1000: (1, 4), 4096: (1, 4)}


@pytest.mark.parametrize(
    ("batches", "contexts", "message"),
    [((1, 64), (512,), "no costs for batch 64: measured 1, 4"), ((1,), (512, 9000), "no costs for context 9000")],
)
def test_places_without_any_costs_are_refused(batches, contexts, message) -> None:
    cost = table({(1, 512): CHEAP, (4, 512): CHEAP, (1, 4096): CHEAP})
    with pytest.raises(InputError, match=message):
        operating_range(TRACE, cost, OPTIONS, batches, contexts)


LOST = st.integers(1, 4).flatmap(
    lambda candidates: st.lists(
        st.lists(st.sampled_from([0.0, 0.01, 0.03, np.inf]), min_size=candidates, max_size=candidates),
        min_size=1, max_size=6,
    )
)  # fmt: skip


def cost_of(cut, lost, nodes):
    return (
        len(cut),
        round(sum(float(lost[c, a : b + 1].sum()) for a, b, c in cut), 9),
        sum(nodes[c] * (b - a + 1) for a, b, c in cut),
    )


@settings(deadline=None)
@given(LOST)
def test_the_schedule_is_the_best_cut_and_has_no_direction(by_cell):
    lost = np.array(by_cell).T
    lost[0] = np.where(np.isfinite(lost).any(axis=0), lost[0], 0.0)  # every cell has a candidate
    nodes = [7, 3, 2, 1][: len(lost)]
    cells = lost.shape[1]
    found = join(lost, nodes)
    assert [span.first for span in found] == [0, *(span.last + 1 for span in found[:-1])]
    assert found[-1].last == cells - 1
    cuts = []
    for count in range(cells):
        for edges in itertools.combinations(range(1, cells), count):
            ends = [0, *edges, cells]
            spans = [(a, b - 1) for a, b in itertools.pairwise(ends)]
            for chosen in itertools.product(range(len(lost)), repeat=len(spans)):
                cut = [(a, b, c) for (a, b), c in zip(spans, chosen, strict=True)]
                if all(np.isfinite(lost[c, a : b + 1]).all() for a, b, c in cut):
                    cuts.append(cost_of(cut, lost, nodes))
    assert cost_of(found, lost, nodes) == min(cuts)
    backwards = join(lost[:, ::-1], nodes)
    assert cost_of(backwards, lost[:, ::-1], nodes) == cost_of(found, lost, nodes)


def test_walking_up_would_have_kept_what_walking_down_would_not() -> None:
    """Two candidates tie in the middle. A walk keeps whichever it comes from; the cut gives up the least speed."""
    inf = np.inf
    lost = np.array([[0.0, 0.0, 0.01, 0.04, inf], [inf, 0.03, 0.0, 0.0, 0.0]])
    up = [(span.first, span.last, span.candidate) for span in join(lost, [5, 2])]
    down = [(4 - span.last, 4 - span.first, span.candidate) for span in join(lost[:, ::-1], [5, 2])][::-1]
    assert up == down == [(0, 1, 0), (2, 4, 1)]
