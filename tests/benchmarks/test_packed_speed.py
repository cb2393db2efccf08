"""What packing gains: plain over packed time of the reference model's kinds of products, timed in turn.

Run with ``pytest -n 0 -s tests/benchmarks/test_packed_speed.py`` to see the ratios; no timing is asserted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mtp_bench.models.packed import PackedProduct, can_pack

SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576))
ROWS = (1, 4, 16, 64)
BYTES = 100_000_000  # of distinct weights, so that caches do not hold them


def seconds(call: Callable[[int], object], times: int) -> float:
    start = time.perf_counter()
    for index in range(times):
        call(index)
    return time.perf_counter() - start


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="no packed bf16 products here")
@torch.inference_mode()
def test_packed_against_plain_products() -> None:
    print()
    for out, inner in SHAPES:
        count = max(1, BYTES // (2 * out * inner))
        weights = [torch.randn(out, inner).bfloat16() for _ in range(count)]
        packed = [PackedProduct(weight) for weight in weights]
        ratios = []
        for rows in ROWS:
            x = torch.randn(1, rows, inner).bfloat16()
            pairs = [
                (seconds(lambda i: F.linear(x, weights[i]), count), seconds(lambda i: packed[i](x), count))  # noqa: B023
                for _ in range(5)
            ]
            ratios.append(f"{rows} rows {statistics.median(plain / quick for plain, quick in pairs):.2f}x")
        assert torch.isfinite(packed[0](x)).all()
        print(f"{out} x {inner}: {', '.join(ratios)}")
