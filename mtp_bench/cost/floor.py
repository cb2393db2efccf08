"""Measured costs held against their roofline floor: too good to be true, or far from what the device could do."""

from __future__ import annotations

from collections.abc import Iterable

from mtp_bench.cost.points import CostPoint

# The floor rests on measured rates, which are known to some per cent only.
TOO_FAST = 0.9
FAR_ABOVE = 3.0


def floor_warnings(points: Iterable[CostPoint]) -> tuple[str, ...]:
    """One sentence for what lies under the floor and one for what lies more than three times above it.

    Args:
        points: those without a floor or a time are passed over.
    """
    # What failed may have a time too, but nothing is made of it.
    shares = [(p.median_ms / p.floor_ms, p) for p in points if p.ok and p.floor_ms > 0]
    warnings = []
    below = [(share, p) for share, p in shares if share < TOO_FAST]
    if below:
        share, point = min(below, key=lambda one: one[0])
        warnings.append(
            f"{len(below)} of {len(shares)} costs lie under their roofline floor, the worst at "
            f"{100 * share:.0f}% of it ({point.place}): either the timing missed a synchronisation, which is a bug to "
            "report, or the floor is wrong: the device was busy when its rates were measured, or the weights fit into "
            "a cache faster than its memory"
        )
    above = [(share, p) for share, p in shares if share > FAR_ABOVE]
    if above:
        share, point = max(above, key=lambda one: one[0])
        warnings.append(
            f"{len(above)} of {len(shares)} costs are more than {FAR_ABOVE:g}x their roofline floor, the most "
            f"{share:.1f}x ({point.place}): launches and overhead set the pace there, not memory or arithmetic"
        )
    return tuple(warnings)
