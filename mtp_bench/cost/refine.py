"""Where to measure a cost curve next: more rows where it bends or steps, none where a line already tells it.

A pure rule from measured points to the rows to measure next. Between two measured rows the cost is taken to be linear.
What speaks against that is the slope on either side: the line through two rows on the left, prolonged, misses the
right end of the gap by some milliseconds, and so does the other line the left end. What *both* neighbours leave
unexplained is certainly there: a bend (the neighbours' lines meet inside the gap, and that is where to measure) or a
jump (they do not meet; kernels step right after a multiple of their tile, so that is tried first, then the middle).
A jump is no larger than the rise over the gap. What only one neighbour leaves unexplained counts for less.

Differences within the noise of the timings count for nothing. What is left of the points then goes to the widest gaps,
where something may hide that no neighbour hints at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TILE = 8
STANDARD_ERRORS = 2.0
RESOLUTION = 0.01  # of the cost: finer than any decision needs
HUNCH = 0.25
BASE = 1 / 3  # of the gap's width: a line through two nearer rows would multiply their noise


@dataclass(frozen=True, slots=True)
class Measured:
    """Cost of one number of rows.

    Args:
        ms: median of the timings.
        error_ms: its standard error.
    """

    ms: float
    error_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _Gap:
    """Rows ``low`` and ``high`` were measured, none between them.

    Attributes:
        unexplained: part of the cost, between 0 and about 1, by which a line across the gap may be wrong.
        split: the row to measure next in it.
    """

    low: int
    high: int
    unexplained: float
    split: int


def first_rows(max_rows: int) -> tuple[int, ...]:
    """Where every curve starts: the powers of two, and ``max_rows``."""
    return (*(1 << power for power in range((max_rows - 1).bit_length())), max_rows)


def next_rows(curve: Mapping[int, Measured], limit: int) -> tuple[int, ...]:
    """Rows to measure next, ascending; empty when every row up to the largest is known or ``limit`` is 0.

    Args:
        curve: what was measured, by rows.
        limit: so many at most. As a rule fewer are returned: only gaps about as bad as the worst one, since what is
            found there says where to look after that.
    """
    rows = sorted(curve)
    gaps = [_gap(curve, rows, index) for index in range(len(rows) - 1) if rows[index + 1] - rows[index] > 1]
    if not gaps or limit <= 0:
        return ()
    wrong = [gap for gap in gaps if gap.unexplained > RESOLUTION]
    need = {gap: gap.unexplained if wrong else math.log(gap.high / gap.low) for gap in wrong or gaps}
    worst = max(need.values())
    chosen = sorted((gap for gap in need if need[gap] >= worst / 2), key=lambda gap: -need[gap])[:limit]
    if wrong:
        return tuple(sorted(gap.split for gap in chosen))
    return tuple(sorted(_inside(gap.low, gap.high, math.sqrt(gap.low * gap.high)) for gap in chosen))


def _gap(curve: Mapping[int, Measured], rows: list[int], index: int) -> _Gap:
    low, high = rows[index], rows[index + 1]
    before, after = _beside(rows[index::-1], BASE * (high - low)), _beside(rows[index + 1 :], BASE * (high - low))
    left = None if before is None else _missed(curve, before, low, high)
    right = None if after is None else _missed(curve, after, high, low)
    sides = [abs(side) for side in (left, right) if side is not None]
    if not sides:
        return _Gap(low, high, 0.0, (low + high) // 2)
    rise = abs(_beyond_noise(curve[high].ms - curve[low].ms, math.hypot(curve[low].error_ms, curve[high].error_ms)))
    bend = left is not None and right is not None and left * right > 0
    certain = min(sides) if bend else min(*sides, rise)
    unexplained = max(certain, HUNCH * min(rise, max(sides))) / min(curve[low].ms, curve[high].ms)
    return _Gap(low, high, unexplained, _split(low, high, left, right))


def _beside(rows: Sequence[int], base: float) -> int | None:
    """The nearest of ``rows`` that is ``base`` or more from the first; the farthest where none is."""
    enough = (row for row in rows[1:] if abs(row - rows[0]) >= base)
    return next(enough, rows[-1] if len(rows) > 1 else None)


def _missed(curve: Mapping[int, Measured], start: int, through: int, target: int) -> float:
    """By how many ms the line from ``start`` through ``through`` misses ``target``, beyond the noise."""
    reach = (target - through) / (through - start)
    a, b, c = (curve[rows] for rows in (start, through, target))
    miss = c.ms - b.ms - reach * (b.ms - a.ms)
    return _beyond_noise(miss, math.hypot(c.error_ms, (1 + reach) * b.error_ms, reach * a.error_ms))


def _beyond_noise(difference: float, error: float) -> float:
    return math.copysign(max(0.0, abs(difference) - STANDARD_ERRORS * error), difference)


def _split(low: int, high: int, left: float | None, right: float | None) -> int:
    """Both sides missing in the same direction is a bend: in proportion to the misses lies where the lines meet."""
    if left and right and left * right > 0:
        return _inside(low, high, low + (high - low) * right / (left + right))
    return low + 1 if low % TILE == 0 else (low + high) // 2


def _inside(low: int, high: int, place: float) -> int:
    return min(max(round(place), low + 1), high - 1)
