"""Measured costs as points, and their CSV files: our own ``cost.csv`` and the minimal one people bring.

A file from elsewhere needs only ``rows, median_ms``; ``batch, context, draft_ms, depth`` are optional there.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import read_text, write_text

VERIFY = "verify"
DRAFT = "draft"
DYNAMIC_DRAFT = "draft_dynamic"
STATUSES = ("ok", "oom", "nan", "unstable")
COLUMNS = (
    "component", "device", "dtype", "batch", "rows", "context", "depth",
    "median_ms", "low_ms", "high_ms", "n", "status", "floor_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured cost.

    Args:
        component: ``verify`` (a forward pass of the base model over ``rows`` rows per sequence, with acceptance and
            cache update), ``draft`` (a static tree of ``depth`` levels) or ``draft_dynamic`` (a dynamic one).
        device, dtype: as measured; empty when unknown.
        batch: sequences per pass.
        rows: rows per sequence (nodes + 1) of a verify point; the tree's top_k for a dynamic draft; for a draft the
            nodes expanded at each level after the root, 0 = the same price at every width.
        context: tokens in the cache.
        depth: deepest head run, for a draft point; 0 there = the same price at every depth.
        median_ms: median of the timings, in milliseconds.
        low_ms, high_ms: 25th and 75th percentile of the timings; NaN when unknown.
        n: number of timings; 0 when unknown.
        status: only ``ok`` points are used.
        floor_ms: the roofline, what the device needs at the least; NaN when unknown.
    """

    component: str = VERIFY
    device: str = ""
    dtype: str = ""
    batch: int = 1
    rows: int = 0
    context: int = 0
    depth: int = 0
    median_ms: float = math.nan
    low_ms: float = math.nan
    high_ms: float = math.nan
    n: int = 0
    status: str = "ok"
    floor_ms: float = math.nan

    @property
    def ok(self) -> bool:
        """Whether the point may be used."""
        return self.status == "ok"

    @property
    def place(self) -> str:
        """Where on the surface it lies, in words."""
        size = f"{self.rows} rows" if self.component == VERIFY else f"a draft to depth {self.depth}"
        if self.component == DRAFT and self.rows:
            size += f" with {self.rows} nodes expanded per level"
        if self.component == DYNAMIC_DRAFT:
            size += f" of a dynamic tree with top_k {self.rows}"
        return f"{size} at batch {self.batch}, context {self.context}"

    @property
    def relative_error(self) -> float:
        """Standard error of the median relative to it, 0 when the spread is unknown.

        From quartiles: the standard deviation of a normal law is IQR / 1.349, and a median of n draws has 1.2533
        times the standard error of their mean.
        """
        spread = self.high_ms - self.low_ms
        if self.n < 2 or not math.isfinite(spread):
            return 0.0
        return 1.2533 * max(spread, 0.0) / 1.349 / math.sqrt(self.n) / self.median_ms


def read_points(path: Path | str) -> list[CostPoint]:
    """Read a cost CSV of ours or the minimal one.

    Raises:
        InputError: missing columns or an impossible value, with file and line.
    """
    reader = csv.DictReader(io.StringIO(read_text(Path(path)).removeprefix("\ufeff")), skipinitialspace=True)
    missing = {"rows", "median_ms"} - {str(name).strip() for name in reader.fieldnames or ()}
    if missing:
        raise InputError(
            f"columns missing: {', '.join(sorted(missing))}",
            where=str(path),
            fix="a cost table needs at least the columns rows and median_ms",
        )
    points: list[CostPoint] = []
    for record in reader:
        row = {str(name).strip(): (value or "").strip() for name, value in record.items() if isinstance(value, str)}
        points.extend(_parse(row, f"{path}:{reader.line_num}"))
    return points


def write_points(path: Path | str, points: Iterable[CostPoint]) -> None:
    """Write ``cost.csv`` atomically, sorted, nanosecond digits; unknown values stay empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in sorted(points, key=_place):
        *times, floor = (
            f"{ms:.6f}" if math.isfinite(ms) else ""
            for ms in (point.median_ms, point.low_ms, point.high_ms, point.floor_ms)
        )
        rows = (point.rows or "") if point.component == DRAFT else point.rows
        depth = "" if point.component == VERIFY else point.depth
        writer.writerow(
            [point.component, point.device, point.dtype, point.batch, rows, point.context, depth, *times,
             point.n or "", point.status, floor]
        )  # fmt: skip
    write_text(Path(path), stream.getvalue())


def _place(point: CostPoint) -> tuple[int, str, str, int, int, int, int]:
    kind = (VERIFY, DRAFT, DYNAMIC_DRAFT).index(point.component)
    return kind, point.device, point.dtype, point.batch, point.context, point.rows, point.depth


def _parse(row: Mapping[str, str], where: str) -> list[CostPoint]:
    """The point of one line, and a second one when it carries ``draft_ms``."""
    component = row.get("component") or VERIFY
    status = row.get("status") or "ok"
    if component not in (VERIFY, DRAFT, DYNAMIC_DRAFT) or status not in STATUSES:
        known = f"component is one of verify, draft, draft_dynamic; status one of {', '.join(STATUSES)}"
        raise InputError(f"component '{component}', status '{status}'", where=where, fix=known)
    verify = component == VERIFY
    rows = _whole(row, "rows", where, least=1, default=0 if component == DRAFT else None)
    wide = component == DRAFT and rows > 0
    usable = status == "ok"
    point = CostPoint(
        component=component,
        device=row.get("device", ""),
        dtype=row.get("dtype", ""),
        batch=_whole(row, "batch", where, least=1, default=1),
        rows=rows,
        context=_whole(row, "context", where, least=0, default=0),
        depth=0 if verify else _whole(row, "depth", where, least=int(wide), default=None if wide else 0),
        median_ms=_time(row, "median_ms", where, required=usable),
        low_ms=_time(row, "low_ms", where),
        high_ms=_time(row, "high_ms", where),
        n=_whole(row, "n", where, least=0, default=0),
        status=status,
        floor_ms=_time(row, "floor_ms", where),
    )
    if not (verify and usable and row.get("draft_ms")):
        return [point]
    draft_ms = _time(row, "draft_ms", where)
    depth = _whole(row, "depth", where, least=0, default=0)
    draft = CostPoint(DRAFT, point.device, point.dtype, point.batch, 0, point.context, depth, draft_ms)
    # Without a depth the price holds for any step that drafts; the 1-row line is the baseline, which does not.
    baseline = depth == 0 and (point.rows == 1 or draft_ms == 0)
    return [point] if baseline else [point, draft]


def _whole(row: Mapping[str, str], name: str, where: str, *, least: int, default: int | None) -> int:
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number.is_integer() and number >= least):
        raise InputError(f"{name} is '{text}'", where=where, fix=f"give a whole number of at least {least}")
    return int(number)


def _time(row: Mapping[str, str], name: str, where: str, *, required: bool = False) -> float:
    text = row.get(name, "")
    if not text and not required:
        return math.nan
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    valid = math.isfinite(number) and (number > 0 or (name == "draft_ms" and number == 0))
    if not valid and (required or name == "draft_ms" or not math.isnan(number)):
        raise InputError(f"{name} is '{text}'", where=where, fix="give milliseconds above 0")
    return number
