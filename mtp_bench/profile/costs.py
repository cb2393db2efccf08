"""The cost sweep: what a step over n rows takes on this device, and apart from it what drafting takes.

Protocol: every cell is warmed up first; then all cells are timed in rounds, each round in a new random order, so that
drift of clocks and load hits all alike, each after a call of its own that does not count; the median is quoted with its
quartiles. A timed verify call is all of a step but its draft: masks, forward pass, acceptance, cache move, and the copy
to the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from mtp_bench.cost import VERIFY, CostPoint
from mtp_bench.decode.memory import check_memory
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.cells import DRAFT_TOP_K, Cell, CellMaker, draft_cells, filled_cache, verify_cell
from mtp_bench.profile.timings import Timings
from mtp_bench.topology import StaticTree, Topology
from mtp_bench.topology.shapes import typical_tree

# Both sides of where kernels usually change their tiling.
LIKELY_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 40, 48, 56, 64, 65, 80, 96, 128, 129, 192, 256, 257)
UNSTABLE_SPREAD = 0.5
MIN_TIMINGS = 3
STEPS_IN_A_ROW = 8
STALL = 3.0  # times the median: the machine was away, which is no property of the step


@dataclass(frozen=True)
class SweepOptions:
    """What to measure.

    Attributes:
        rows: rows per sequence, 1 = plain decoding.
        contexts: cached tokens.
        batch: sequences.
        rounds: timings per cell.
        max_seconds: stop after the round in which this has passed.
        draft_top_k: tokens taken per head.
        dynamic_top_ks: measure the drafts of dynamic trees with each of these, at every depth.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...] = (128, 512)
    batch: int = 1
    rounds: int = 20
    max_seconds: float = 600.0
    draft_top_k: int = DRAFT_TOP_K
    dynamic_top_ks: tuple[int, ...] = ()
    seed: int = 0


def default_rows(max_rows: int) -> tuple[int, ...]:
    """Row counts up to ``max_rows``, and the next one past it, so that the largest tree is bracketed."""
    chosen = [rows for rows in LIKELY_ROWS if rows <= max_rows]
    beyond = [rows for rows in LIKELY_ROWS if rows > max_rows][:1]
    return tuple(sorted({*chosen, max_rows, *beyond}))


