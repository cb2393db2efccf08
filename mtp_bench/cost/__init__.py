"""What a step costs: measured points, the table with its envelope, and the roofline beside it."""

from mtp_bench.cost.points import DRAFT, DYNAMIC_DRAFT, STATUSES, VERIFY, CostPoint, read_points, write_points
from mtp_bench.cost.roofline import Roofline
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
    "Roofline",
    "StepWork",
    "read_points",
    "write_points",
]
