"""What drafting a static tree takes where its levels differ in width.

An EAGLE layer drafts level by level, and a level's pass runs over those of its nodes that are *expanded*: that have
children. So the draft of a tree d deep is a pass over the root and d - 1 passes over levels of some width each.
Measured are drafts all of whose levels have one width; a tree pays, for each of its levels, that level's share of the
draft that is as wide throughout:

``draft_ms(d, w_1 .. w_{d-1}) = mean over l of measured_ms(d, w_l)``

which is exact where a pass costs the same at every depth, and at equal widths is what was measured. The deepest level
is not expanded, so at depth 1 there is nothing to be wide.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mtp_bench.cost.points import CostPoint

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def draft_grid(points: Iterable[CostPoint]) -> Floats:
    """float64 [D + 1, W + 1]: ms of drafts 0..D deep whose levels are all 0..W wide.

    ``points`` are those of one batch and context. Linear between measured depths (0 ms at depth 0), then between
    measured widths; below the narrowest as the narrowest; NaN above the widest that was measured so deep. An envelope
    over both: a deeper or wider draft that is cheaper can be run instead, so that neither depth nor width ever makes
    a draft cheaper.
    """
    measured: dict[int, dict[int, float]] = {}
    for point in points:
        measured.setdefault(point.rows, {})[point.depth] = point.median_ms
    first = min((width for width, by_depth in measured.items() if 1 in by_depth), default=None)
    start = {0: 0.0} if first is None else {0: 0.0, 1: measured[first][1]}
    deepest, widest = max(max(by_depth) for by_depth in measured.values()), max(measured)
    curves = {width: _by_depth(start | measured[width], deepest) for width in sorted(measured)}
    grid = np.full((deepest + 1, widest + 1), np.nan)
    for depth in range(deepest + 1):
        widths = [width for width, curve in curves.items() if np.isfinite(curve[depth])]
        known = np.arange(widths[-1] + 1) if depth > 1 else np.arange(widest + 1)
        grid[depth, known] = np.interp(known, widths, [curves[width][depth] for width in widths])
    for axis in (0, 1):
        grid = np.flip(np.fmin.accumulate(np.flip(grid, axis), axis=axis), axis)
    return grid


def _by_depth(ms: dict[int, float], deepest: int) -> Floats:
    """float64 [deepest + 1]; NaN below the last measured depth."""
    depths = sorted(ms)
    return np.interp(np.arange(deepest + 1), depths, [ms[depth] for depth in depths], right=np.nan)


def drafts_ms(grid: Floats, depth: Ints, widths: Ints) -> Floats:
    """float64 [n]: ms of drafting n trees; NaN where a level is wider than was measured.

    Args:
        grid: from :func:`draft_grid`.
        depth: int64 [n], at most D.
        widths: int64 [n, L], nodes expanded at depths 1..L; those at a tree's own depth and below do not count.
    """
    total = np.where(depth <= 1, grid[depth, 0], 0.0)
    for level in range(1, min(widths.shape[1], len(grid) - 2) + 1):
        width = widths[:, level - 1]
        ms = np.where(width < grid.shape[1], grid[depth, np.minimum(width, grid.shape[1] - 1)], np.nan)
        total = total + np.where(level < depth, ms, 0.0) / np.maximum(depth - 1, 1)
    return np.asarray(total)


def crop(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Both arrays as far as both reach, along every axis."""
    shared = tuple(slice(0, min(sizes)) for sizes in zip(low.shape, high.shape, strict=True))
    return low[shared], high[shared]