def sweep_costs(
    base: BaseModel,
    heads: AnyHeads | None,
    options: SweepOptions,
    *,
    timings: Timings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[CostPoint]:
    """Measure verify costs for every (rows, context) and draft costs for every (depth, context), of an EAGLE
    draft at several widths.

    A cell that runs out of memory or gives non-finite numbers is marked and left out; the sweep goes on.

    Args:
        timings: where to go on from, and to keep what is measured.
        on_progress: called with (timings done, timings planned).
    """
    length = max(options.contexts) + max(options.rows)
    check_memory(base, batch=options.batch, length=length, rows=min(options.rows))
    maker = CellMaker(
        base, heads, batch=options.batch, length=length, draft_top_k=options.draft_top_k, seed=options.seed
    )
    verify = (maker.verify(rows, context) for rows in options.rows for context in options.contexts)
    cells = [*verify, *maker.drafts(options.contexts, options.dynamic_top_ks, max_rows=max(options.rows))]
    return time_cells(cells, base.device, options, on_progress, timings)


class StepCost(NamedTuple):
    """What one step of a topology takes, its draft apart."""

    verify_ms: float
    draft_ms: float

    @property
    def step_ms(self) -> float:
        """Both together."""
        return self.verify_ms + self.draft_ms


class StepTimer:
    """Times the very steps of several contenders a round at a time, in between other work.

    Where the speed of a machine drifts, costs of an hour ago say little; timed in between the decoding that they are to
    predict, they see the same machine. Each contender takes several steps in a row, verification and draft in turns as
    in decoding, of which the first is not counted: it finds the caches and threads as other work left them. Means, not
    medians: decoding too takes the slow steps with the fast. Only stalls are left out: one of a second would outweigh
    all that were timed, though not all that are decoded.
    """

    def __init__(
        self,
        base: BaseModel,
        contenders: Mapping[str, tuple[AnyHeads | None, Topology]],
        context: int,
        *,
        batch: int = 1,
        in_a_row: int = STEPS_IN_A_ROW,
        seed: int = 0,
    ) -> None:
        """Args:
        contenders: heads and topology by name; without nodes nothing is drafted.
        context: cached tokens.
        in_a_row: steps that a round counts of each contender.

        Raises:
            InputError: a step ran out of memory or gave numbers that are not finite.
        """
        self._device, self._in_a_row, self._order = base.device, in_a_row, np.random.default_rng(seed)
        cache = filled_cache(base, batch, context + max(tree.rows for _, tree in contenders.values()), seed)
        self._verify, self._draft = {}, {}
        for name, (heads, tree) in contenders.items():
            shape = (
                tree
                if isinstance(tree, StaticTree)
                else typical_tree(tree.num_nodes, depth=tree.depth, top_k=tree.rows)
            )
            self._verify[name] = verify_cell(base, cache, shape, tree.rows, context)
            if tree.depth:
                [self._draft[name]] = draft_cells(base, heads, tree, cache, (context,), seed)
        for cell in (*self._verify.values(), *self._draft.values()):
            _guarded(cell, lambda cell=cell: _warm_up(cell, self._device))  # type: ignore[misc]
            if cell.status != "ok":
                raise InputError(f"a step of {cell.point.rows} rows could not be timed: {cell.status}", where="costs")

    def round(self, *names: str) -> None:
        """Time some steps of each contender, or only of those named, in random order."""
        names = names or tuple(self._verify)
        for index in self._order.permutation(len(names)):
            parts = [cells[names[index]] for cells in (self._verify, self._draft) if names[index] in cells]
            for step in range(1 + self._in_a_row):
                for cell in parts:
                    spent_ms = _time_ms(cell, self._device)
                    if step:
                        cell.timings_ms.append(spent_ms)

    def costs(self) -> dict[str, StepCost]:
        """Mean costs over all rounds so far."""
        drafted = {name: mean_without_stalls(cell.timings_ms) for name, cell in self._draft.items()}
        return {
            name: StepCost(mean_without_stalls(cell.timings_ms), drafted.get(name, 0.0))
            for name, cell in self._verify.items()
        }


def mean_without_stalls(timings_ms: Sequence[float]) -> float:
    """Mean of the timings that are at most :data:`STALL` times their median."""
    timings = np.asarray(timings_ms)
    return float(timings[timings <= STALL * np.median(timings)].mean())


def time_cells(
    cells: Sequence[Cell],
    device: torch.device,
    options: SweepOptions,
    on_progress: Callable[[int, int], None] | None = None,
    timings: Timings | None = None,
) -> list[CostPoint]:
    """Warm up and time ``cells`` in interleaved random order, one order per round.

    Cells whose timings still spread too widely then are timed for as many rounds again, while any is left: on a machine
    that others use too, a burst of their work would else cost a cell that nothing can be predicted without.

    Args:
        options: rounds, the order's seed, and the time after which no further round begins; the first always does.
        timings: rounds that were done before, which are not done again, and the time that they took.
    """
    timings = timings or Timings()
    for cell in cells:
        cell.timings_ms = list(timings.by_cell.get(cell.name, ()))
        cell.status = timings.status.get(cell.name, cell.status)
    planned, done = options.rounds * len(cells), min(timings.rounds, options.rounds) * len(cells)
    if on_progress is not None and done:
        on_progress(done, planned)
    before_s, start = timings.seconds, time.perf_counter()
    for round_ in range(timings.rounds, 2 * options.rounds):
        again = round_ >= options.rounds
        due = [cell for cell in cells if not again or _point(cell, options.rounds).status == "unstable"]
        if not due or (round_ and timings.seconds > options.max_seconds):
            break
        for cell in due:
            if cell.status == "ok" and not cell.warm:
                _guarded(cell, lambda cell=cell: _warm_up(cell, device))  # type: ignore[misc]
        for index in np.random.default_rng([options.seed, round_]).permutation(len(due)):
            cell = due[index]
            if cell.status == "ok":
                _guarded(cell, lambda cell=cell: _take_timing(cell, device))  # type: ignore[misc]
            done += not again
            if on_progress is not None:
                on_progress(done, planned)
        timings.keep(
            round_ + 1,
            {cell.name: cell.timings_ms for cell in cells},
            {cell.name: cell.status for cell in cells},
            before_s + time.perf_counter() - start,
        )
    return [_point(cell, options.rounds) for cell in cells]


def _guarded(cell: Cell, action: Callable[[], object]) -> None:
    """Run ``action``; running out of memory ends the cell, not the sweep."""
    try:
        action()
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        cell.status = "oom"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def ran_out_of_memory(error: Exception) -> bool:
    """Whether this is what it says; the CPU allocator raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error).lower()


def _warm_up(cell: Cell, device: torch.device, *, times: int = 3) -> None:
    for _ in range(times):
        _time_ms(cell, device)
    cell.warm = True
    if not cell.finite():
        cell.status = "nan"


def _take_timing(cell: Cell, device: torch.device) -> None:
    _lead_in(cell)
    cell.timings_ms.append(_time_ms(cell, device))


def _lead_in(cell: Cell) -> None:
    """A call that does not count, since a step follows steps of its own size in decoding, not the others of a round.

    After those it takes longer, and the more so the smaller it is (on a CPU in fp32 15% at one row, 4% at 8),
    which flatters trees. A draft does follow another kind of work, a verification.
    """
    if cell.point.component == VERIFY:
        cell.call()


def _time_ms(cell: Cell, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    cell.call()
    _synchronize(device)
    return 1e3 * (time.perf_counter() - start)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _point(cell: Cell, rounds: int) -> CostPoint:
    """Median and quartiles; too few timings to tell the spread are as good as a spread too large."""
    if cell.status != "ok" or not cell.timings_ms:
        return replace(cell.point, status=cell.status if cell.status != "ok" else "unstable")
    low, median, high = (float(value) for value in np.percentile(cell.timings_ms, [25, 50, 75]))
    few = len(cell.timings_ms) < min(rounds, MIN_TIMINGS)
    status = "unstable" if few or (high - low) > UNSTABLE_SPREAD * median else "ok"
    return replace(cell.point, median_ms=median, low_ms=low, high_ms=high, n=len(cell.timings_ms), status=status)
