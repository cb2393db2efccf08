"""The cost sweep: what a step over n rows takes on this device, and apart from it what drafting takes.

Protocol (see DESIGN section 8): every cell is warmed up first; then all cells are timed in rounds, each round in a new
random order, so that drift of clocks and load hits all alike; the median is quoted with its quartiles. A timed verify
call is all of a step but its draft: masks, forward pass, acceptance, cache move, and the copy to the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from mtp_bench.cost import DRAFT, DYNAMIC_DRAFT, VERIFY, CostPoint
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Settled
from mtp_bench.decode.graph import stepper_type
from mtp_bench.decode.memory import check_memory
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.environment import device_name
from mtp_bench.profile.timings import Timings
from mtp_bench.topology import DynamicTree, StaticTree, Topology, chain
from mtp_bench.topology.shapes import typical_tree

# Both sides of where kernels usually change their tiling.
LIKELY_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 40, 48, 56, 64, 65, 80, 96, 128, 129, 192, 256, 257)
UNSTABLE_SPREAD = 0.5
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
    draft_top_k: int = 10
    dynamic_top_ks: tuple[int, ...] = ()
    seed: int = 0


def default_rows(max_rows: int) -> tuple[int, ...]:
    """Row counts up to ``max_rows``, and the next one past it, so that the largest tree is bracketed."""
    chosen = [rows for rows in LIKELY_ROWS if rows <= max_rows]
    beyond = [rows for rows in LIKELY_ROWS if rows > max_rows][:1]
    return tuple(sorted({*chosen, max_rows, *beyond}))


@dataclass
class _Cell:
    """One thing to time. ``call`` runs it once; ``check`` says whether its numbers are finite."""

    point: CostPoint
    call: Callable[[], object]
    finite: Callable[[], bool]
    timings_ms: list[float] = field(default_factory=list)
    status: str = "ok"

    @property
    def name(self) -> str:
        """What tells it from the others of a sweep."""
        point = self.point
        return f"{point.component} batch {point.batch} rows {point.rows} context {point.context} depth {point.depth}"


def sweep_costs(
    base: BaseModel,
    heads: AnyHeads | None,
    options: SweepOptions,
    *,
    timings: Timings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[CostPoint]:
    """Measure verify costs for every (rows, context) and draft costs for every depth.

    A cell that runs out of memory or gives non-finite numbers is marked and left out; the sweep goes on.

    Args:
        timings: where to go on from, and to keep what is measured.
        on_progress: called with (timings done, timings planned).
    """
    cells = [*_verify_cells(base, heads, options), *_draft_cells(base, heads, options)]
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
        seed: int = 0,
    ) -> None:
        """Args:
        contenders: heads and topology by name; without nodes nothing is drafted.
        context: cached tokens.

        Raises:
            InputError: a step ran out of memory or gave numbers that are not finite.
        """
        self._device, self._order = base.device, np.random.default_rng(seed)
        options = SweepOptions(rows=(), contexts=(context,), batch=batch, seed=seed)
        cache = _filled_cache(base, batch, context + max(tree.rows for _, tree in contenders.values()), seed)
        self._verify, self._draft = {}, {}
        for name, (heads, tree) in contenders.items():
            shape = (
                tree
                if isinstance(tree, StaticTree)
                else typical_tree(tree.num_nodes, depth=tree.depth, top_k=tree.rows)
            )
            self._verify[name] = _verify_cell(base, cache, shape, tree.rows, context, batch)
            if tree.depth:
                self._draft[name] = _draft_cell(base, heads, tree, context, options)
        for cell in (*self._verify.values(), *self._draft.values()):
            _guarded(cell, lambda cell=cell: _warm_up(cell, self._device))  # type: ignore[misc]
            if cell.status != "ok":
                raise InputError(f"a step of {cell.point.rows} rows could not be timed: {cell.status}", where="costs")

    def round(self, *names: str) -> None:
        """Time some steps of each contender, or only of those named, in random order."""
        names = names or tuple(self._verify)
        for index in self._order.permutation(len(names)):
            parts = [cells[names[index]] for cells in (self._verify, self._draft) if names[index] in cells]
            for step in range(1 + STEPS_IN_A_ROW):
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
    cells: Sequence[_Cell],
    device: torch.device,
    options: SweepOptions,
    on_progress: Callable[[int, int], None] | None = None,
    timings: Timings | None = None,
) -> list[CostPoint]:
    """Warm up and time ``cells`` in interleaved random order, one order per round."""
    timings = timings or Timings()
    for cell in cells:
        cell.timings_ms = list(timings.by_cell.get(cell.name, ()))
        cell.status = timings.status.get(cell.name, "ok")
        if cell.status == "ok":
            _guarded(cell, lambda cell=cell: _warm_up(cell, device))  # type: ignore[misc]
    planned, done = options.rounds * len(cells), timings.rounds * len(cells)
    if on_progress is not None and done:
        on_progress(done, planned)
    start = time.perf_counter()
    for round_ in range(timings.rounds, options.rounds):
        for index in np.random.default_rng([options.seed, round_]).permutation(len(cells)):
            cell = cells[index]
            if cell.status == "ok":
                _guarded(cell, lambda cell=cell: cell.timings_ms.append(_time_ms(cell, device)))  # type: ignore[misc]
            done += 1
            if on_progress is not None:
                on_progress(done, planned)
        timings.keep(
            round_ + 1, {cell.name: cell.timings_ms for cell in cells}, {cell.name: cell.status for cell in cells}
        )
        if time.perf_counter() - start > options.max_seconds:
            break
    return [_point(cell) for cell in cells]


def _guarded(cell: _Cell, action: Callable[[], object]) -> None:
    """Run ``action``; running out of memory ends the cell, not the sweep."""
    try:
        action()
    except MemoryError:
        cell.status = "oom"
    except RuntimeError as error:
        # The CPU allocator raises a plain RuntimeError.
        if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error).lower():
            raise
        cell.status = "oom"
    if cell.status == "oom" and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _warm_up(cell: _Cell, device: torch.device, *, times: int = 3) -> None:
    for _ in range(times):
        _time_ms(cell, device)
    if not cell.finite():
        cell.status = "nan"


def _time_ms(cell: _Cell, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    cell.call()
    _synchronize(device)
    return 1e3 * (time.perf_counter() - start)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _point(cell: _Cell) -> CostPoint:
    if cell.status != "ok" or not cell.timings_ms:
        return replace(cell.point, status=cell.status if cell.status != "ok" else "unstable")
    low, median, high = (float(value) for value in np.percentile(cell.timings_ms, [25, 50, 75]))
    status = "unstable" if (high - low) > UNSTABLE_SPREAD * median else "ok"
    return replace(cell.point, median_ms=median, low_ms=low, high_ms=high, n=len(cell.timings_ms), status=status)


def _verify_cells(base: BaseModel, heads: AnyHeads | None, options: SweepOptions) -> Iterable[_Cell]:
    depth = heads.max_depth if heads is not None else 4
    length = max(options.contexts) + max(options.rows)
    check_memory(base, batch=options.batch, length=length, rows=min(options.rows))
    cache = _filled_cache(base, options.batch, length, options.seed)
    for rows in options.rows:
        tree = typical_tree(rows - 1, depth=depth, top_k=max(options.draft_top_k, rows))
        for context in options.contexts:
            yield _verify_cell(base, cache, tree, rows, context, options.batch)


def _filled_cache(base: BaseModel, batch: int, length: int, seed: int) -> TreeCache:
    cache = TreeCache.allocate(base, batch=batch, length=length)
    torch.manual_seed(seed)
    cache.data.normal_(std=0.1)
    return cache


def _verify_cell(base: BaseModel, cache: TreeCache, tree: StaticTree, rows: int, context: int, batch: int) -> _Cell:
    tensors = TreeTensors.build(tree, base.device, rows=rows)
    stepper = stepper_type(base)(base, None, TreeTensors.build(StaticTree(()), base.device), cache)
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(0, base.vocab_size, (batch, rows), generator=generator).to(base.device)
    stepper.set_rows(tensors, tokens)

    @torch.inference_mode()
    def call() -> object:
        stepper.lengths.fill_(context)
        return stepper.advance(context)[0].tolist()

    @torch.inference_mode()
    def finite() -> bool:
        stepper.lengths.fill_(context)
        return bool(torch.isfinite(base.logits(stepper.verify(context).hidden)).all())

    return _Cell(_named(base, component=VERIFY, batch=batch, rows=rows, context=context), call, finite)


def _draft_cells(base: BaseModel, heads: AnyHeads | None, options: SweepOptions) -> Iterable[_Cell]:
    for depth in range(1, heads.max_depth + 1 if heads is not None else 1):
        # The typical tree of so few nodes may not be so deep: the chain makes it.
        paths = {*typical_tree(4 * depth, depth=depth, top_k=options.draft_top_k).paths, *chain(depth).paths}
        trees: list[Topology] = [StaticTree.from_paths(sorted(paths))]
        trees += [DynamicTree(depth, top_k, top_k) for top_k in options.dynamic_top_ks]
        for tree in trees:
            yield _draft_cell(base, heads, tree, min(options.contexts), options)


def _draft_cell(base: BaseModel, heads: AnyHeads | None, tree: Topology, context: int, options: SweepOptions) -> _Cell:
    """Drafting ``tree`` after a step that settled two tokens."""
    cache = TreeCache.allocate(base, batch=options.batch, length=context + tree.rows)
    stepper = stepper_type(base)(base, heads, TreeTensors.build(tree, base.device, batch=options.batch), cache)
    assert stepper.drafter is not None
    generator = torch.Generator().manual_seed(options.seed)
    width = base.hidden_size * max(1, len(stepper.drafter.aux_layers))
    features = torch.randn(options.batch, tree.depth + 1, width, generator=generator).to(base.device, base.dtype)
    tokens = torch.randint(0, base.vocab_size, (options.batch, tree.depth + 1), generator=generator).to(base.device)
    starts = torch.full((options.batch,), context, device=base.device)
    settled = Settled(starts, tokens, features, torch.full_like(starts, 2), context)

    @torch.inference_mode()
    def call() -> object:
        stepper.draft_again(settled)
        return None

    def finite() -> bool:
        # Drafts are token ids, which hide a NaN; weights that hold one are what makes it.
        assert isinstance(heads, torch.nn.Module)
        return all(bool(torch.isfinite(parameter).all()) for parameter in heads.parameters())

    kind = {"component": DRAFT}
    if isinstance(tree, DynamicTree):
        kind = {"component": DYNAMIC_DRAFT, "rows": tree.top_k}  # type: ignore[dict-item]
    point = _named(base, batch=options.batch, context=context, depth=tree.depth, **kind)
    return _Cell(point, call, finite)


def _named(base: BaseModel, **place: object) -> CostPoint:
    dtype = str(base.dtype).removeprefix("torch.")
    return CostPoint(device=device_name(base.device), dtype=dtype, **place)  # type: ignore[arg-type]
