"""The roofline floor of every measured cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mtp_bench.cost import DYNAMIC_DRAFT, VERIFY, CostPoint, DeviceLimits, StepWork
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.accounting import draft_work, verify_work
from mtp_bench.profile.cells import DRAFT_TOP_K, drafted_tree
from mtp_bench.topology import DynamicTree


def with_floors(
    points: Iterable[CostPoint], base: BaseModel, heads: AnyHeads | None, limits: DeviceLimits
) -> list[CostPoint]:
    """The same points with ``floor_ms``: bytes over the copy rate or operations over the product's rate."""
    return [replace(point, floor_ms=_work(point, base, heads).floor_ms(limits)) for point in points]


def _work(point: CostPoint, base: BaseModel, heads: AnyHeads | None) -> StepWork:
    if point.component == VERIFY:
        return verify_work(base, point.rows, batch=point.batch, context=point.context)
    assert heads is not None
    if point.component == DYNAMIC_DRAFT:
        return draft_work(base, heads, DynamicTree(point.depth, point.rows, point.rows), batch=point.batch)
    return draft_work(base, heads, drafted_tree(point.depth, DRAFT_TOP_K, point.rows, heads), batch=point.batch)
