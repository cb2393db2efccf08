"""What the kernels gain: the stock forward's and the packed engine's time over theirs, for the reference model.

Run with ``pytest -n 0 -s tests/benchmarks/test_native_speed.py`` to see the ratios; no timing is asserted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.native.library import compiler
from mtp_bench.models.packed import can_pack
from mtp_bench.profile.cells import CellMaker

ROWS = (1, 4, 16, 64, 128)
CONTEXT = 192


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_engines_in_turn(dtype: str) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    native = load_base_model("smollm2-135m", LoadOptions(dtype=dtype, engine="native"))
    others = ["eager", *(["packed"] if can_pack(native.dtype) else [])]
    bases = [*(replace(native, engine=name) for name in others), native]  # type: ignore[arg-type]
    makers = [CellMaker(base, None, batch=1, length=CONTEXT + 2 * max(ROWS)) for base in bases]
    print()
    for rows in ROWS:
        calls = [maker.verify(rows, CONTEXT).call for maker in makers]
        times = [[seconds(call) for call in calls] for _ in range(12)][2:]
        ratios = {
            name: statistics.median(turn[place] / turn[-1] for turn in times) for place, name in enumerate(others)
        }
        said = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
        print(f"{dtype}, {rows} rows: {said} the time of native")


def seconds(call: Callable[[], object]) -> float:
    """Of the second of two calls: after another engine's the first is not its usual time."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
