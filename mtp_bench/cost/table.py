"""The cost table: what a step costs, for every tree size, from measured points.

Measured costs come in steps and can dip (a one-row pass may use a slower kernel than a four-row pass). A dip is real
profit for everyone, because rows can be padded: the cost of n rows is therefore the *envelope*, the least cost over
all m >= n. It is applied to the baseline too, or speedups would be flattered by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mtp_bench.cost.points import DRAFT, DYNAMIC_DRAFT, VERIFY, CostPoint, read_points, write_points
from mtp_bench.cost.widths import crop, draft_grid, drafts_ms
from mtp_bench.errors import InputError
from mtp_bench.topology import DynamicTree, StaticTree, Topology

Floats = npt.NDArray[np.float64]
Curve = Callable[[int], Floats]  # context or batch -> values


@dataclass(frozen=True, eq=False)
class CostTable:
    """Step costs of one device and dtype.

    Args:
        points: measured points; only those with status ``ok`` count.
        source: the file they came from, for messages.

    Raises:
        InputError: no usable verify point, several devices or dtypes (use :meth:`select`), two different costs for
            one point, or drafts with and without widths.
    """

    points: tuple[CostPoint, ...]
    source: str = "cost table"
    _curves: dict[tuple[str, int, int], Floats] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self._verify:
            raise InputError("no usable point", where=self.source, fix="measure again or give a table with ok rows")
        machines = sorted({(p.device, p.dtype) for p in self.points if p.ok and p.component == VERIFY})
        if len(machines) > 1:
            names = ", ".join("/".join(machine) for machine in machines)
            raise InputError(f"several devices or dtypes: {names}", where=self.source, fix="select one of them")
        seen: dict[tuple[str, int, int, int, int], float] = {}
        for p in self.points:
            key = (p.component, p.batch, p.context, p.rows, p.depth)
            if p.ok and seen.setdefault(key, p.median_ms) != p.median_ms:
                place = f"batch {p.batch}, context {p.context}, rows {p.rows}, depth {p.depth}"
                raise InputError(f"two costs for one {p.component} point ({place})", where=self.source)
        if len({p.rows > 0 for p in self._draft}) > 1:
            raise InputError(
                "some drafts have rows (nodes expanded per level) and some have none", where=self.source,
                fix="keep the drafts of one kind of heads",
            )  # fmt: skip

    @classmethod
    def from_csv(cls, path: Path | str, *, device: str | None = None, dtype: str | None = None) -> CostTable:
        """Read a ``cost.csv`` or a minimal CSV (``rows, median_ms``), keeping one device and dtype if named."""
        return cls.select(read_points(path), device=device, dtype=dtype, source=str(path))

    @classmethod
    def select(
        cls, points: Iterable[CostPoint], *, device: str | None = None, dtype: str | None = None, source: str = ""
    ) -> CostTable:
        """The table of the points with this device and dtype (None = any)."""
        kept = (p for p in points if device in (None, p.device) and dtype in (None, p.dtype))
        return cls(tuple(kept), source or "cost table")

    def to_csv(self, path: Path | str) -> None:
        """Write ``cost.csv`` atomically, unusable points included."""
        write_points(path, self.points)

    @cached_property
    def _verify(self) -> list[CostPoint]:
        return [p for p in self.points if p.ok and p.component == VERIFY]

    @cached_property
    def _draft(self) -> list[CostPoint]:
        return [p for p in self.points if p.ok and p.component == DRAFT]

    @cached_property
    def _dynamic(self) -> list[CostPoint]:
        return [p for p in self.points if p.ok and p.component == DYNAMIC_DRAFT]

    @property
    def batches(self) -> tuple[int, ...]:
        """Measured batch sizes, ascending."""
        return tuple(sorted({p.batch for p in self._verify}))

    @property
    def contexts(self) -> tuple[int, ...]:
        """Measured contexts, ascending."""
        return tuple(sorted({p.context for p in self._verify}))

    @property
    def max_rows(self) -> int:
        """Largest row count measured anywhere; :meth:`rows_limit` has it for one batch and context."""
        return max(p.rows for p in self._verify)

    @property
    def has_draft(self) -> bool:
        """Whether the draft was measured apart; otherwise verify points are whole steps."""
        return bool(self._draft)

    @cached_property
    def has_widths(self) -> bool:
        """Whether a static tree's draft costs by the widths of its levels, not by its depth alone."""
        return any(p.rows for p in self._draft)

    def rows_limit(self, *, batch: int = 1, context: int | None = None) -> int:
        """Largest row count with a known cost at this batch and context."""
        return len(self.verify_curve(batch=batch, context=context))

    def depth_limit(self, *, batch: int = 1) -> int | None:
        """Deepest draft with a known cost; None = any depth."""
        around = self._batches_around(batch)
        if around is not None:
            limits = [self.depth_limit(batch=b) for b in around]
            return min((limit for limit in limits if limit is not None), default=None)
        by_context: dict[int, set[int]] = {}
        for p in self._draft:
            if p.batch == batch:
                by_context.setdefault(p.context, set()).add(p.depth)
        if not by_context or any(0 in depths for depths in by_context.values()):
            return None
        return min(max(depths) for depths in by_context.values())

    def nearest_context(self, mean_context: float, *, batch: int = 1) -> int:
        """The measured context closest to ``mean_context``, the smaller one at a tie."""
        return min(self._contexts_of(VERIFY, batch), key=lambda context: (abs(context - mean_context), context))

    def notes(self, *, batch: int = 1, context: int | None = None) -> tuple[str, ...]:
        """What a reader must know about costs at this batch and context; empty when they are measured or between."""
        around = self._batches_around(batch)
        if around is not None:
            between = f"batch {batch} was not measured: costs lie between those of {around[0]} and {around[1]}"
            of_both = (note for b in around for note in self.notes(batch=b, context=context))
            return (between, *dict.fromkeys(of_both))
        known = self._contexts_of(VERIFY, batch)
        context = known[0] if context is None else context
        notes = []
        for what, points in (("", self._verify), ("draft ", self._draft), ("dynamic draft ", self._dynamic)):
            measured = {p.context for p in points if p.batch == batch}
            low, high = min(measured, default=context), max(measured, default=context)
            if not low <= context <= high:
                place = f"the measured {low}..{high}" if low < high else f"the only one measured, {low}"
                nearest = low if context < low else high
                notes.append(f"context {context} lies outside {place}: {what}costs of {nearest} are used")
        return tuple(notes)

    def verify_curve(self, *, batch: int = 1, context: int | None = None, padded: bool = True) -> Floats:
        """float64 [R]: envelope cost in ms of 1..R rows, without the draft; not ``padded``: of just so many rows.
        Read-only.

        Raises:
            InputError: the batch was not measured, or the one-row baseline was not.
        """
        around = self._batches_around(batch)
        if around is not None:
            return self._between_batches(
                around, batch, lambda b: self.verify_curve(batch=b, context=context, padded=padded)
            )
        chosen = self._contexts_of(VERIFY, batch)[0] if context is None else context
        key = ("padded" if padded else "exact", batch, chosen)
        if key not in self._curves:
            curve = self._between_contexts(VERIFY, batch, chosen, lambda c: self._interpolated(batch, c))
            self._curves[key] = _frozen(_envelope(curve) if padded else curve)
        return self._curves[key]

    def draft_curve(self, max_depth: int, *, batch: int = 1, context: int | None = None) -> Floats:
        """float64 [max_depth + 1]: ms of drafting depths 0..max_depth; 0 at depth 0, never falling.

        Zero throughout when the draft was not measured apart. Where it costs by width: of the narrowest, a chain; what
        a tree's draft takes is then known to :meth:`topology_ms` only.

        Raises:
            InputError: deeper than measured, or the batch was not measured.
        """
        if not self._draft or max_depth == 0:
            return np.zeros(max_depth + 1)
        if self.has_widths:
            return self.draft_widths(max_depth, batch=batch, context=context)[:, 0]
        around = self._batches_around(batch)
        if around is not None:
            return self._between_batches(around, batch, lambda b: self.draft_curve(max_depth, batch=b, context=context))
        self._check_depth(max_depth, batch)
        chosen = self._contexts_of(DRAFT, batch)[0] if context is None else context
        return self._between_contexts(DRAFT, batch, chosen, lambda c: self._drafted(batch, c, max_depth))

    def draft_widths(self, max_depth: int, *, batch: int = 1, context: int | None = None) -> Floats:
        """float64 [max_depth + 1, W + 1]: ms of drafts whose levels are all 0..W wide, see ``cost.widths``.

        Falls with neither; NaN where wider than was measured so deep. Only for a table that :attr:`has_widths`.
        Read-only.

        Raises:
            InputError: as :meth:`draft_curve`.
        """
        self._check_depth(max_depth, batch)
        chosen = self._contexts_of(DRAFT, batch)[0] if context is None and batch in self.batches else context
        key = ("widths", batch, -1 if chosen is None else chosen)
        if key not in self._curves:
            self._curves[key] = _frozen(self._draft_grid(batch, chosen))
        return self._curves[key][: max_depth + 1]

    def _draft_grid(self, batch: int, context: int | None) -> Floats:
        around = self._batches_around(batch)
        if around is not None:
            return self._between_batches(around, batch, lambda b: self._draft_grid(b, context))
        chosen = self._contexts_of(DRAFT, batch)[0] if context is None else context
        return self._between_contexts(
            DRAFT, batch, chosen, lambda c: draft_grid(p for p in self._draft if (p.batch, p.context) == (batch, c))
        )

    def width_limit(self, depth: int, *, batch: int = 1, context: int | None = None) -> int | None:
        """Most nodes that a level of a tree of this depth may expand for its draft cost to be known; None = any.

        Raises:
            InputError: as :meth:`draft_curve`.
        """
        if not self.has_widths or depth <= 1:
            return None
        known = np.isfinite(self.draft_widths(depth, batch=batch, context=context)[depth])
        return int(np.flatnonzero(known)[-1])

    def _check_depth(self, max_depth: int, batch: int) -> None:
        limit = self.depth_limit(batch=batch)
        if limit is not None and max_depth > limit:
            raise InputError(
                f"draft cost of depth {max_depth} is not known", where=self.source, fix=f"measured to depth {limit}"
            )

    def step_ms(
        self, rows: int, *, depth: int = 0, batch: int = 1, context: int | None = None, padded: bool = True
    ) -> float:
        """Milliseconds of one step: envelope cost of ``rows`` rows plus the draft of ``depth`` depths.

        ``step_ms(1)`` is the baseline: plain decoding. Rows between two measured ones are interpolated linearly,
        contexts too; a context outside the measured ones takes the nearest (:meth:`notes` says so). ``context=None``
        is the smallest measured. Not ``padded``: an engine that never runs more rows than it needs, so no envelope.
        Where drafts cost by width (:attr:`has_widths`) this is the least any tree so deep takes; see
        :meth:`topology_ms`.

        Raises:
            InputError: more rows or depths than measured, fewer than one row, or a batch that was not measured.
        """
        curve = self.verify_curve(batch=batch, context=context, padded=padded)
        if not 1 <= rows <= len(curve):
            raise InputError(
                f"cost of {rows} rows is not known", where=self.source, fix=f"measured for 1..{len(curve)} rows"
            )
        return float(curve[rows - 1] + self.draft_curve(depth, batch=batch, context=context)[depth])

    def topology_ms(
        self, topology: Topology, *, batch: int = 1, context: int | None = None, padded: bool = True
    ) -> float:
        """Milliseconds of one step with ``topology``, its draft included; see :meth:`step_ms`.

        Raises:
            InputError: as :meth:`step_ms`; a dynamic tree whose draft was not measured at its depth and top_k, or a
                static one with a wider level than was measured at its depth.
        """
        if isinstance(topology, StaticTree) and self.has_widths:
            verify_ms = self.step_ms(topology.rows, batch=batch, context=context, padded=padded)
            return verify_ms + self._static_ms(topology, batch, context)
        if not isinstance(topology, DynamicTree):
            return self.step_ms(topology.rows, depth=topology.depth, batch=batch, context=context, padded=padded)
        verify_ms = self.step_ms(topology.rows, batch=batch, context=context, padded=padded)
        return verify_ms + self._dynamic_ms(topology, batch, context)

    def dynamic_top_ks(self, *, batch: int = 1) -> dict[int, int]:
        """top_k of the dynamic trees whose draft was measured -> deepest of them."""
        around = self._batches_around(batch)
        if around is not None:
            low, high = (self.dynamic_top_ks(batch=b) for b in around)
            return {top_k: min(low[top_k], high[top_k]) for top_k in low.keys() & high.keys()}
        measured: dict[int, int] = {}
        for p in self._dynamic:
            if p.batch == batch:
                measured[p.rows] = max(measured.get(p.rows, 0), p.depth)
        return measured

    def _static_ms(self, tree: StaticTree, batch: int, context: int | None) -> float:
        widest, limit = max(tree.expanded_widths, default=0), self.width_limit(tree.depth, batch=batch, context=context)
        if limit is not None and widest > limit:
            raise InputError(
                f"draft cost of {widest} nodes expanded at one level, at depth {tree.depth}, is not known",
                where=self.source,
                fix=f"measured to {limit}",
            )
        grid = self.draft_widths(tree.depth, batch=batch, context=context)
        widths = np.array(tree.expanded_widths, dtype=np.int64)[None]
        return float(drafts_ms(grid, np.array([tree.depth]), widths)[0])

    def _dynamic_ms(self, tree: DynamicTree, batch: int, context: int | None) -> float:
        """Linear between measured depths (0 ms at depth 0) and contexts."""
        known = self.dynamic_top_ks(batch=batch)
        if tree.depth > known.get(tree.top_k, 0):
            measured = ", ".join(f"top_k {k} to depth {d}" for k, d in sorted(known.items()))
            raise InputError(
                f"draft cost of {tree} is not known", where=self.source, fix=f"measured: {measured or 'none'}"
            )
        around = self._batches_around(batch)
        if around is not None:
            low, high = (self._dynamic_ms(tree, b, context) for b in around)
            return low + (high - low) * (batch - around[0]) / (around[1] - around[0])
        curves: dict[int, dict[int, float]] = {}
        for p in self._dynamic:
            if (p.batch, p.rows) == (batch, tree.top_k):
                curves.setdefault(p.context, {0: 0.0})[p.depth] = p.median_ms
        contexts = sorted(curves)
        at = [np.interp(tree.depth, sorted(curves[c]), [curves[c][d] for d in sorted(curves[c])]) for c in contexts]
        return float(np.interp(contexts[0] if context is None else context, contexts, at))

    def relative_error(self, rows: int, *, batch: int = 1, context: int | None = None) -> float:
        """Relative standard error of the verify cost at the nearest measured point with at least ``rows`` rows."""
        around = self._batches_around(batch)
        if around is not None:
            return max(self.relative_error(rows, batch=b, context=context) for b in around)
        mean = self._contexts_of(VERIFY, batch)[0] if context is None else context
        at = self.nearest_context(mean, batch=batch)
        enough = [p for p in self._verify if p.batch == batch and p.context == at and p.rows >= rows]
        return min(enough, key=lambda p: p.rows).relative_error if enough else 0.0

    def _batches_around(self, batch: int) -> tuple[int, int] | None:
        """The measured batch sizes on both sides of one that was not measured; None where there is nothing between."""
        known = self.batches
        if batch in known or not known[0] < batch < known[-1]:
            return None
        return max(b for b in known if b < batch), min(b for b in known if b > batch)

    @staticmethod
    def _between_batches(around: tuple[int, int], batch: int, curve: Curve) -> Floats:
        """Linear between the two batch sizes, as far as both were measured."""
        low, high = crop(*(curve(b) for b in around))
        weight = (batch - around[0]) / (around[1] - around[0])
        return (1 - weight) * low + weight * high

    def _contexts_of(self, component: str, batch: int) -> list[int]:
        points = self._verify if component == VERIFY else self._draft
        known = sorted({p.context for p in points if p.batch == batch})
        if not known:
            measured = ", ".join(str(size) for size in sorted({p.batch for p in points}))
            raise InputError(f"no {component} cost for batch {batch}", where=self.source, fix=f"measured: {measured}")
        return known

    def _between_contexts(self, component: str, batch: int, context: int, curve: Curve) -> Floats:
        """Linear between the two contexts around ``context``; the nearest one outside."""
        known = self._contexts_of(component, batch)
        above = next((c for c in known if c >= context), known[-1])
        below = next((c for c in reversed(known) if c <= context), known[0])
        low = curve(below)
        if above == below:
            return low
        low, high = crop(low, curve(above))
        weight = (context - below) / (above - below)
        return (1 - weight) * low + weight * high

    def _interpolated(self, batch: int, context: int) -> Floats:
        """float64 [R]: cost of 1..R rows, linear between measured points."""
        points = {p.rows: p.median_ms for p in self._verify if p.batch == batch and p.context == context}
        if 1 not in points:
            place = (VERIFY, batch, context, 1)
            failed = [p.status for p in self.points if (p.component, p.batch, p.context, p.rows) == place]
            why = f" (measured, but {failed[0]})" if failed else ""
            raise InputError(
                f"no cost of one row at batch {batch}, context {context}{why}: there is no baseline",
                where=self.source,
                fix="measure again on a quieter machine, with more --rounds" if failed else "measure rows = 1 too",
            )
        rows = sorted(points)
        return np.interp(np.arange(1, rows[-1] + 1), rows, [points[r] for r in rows])

    def _drafted(self, batch: int, context: int, max_depth: int) -> Floats:
        """float64 [max_depth + 1]: an unmeasured depth lies on the line between its neighbours, the first of them 0.

        The envelope is legitimate here too: a deeper draft that is cheaper can be run and its last heads ignored.
        """
        points = {p.depth: p.median_ms for p in self._draft if p.batch == batch and p.context == context}
        if 0 in points:
            return np.concatenate([[0.0], np.full(max_depth, points[0])])
        depths = [0, *sorted(points)]
        full = np.interp(np.arange(depths[-1] + 1), depths, [0.0, *(points[d] for d in depths[1:])])
        return _envelope(full)[: max_depth + 1]


def _envelope(curve: Floats) -> Floats:
    """``envelope[n] = min over m >= n of curve[m]``."""
    return np.minimum.accumulate(curve[::-1])[::-1]


def _frozen(values: Floats) -> Floats:
    values = np.array(values)
    values.setflags(write=False)
    return values
