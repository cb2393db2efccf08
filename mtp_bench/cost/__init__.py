"""What a step costs: measured points, the table with its envelope, where to measure, and the roofline beside it."""

from mtp_bench.cost.floor import floor_warnings
from mtp_bench.cost.points import DRAFT, DYNAMIC_DRAFT, STATUSES, VERIFY, CostPoint, read_points, write_points
from mtp_bench.cost.refine import Measured, first_rows, next_rows
from mtp_bench.cost.table import CostTable
from mtp_bench.cost.work import DeviceLimits, StepWork

__all__ = [
    "DRAFT",
    "DYNAMIC_DRAFT",
    "STATUSES",
    "VERIFY",
    "CostPoint",
    "CostTable",
    "DeviceLimits",
    "Measured",
    "StepWork",
    "first_rows",
    "floor_warnings",
    "next_rows",
    "read_points",
    "write_points",
]
