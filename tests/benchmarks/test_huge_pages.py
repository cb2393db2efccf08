"""What huge pages gain: products with weights in ordinary pages over the same in huge ones, timed in turn.

Run with ``pytest -n 0 -s tests/benchmarks/test_huge_pages.py`` to see the ratios; no timing is asserted.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from mtp_bench.models.packed import PackedProduct, can_pack
from mtp_bench.models.pages import huge_page_bytes, huge_pages

OUT, INNER = 576, 576
COUNT = 256  # of weights, 170 MB in bf16: about the layers of the reference model
ROWS = (1, 4, 16, 64)


def seconds(products: list[PackedProduct], x: torch.Tensor) -> float:
    start = time.perf_counter()
    for product in products:
        product(x)
    return time.perf_counter() - start


@pytest.mark.skipif(huge_page_bytes() is None, reason="this kernel gives no huge pages")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@torch.inference_mode()
def test_ordinary_against_huge_pages(dtype: torch.dtype) -> None:
    if not can_pack(dtype):
        pytest.skip("no packed products of this kind here")
    weights = [torch.randn(OUT, INNER).to(dtype) for _ in range(COUNT)]
    ordinary = [PackedProduct(weight) for weight in weights]
    with huge_pages():
        huge = [PackedProduct(weight) for weight in weights]
    assert torch.equal(ordinary[3](weights[0]), huge[3](weights[0]))
    ratios = []
    for rows in ROWS:
        x = torch.randn(1, rows, INNER).to(dtype)
        pairs = [(seconds(ordinary, x), seconds(huge, x)) for _ in range(12)][2:]
        ratios.append(f"{rows} rows {statistics.median(plain / quick for plain, quick in pairs):.2f}x")
    print(f"\n{dtype}: {', '.join(ratios)}")
