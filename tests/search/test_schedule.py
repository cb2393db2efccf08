"""Schedules by batch size: fewer nodes at larger batches, none at last, and no switch for a tie."""

from __future__ import annotations

import numpy as np
import pytest

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.operating.schedule import schedule
from mtp_bench.search.optimize import OptimizeOptions
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.trace import RankTrace, replay

ROWS = (1, 2, 4, 8, 16, 32)
BATCHES = (1, 4, 16)


def trace(prompts: int = 12, length: int = 80) -> RankTrace:
    generator = np.random.default_rng(3)
    ranks = (generator.geometric(np.array([0.55, 0.45, 0.4]), size=(prompts * length, 3)) - 1).astype(np.int16)
    ranks[ranks >= 8] = -1
    for depth in (1, 2, 3):
        for prompt in range(prompts):
            ranks[(prompt + 1) * length - depth : (prompt + 1) * length, depth - 1] = -1
    names = tuple(str(i) for i in range(prompts))
    return RankTrace(ranks, np.arange(prompts + 1, dtype=np.int64) * length, 8, names, ("x",) * prompts)


def costs(spread: float = 0.01) -> CostTable:
    """Reading the weights takes 20 ms; computing 0.5 ms for each row of each sequence hides behind it at first."""
    points = []
    for batch in BATCHES:
        for rows in ROWS:
            ms = max(20.0, 0.5 * rows * batch) + 0.3 * rows
            points.append(
                CostPoint("verify", "cpu", "", batch, rows, 128, 0, ms, (1 - spread) * ms, (1 + spread) * ms, 9)
            )
    return CostTable(tuple(points))


def test_larger_batches_take_smaller_trees() -> None:
    found = schedule(trace(), costs(), OptimizeOptions(budget=31, context=128, kind="static"), BATCHES)
    assert [cell.batch for cell in found.cells] == list(range(1, 17))
    assert [cell.batch for cell in found.cells if cell.measured] == list(BATCHES)
    nodes = {cell.batch: cell.topology.num_nodes for cell in found.cells}
    assert nodes[1] > nodes[4] > nodes[16]
    for batch in BATCHES:
        exact = exact_search(TrieSource.from_trace(trace()), costs(), max_nodes=31, context=128, batch=batch)
        assert found.cells[batch - 1].topology == exact.tree
    ranges = found.ranges
    assert (ranges[0].first, ranges[-1].last) == (1, 16)
    assert [one.first for one in ranges[1:]] == [one.last + 1 for one in ranges[:-1]]
    assert 1 < len(ranges) < 16, "neighbouring sizes share a topology where it is not really slower"
    assert all(0 <= one.speed_lost < 0.1 for one in ranges)


def test_costs_between_measured_batches_are_between_theirs() -> None:
    table = costs()
    for rows in (1, 5, 32):
        low, middle, high = (table.step_ms(rows, batch=batch) for batch in (4, 10, 16))
        assert middle == pytest.approx((low + high) / 2)
    assert any("batch 10 was not measured" in note for note in table.notes(batch=10, context=128))
    assert not table.notes(batch=4, context=128)


def test_when_nothing_pays_nothing_is_drafted() -> None:
    """Also where only chains are asked for, of which the best is slower than none at the large batch."""
    points = [
        CostPoint("verify", "cpu", "", batch, rows, 128, 0, 20.0 * (1 if batch == 1 else rows)) for batch in (1, 8)
        for rows in ROWS
    ]  # fmt: skip
    found = schedule(trace(), CostTable(tuple(points)), OptimizeOptions(budget=7, context=128, kind="chain"), (1, 8))
    assert found.cells[0].speculates
    assert not found.cells[-1].speculates
    assert found.ranges[-1].topology.num_nodes == 0
    document = found.document()["batch_schedule"]
    assert document[-1]["num_nodes"] == 0
    assert document[-1]["max_batch_size"] == 8


def test_a_tie_is_no_reason_to_switch() -> None:
    """With costs this uncertain no other tree is really better at any size."""
    found = schedule(trace(prompts=2, length=20), costs(spread=0.9), OptimizeOptions(budget=31, context=128), BATCHES)
    assert len(found.ranges) == 1


def test_the_replay_is_each_cells_own() -> None:
    found = schedule(trace(), costs(), OptimizeOptions(budget=15, context=128), (1, 4))
    for cell in found.cells:
        assert cell.evaluation.tokens_per_step == replay(trace(), cell.topology).tokens_per_step


def test_batches_beyond_the_costs_are_refused() -> None:
    with pytest.raises(InputError, match="no costs for batch 32: measured from 1 to 16"):
        schedule(trace(), costs(), OptimizeOptions(), (1, 32))
