"""The data behind the heat maps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from synthetic_run import CATEGORIES, make_trace

from mtp_bench.report.acceptance import acceptance_grid, category_grids, draw_acceptance
from mtp_bench.trace import AcceptanceTable


def test_grid_places_rates_and_completes_them_by_the_miss() -> None:
    table = pd.DataFrame(
        {
            "depth": [1, 1, 2, 2],
            "rank": [0, 2, 0, 1],
            "rate_conditional": [0.5, 0.2, 0.25, np.nan],
            "n_conditional": [100, 100, 70, 70],
        }
    )
    grid = acceptance_grid(table)
    np.testing.assert_array_equal(grid.rates, [[0.5, np.nan, 0.2], [0.25, np.nan, np.nan]])
    np.testing.assert_allclose(grid.miss, [0.3, 0.75])
    assert grid.n.tolist() == [100, 70]


def test_grid_without_counts_or_a_whole_depth() -> None:
    grid = acceptance_grid(pd.DataFrame({"depth": [1, 3], "rank": [0, 0], "rate_conditional": [0.5, 0.25]}))
    assert grid.n.tolist() == [0, 0, 0]
    assert np.isnan(grid.miss[1])
    draw_acceptance(grid)  # must not stumble over the empty row


def test_frame_lists_every_cell_and_sums_to_one() -> None:
    frame = acceptance_grid(pd.DataFrame(AcceptanceTable.from_trace(make_trace(), resamples=1).rows())).frame()
    assert len(frame) == 4 * (10 + 1)
    np.testing.assert_allclose(frame.groupby("depth")["rate_conditional"].sum(), 1.0)


def test_categories_add_up_to_all_prompts() -> None:
    trace = make_trace()
    whole = AcceptanceTable.from_trace(trace, resamples=1).measured
    assert whole is not None
    grids = category_grids(trace)
    assert [grid.title for grid in grids] == [f"{name} (8 prompts)" for name in CATEGORIES]
    hits = sum(np.nan_to_num(grid.rates) * grid.n[:, None] for grid in grids)
    np.testing.assert_allclose(hits, whole.hits)
    assert grids[0].rates[0, 0] > grids[2].rates[0, 0]  # coding was made the easiest, writing the hardest


def test_one_category_needs_no_second_figure() -> None:
    trace = make_trace()
    assert category_grids(trace.select([0, 3, 6])) == ()
