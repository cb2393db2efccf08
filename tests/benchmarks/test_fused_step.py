"""What fused layers in huge pages gain: the stock forward's time over theirs for a verification of the reference model.

Run with ``pytest -n 0 -s tests/benchmarks/test_fused_step.py`` to see the ratios; no timing is asserted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.packed import can_pack, pack_linears, shared_copy
from mtp_bench.models.pages import huge_pages
from mtp_bench.profile.cells import CellMaker

ROWS = (1, 4, 16, 64)
CONTEXT = 192


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_engines_in_turn(dtype: str) -> None:
    if not can_pack({"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]):
        pytest.skip("no packed products of this kind here")
    fused = load_base_model("smollm2-135m", LoadOptions(dtype=dtype, engine="packed"))
    eager = replace(fused, engine="eager")
    linears = replace(eager, model=shared_copy(fused.model))
    with huge_pages():
        pack_linears(linears.model)
    makers = [CellMaker(base, None, batch=1, length=CONTEXT + 2 * max(ROWS)) for base in (eager, linears, fused)]
    print()
    for rows in ROWS:
        calls = [maker.verify(rows, CONTEXT).call for maker in makers]
        times = [[seconds(call) for call in calls] for _ in range(12)][2:]
        stock, packed = (statistics.median(row[kind] / row[2] for row in times) for kind in (0, 1))
        print(f"{dtype}, {rows} rows: stock {stock:.2f}x, packed linear layers alone {packed:.2f}x the time of fused")


def seconds(call: Callable[[], object]) -> float:
    """Of the second of two calls: after another engine's the first is not its usual time."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
