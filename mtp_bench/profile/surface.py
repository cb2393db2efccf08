"""The cost surface c(rows, batch, context, depth): where to measure is found by measuring.

For every batch size two phases. *Scouting* times few rows a few times and lets ``cost.refine`` say which rows to add;
every stage times all rows of all contexts again, so that only timings taken side by side are compared. Then the rows so
chosen are *timed* together with the drafts, all in interleaved random order (see ``costs``); only this counts, so that
noise which drew the scouts somewhere does not stay in the result.

Both phases keep their timings. Since every choice follows from them, a measurement that was killed goes on by being
run again: what is kept is not timed again, and leads to the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mtp_bench.cost import VERIFY, CostPoint, Measured, first_rows, next_rows
from mtp_bench.decode.memory import check_memory
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.cells import Cell, CellMaker, place_of
from mtp_bench.profile.costs import SweepOptions, ran_out_of_memory, time_cells
from mtp_bench.profile.timings import TimingFolder
from mtp_bench.progress import progress, running_totals

SCOUT_ROUNDS = 4
SCOUT_SHARE = 1 / 3  # of a batch size's time, at most


@dataclass(frozen=True)
class SurfaceOptions:
    """What to measure.

    Attributes:
        max_rows: largest number of rows per sequence.
        contexts: cached tokens; batches: sequences.
        points: rows per batch size and context; as many as the powers of two among them at the least.
        rounds: timings per cell.
        max_minutes: for everything, shared out evenly among the batch sizes that are still to come.
    """

    max_rows: int = 64
    contexts: tuple[int, ...] = (128, 512)
    batches: tuple[int, ...] = (1,)
    points: int = 14
    rounds: int = 20
    max_minutes: float = 10.0
    dynamic_top_ks: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Surface:
    """What was measured, failed cells among it, and in words what was left out for want of time."""

    points: tuple[CostPoint, ...]
    left_out: tuple[str, ...]


def default_points(max_rows: int) -> int:
    """Twice as many rows as every curve starts with."""
    return 2 * len(first_rows(max_rows))


def measure_surface(base: BaseModel, heads: AnyHeads | None, options: SurfaceOptions, store: TimingFolder) -> Surface:
    """Measure all batch sizes, smallest first.

    A batch size and context that does not fit into memory is marked, and the others are measured.

    Args:
        store: where to go on from, and to keep what is measured.

    Raises:
        InputError: not even the smallest batch size and context fits into memory.
    """
    points: list[CostPoint] = []
    left_out: list[str] = []
    left_s = 60 * options.max_minutes
    for place, batch in enumerate(options.batches):
        if left_s <= 0:
            left_out.append(f"batch {batch}: not measured")
            continue
        found = _BatchSize(base, heads, options, batch, store).measure(left_s / (len(options.batches) - place))
        points += found.points
        left_out += found.left_out
        left_s -= found.seconds
    return Surface(tuple(points), tuple(left_out))


@dataclass(frozen=True)
class _Found(Surface):
    """``seconds`` are those spent on it, in this run and in earlier ones."""

    seconds: float


class _BatchSize:
    """One batch size of a surface."""

    def __init__(
        self, base: BaseModel, heads: AnyHeads | None, options: SurfaceOptions, batch: int, store: TimingFolder
    ) -> None:
        self._base, self._heads, self._options, self._batch, self._store = base, heads, options, batch, store
        self._left_out: list[str] = []
        self._seconds = 0.0

    def measure(self, seconds: float) -> _Found:
        """Scout and time, both in about ``seconds``."""
        contexts = self._fitting()
        maker = self._cells(contexts)
        failed = [context for context in self._options.contexts if maker is None or context not in contexts]
        points = [
            replace(place_of(self._base, component=VERIFY, batch=self._batch, rows=rows, context=context), status="oom")
            for context in failed
            for rows in first_rows(self._options.max_rows)
        ]
        if maker is not None:
            rows = self._scout(maker, contexts, SCOUT_SHARE * seconds)
            verify = [maker.verify(row, context) for context in contexts for row in rows[context]]
            top_ks, max_rows = self._options.dynamic_top_ks, self._options.max_rows
            cells = [*verify, *maker.drafts(contexts, top_ks, max_rows=max_rows)]
            points += self._time(cells, self._options.rounds, seconds - self._seconds, f"batch-{self._batch}")
        return _Found(tuple(points), tuple(self._left_out), self._seconds)

    def _fitting(self) -> tuple[int, ...]:
        """Contexts whose cache and one-row step fit into memory.

        Raises:
            InputError: none does, at the smallest batch size.
        """
        fitting: list[int] = []
        for context in sorted(self._options.contexts):
            try:
                check_memory(self._base, batch=self._batch, length=context + self._options.max_rows, rows=1)
            except InputError:
                if not fitting and self._batch == self._options.batches[0]:
                    raise
                break
            fitting.append(context)
        return tuple(fitting)

    def _cells(self, contexts: Sequence[int]) -> CellMaker | None:
        if not contexts:
            return None
        length = max(contexts) + self._options.max_rows
        try:
            return CellMaker(self._base, self._heads, batch=self._batch, length=length, seed=self._options.seed)
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            return None

    def _scout(self, maker: CellMaker, contexts: Sequence[int], seconds: float) -> dict[int, tuple[int, ...]]:
        """The rows to time, by context."""
        enough = min(self._options.points, self._options.max_rows)
        rows = dict.fromkeys(contexts, first_rows(self._options.max_rows))
        stage = 0
        while any(len(some) < enough for some in rows.values()):
            if self._seconds > seconds:
                self._left_out += [
                    f"batch {self._batch}, context {context}: {len(some)} of {enough} rows"
                    for context, some in rows.items()
                    if len(some) < enough
                ]
                break
            cells = {context: [maker.verify(row, context) for row in some] for context, some in rows.items()}
            every = [cell for some in cells.values() for cell in some]
            name = f"batch-{self._batch}.scout-{stage}"
            self._time(every, SCOUT_ROUNDS, seconds - self._seconds, name, scouting=True)
            added = {c: next_rows(_curve(cells[c]), enough - len(rows[c])) for c in contexts}
            if not any(added.values()):
                break
            rows = {context: tuple(sorted((*rows[context], *added[context]))) for context in contexts}
            stage += 1
        return rows

    def _time(
        self, cells: Sequence[Cell], rounds: int, seconds: float, name: str, *, scouting: bool = False
    ) -> list[CostPoint]:
        timings = self._store.open(name)
        what = SweepOptions(rows=(), rounds=rounds, max_seconds=seconds, seed=self._options.seed)
        label = f"batch {self._batch}: {'where to measure' if scouting else 'costs'} ({len(cells)} cells)"
        with progress(label, rounds * len(cells), "timings") as advance:
            points = time_cells(cells, self._base.device, what, running_totals(advance), timings)
        self._seconds += timings.seconds
        if timings.rounds < rounds and not scouting:
            self._left_out.append(f"batch {self._batch}: {rounds - timings.rounds} of {rounds} timings of every cell")
        return points


def _curve(cells: Sequence[Cell]) -> dict[int, Measured]:
    """Medians and their standard errors, of the cells that work.

    The error comes from the standard deviation, since of so few timings quartiles say little; an outlier makes it
    large, and a cell that is not known well is no reason to look closer.
    """
    return {cell.point.rows: _measured(cell.timings_ms) for cell in cells if cell.status == "ok" and cell.timings_ms}


def _measured(timings_ms: Sequence[float]) -> Measured:
    # A median of n draws of a normal law has 1.2533 times the standard error of their mean.
    spread = float(np.std(timings_ms, ddof=1)) if len(timings_ms) > 1 else 0.0
    return Measured(float(np.median(timings_ms)), 1.2533 * spread / len(timings_ms) ** 0.5)
