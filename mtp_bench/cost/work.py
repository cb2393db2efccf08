"""What a step moves and computes, held against what the device can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Measured rates of a device.

    Args:
        copy_bytes_per_s: bytes read plus bytes written by a large copy, per second.
        flops_per_s: operations of a large square matrix product in the dtype used, per second.
    """

    copy_bytes_per_s: float
    flops_per_s: float

    def best(self, other: DeviceLimits) -> DeviceLimits:
        """The faster of two measurements, rate by rate: a busy moment hides what a device can do."""
        return DeviceLimits(
            max(self.copy_bytes_per_s, other.copy_bytes_per_s), max(self.flops_per_s, other.flops_per_s)
        )


@dataclass(frozen=True, slots=True)
class StepWork:
    """The least that one step must read and compute.

    Args:
        weight_bytes: weights of the base model and the draft, each pass over them counted.
        cache_bytes: keys and values of the context, of all sequences.
        flops: two per weight and row in matrix products, and those of attention.
    """

    weight_bytes: float
    cache_bytes: float
    flops: float

    def __add__(self, other: StepWork) -> StepWork:
        """Both, one after the other."""
        return StepWork(
            self.weight_bytes + other.weight_bytes, self.cache_bytes + other.cache_bytes, self.flops + other.flops
        )

    @property
    def bytes(self) -> float:
        """All bytes read."""
        return self.weight_bytes + self.cache_bytes

    def floor_ms(self, limits: DeviceLimits) -> float:
        """Milliseconds no step can beat: reading at the copy rate, or computing at the product's rate."""
        return 1e3 * max(self.bytes / limits.copy_bytes_per_s, self.flops / limits.flops_per_s)

    def figures(self, step_ms: float, limits: DeviceLimits) -> dict[str, Any]:
        """What a step of ``step_ms`` achieved."""
        per_s = 1e3 / step_ms
        return {
            "bytes_per_step": round(self.bytes),
            "flops_per_step": round(self.flops),
            "bytes_per_s": self.bytes * per_s,
            "flops_per_s": self.flops * per_s,
            "share_of_copy_bandwidth": self.bytes * per_s / limits.copy_bytes_per_s,
            "share_of_peak_flops": self.flops * per_s / limits.flops_per_s,
            "floor_ms": self.floor_ms(limits),
            "share_of_floor": self.floor_ms(limits) / step_ms,
        }
