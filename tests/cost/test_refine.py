"""The rule that chooses rows: on known curves its grid beats fixed grids of the same size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.cost import Measured, first_rows, next_rows

Curve = Callable[[int], float]
MAX_ROWS, POINTS = 128, 16


def steps(*at: int, height: float = 3.0, slope: float = 0.0) -> Curve:
    return lambda rows: 10 + slope * rows + height * sum(rows >= first for first in at)


def bend(at: int) -> Curve:
    return lambda rows: 10 + 0.5 * max(0, rows - at)


CURVES: dict[str, Curve] = {
    "flat then linear": bend(70),
    "steps after powers of two": steps(17, 33, 65),
    "steps on a slope": steps(17, 65, height=4, slope=0.05),
    "steps after multiples of 8": steps(25, 73),
    "a dip at 2 rows": lambda rows: 8 if rows == 2 else 10 + 0.05 * rows,
    "linear": lambda rows: 5 + 0.3 * rows,
}


def adaptive(curve: Curve, points: int, *, noise: float = 0.0, seed: int = 0, max_rows: int = MAX_ROWS) -> dict:  # type: ignore[type-arg]
    """Measure as the rule says."""
    draw = np.random.default_rng(seed)
    measured: dict[int, Measured] = {}
    rows = first_rows(max_rows)
    while rows:
        assert not set(rows) & set(measured)
        for row in rows:
            measured[row] = Measured(curve(row) * (1 + noise * draw.standard_normal()), noise * curve(row))
        rows = next_rows(measured, points - len(measured))
    return measured


def worst_error(curve: Curve, measured: dict[int, Measured], max_rows: int = MAX_ROWS) -> float:
    """Largest relative error of linear interpolation."""
    every = np.arange(1, max_rows + 1)
    truth = np.array([curve(int(row)) for row in every])
    known = sorted(measured)
    return float(np.abs(np.interp(every, known, [measured[row].ms for row in known]) / truth - 1).max())


def fixed_grids(points: int) -> dict[str, list[int]]:
    """Of just so many rows: evenly spaced, and in constant ratio (as far as whole numbers allow)."""
    even = np.linspace(1, MAX_ROWS, points).round().astype(int).tolist()
    ratio = next(
        grid for size in range(points, 4 * points)
        if len(grid := sorted(set(np.geomspace(1, MAX_ROWS, size).round().astype(int).tolist()))) >= points
    )  # fmt: skip
    return {"even": even, "constant ratio": [*ratio[: points - 1], MAX_ROWS]}


@pytest.mark.parametrize("name", CURVES)
def test_the_grid_beats_fixed_grids_of_its_size(name: str) -> None:
    curve = CURVES[name]
    measured = adaptive(curve, POINTS)
    assert len(measured) == POINTS
    own = worst_error(curve, measured)
    for grid in fixed_grids(POINTS).values():
        assert len(set(grid)) == POINTS
        fixed = worst_error(curve, {row: Measured(curve(row)) for row in grid})
        assert own < 0.01 or own < fixed / 3
    others = [worst_error(curve, {row: Measured(curve(row)) for row in grid}) for grid in fixed_grids(POINTS).values()]
    assert name == "linear" or max(others) > 0.04, "the comparison must be one that can be lost"


@pytest.mark.parametrize(("name", "least"), [("flat then linear", 1.2), ("steps after powers of two", 3.0),
                                             ("steps on a slope", 3.0), ("a dip at 2 rows", 1.0)])  # fmt: skip
def test_with_one_per_cent_of_noise_it_is_still_better(name: str, least: float) -> None:
    """Over twenty draws of the noise, against the better of the fixed grids (for the dip: no worse than it)."""
    curve = CURVES[name]
    own = np.mean([worst_error(curve, adaptive(curve, POINTS, noise=0.01, seed=seed)) for seed in range(20)])
    draw = np.random.default_rng(99)
    others = [
        np.mean(
            [
                worst_error(curve, {row: Measured(curve(row) * (1 + 0.01 * draw.standard_normal())) for row in grid})
                for _ in range(20)
            ]
        )
        for grid in fixed_grids(POINTS).values()
    ]
    assert own * least <= min(others) * 1.1


def test_both_sides_of_a_step_become_neighbours() -> None:
    measured = adaptive(CURVES["steps after powers of two"], 12)
    assert {16, 17, 32, 33, 64, 65} <= set(measured)


@settings(deadline=None, max_examples=60)
@given(at=st.integers(2, 64), height=st.floats(0.2, 20.0))
def test_a_single_step_is_found_wherever_it_is(at: int, height: float) -> None:
    measured = adaptive(steps(at, height=height), 18, max_rows=64)
    assert {at - 1, at} <= set(measured)


@settings(deadline=None, max_examples=60)
@given(at=st.integers(2, 63))
def test_a_bend_is_found_wherever_it_is(at: int) -> None:
    assert worst_error(bend(at), adaptive(bend(at), POINTS, max_rows=64), 64) < 0.02


def test_a_jump_within_the_noise_is_left_alone() -> None:
    """A jump of two standard errors is no reason to look closer: the points go where gaps are widest."""
    curve = {1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 16: 10.0, 32: 10.5, 64: 10.5}
    sure = next_rows({row: Measured(ms, 0.001) for row, ms in curve.items()}, 1)
    unsure = next_rows({row: Measured(ms, 0.3) for row, ms in curve.items()}, 1)
    assert sure == (17,)
    assert unsure in ((3,), (6,), (11,), (23,), (45,))


def test_a_line_needs_no_closer_look_but_the_budget_is_used() -> None:
    line = {row: Measured(5 + 0.3 * row) for row in first_rows(64)}
    assert 3 in next_rows(line, 20), "the gap of the largest ratio is among the first"
    assert len(adaptive(CURVES["linear"], 40)) == 40
    assert len(adaptive(CURVES["linear"], 10**6)) == MAX_ROWS


def test_limits() -> None:
    assert first_rows(1) == (1,)
    assert first_rows(2) == (1, 2)
    assert first_rows(64) == (1, 2, 4, 8, 16, 32, 64)
    assert first_rows(65) == (1, 2, 4, 8, 16, 32, 64, 65)
    known = {row: Measured(float(row**2)) for row in first_rows(64)}
    assert next_rows(known, 0) == next_rows({1: Measured(1.0)}, 5) == next_rows({}, 5) == ()
    assert len(next_rows(known, 2)) <= 2
    assert next_rows({1: Measured(1.0), 9: Measured(2.0)}, 5) == (3,), "one gap has no neighbours"
