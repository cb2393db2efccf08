"""What a cost sweep would get wrong without its lead-in calls: how much longer a verification takes right after one of
another size than after one of its own.

Run with ``pytest -n 0 -s tests/benchmarks/test_lead_in.py`` to see the ratios; no timing is asserted.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch

from mtp_bench.cli.loading import load_base
from mtp_bench.models.packed import can_pack
from mtp_bench.profile.cells import Cell, CellMaker

ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
CONTEXT = 128
ROUNDS = 12
CALLS = 3


def seconds(cell: Cell) -> float:
    start = time.perf_counter()
    cell.call()
    return time.perf_counter() - start


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_first_call_against_third(dtype: str) -> None:
    if dtype == "bf16" and not can_pack(torch.bfloat16):
        pytest.skip("no packed bf16 products here")
    base = load_base("smollm2-135m", dtype=dtype)
    maker = CellMaker(base, None, batch=1, length=CONTEXT + max(ROWS))
    cells = {rows: maker.verify(rows, CONTEXT) for rows in ROWS}
    ratios: dict[int, list[float]] = {rows: [] for rows in ROWS}
    order = np.random.default_rng(0)
    for _ in range(ROUNDS):
        for rows in order.permutation(ROWS).tolist():
            calls = [seconds(cells[rows]) for _ in range(CALLS)]
            ratios[rows].append(calls[0] / calls[-1])
    assert all(cell.finite() for cell in cells.values())
    shown = ", ".join(f"{rows} rows {statistics.median(ratios[rows]):.2f}" for rows in ROWS)
    print(f"\n{dtype}: a verification after one of another size, over the third in a row: {shown}")
