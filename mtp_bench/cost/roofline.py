"""The roofline: the least a step can cost, from bytes moved and operations done. For explanation, never for search.

A measured cost below it means that the timing missed a synchronisation; one far above it means that launches, not the
hardware, set the pace.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model on a device.

    Args:
        weight_bytes: bytes of weights read per pass.
        kv_bytes_per_token: bytes of cache read per token of context and sequence.
        parameters: weights that take part in matrix products; each costs two operations per row.
        bytes_per_s: memory bandwidth.
        flops_per_s: peak rate in the dtype used.
    """

    weight_bytes: float
    kv_bytes_per_token: float
    parameters: float
    bytes_per_s: float
    flops_per_s: float

    def memory_ms(self, *, batch: int = 1, context: int = 0) -> float:
        """Milliseconds to read the weights and the cache once."""
        return 1e3 * (self.weight_bytes + batch * context * self.kv_bytes_per_token) / self.bytes_per_s

    def compute_ms(self, rows: int, *, batch: int = 1) -> float:
        """Milliseconds of matrix products over ``rows`` rows per sequence."""
        return 1e3 * 2 * self.parameters * rows * batch / self.flops_per_s

    def floor_ms(self, rows: int, *, batch: int = 1, context: int = 0) -> float:
        """``max(memory_ms, compute_ms)``."""
        return max(self.memory_ms(batch=batch, context=context), self.compute_ms(rows, batch=batch))

    @property
    def ridge_rows(self) -> float:
        """Rows at which compute catches up with reading the weights (batch 1, empty cache)."""
        return self.weight_bytes / self.bytes_per_s * self.flops_per_s / (2 * self.parameters)
