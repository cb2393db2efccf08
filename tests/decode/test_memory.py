"""Memory is estimated before it is taken, and what cannot fit is refused with the numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_decoding import NO_TREE
from tiny_models import SHAPES, random_heads, tiny_base

from mtp_bench.decode import memory
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder
from mtp_bench.decode.memory import check_memory, memory_need
from mtp_bench.errors import InputError
from mtp_bench.models.memory import available_bytes
from mtp_bench.models.native.library import compiler
from mtp_bench.profile.costs import SweepOptions, sweep_costs

STATM = Path("/proc/self/statm")


@pytest.mark.parametrize("batch", [1, 3])
def test_the_cache_is_counted_exactly(batch: int) -> None:
    base = tiny_base()
    cache = TreeCache.allocate(base, batch=batch, length=120)
    spare = cache.data[:, :, :, :, :1].numel()
    counted = memory_need(base, batch=batch, length=120, rows=8).cache
    assert counted == (cache.data.numel() - spare) * cache.data.element_size()


def test_more_of_anything_takes_more() -> None:
    base = tiny_base()
    least = memory_need(base, batch=1, length=1000, rows=600)
    for more in ({"batch": 2}, {"length": 1001}, {"rows": 601}):
        assert memory_need(base, **{"batch": 1, "length": 1000, "rows": 600, **more}).total > least.total


def test_this_machine_has_memory() -> None:
    free = available_bytes(torch.device("cpu"))
    assert free is None or 1 << 20 < free < 1 << 50


def test_what_does_not_fit_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    with pytest.raises(InputError, match=r"1 x 1000000000 slots of cache take [\d.]+ GiB"):
        check_memory(base, batch=1, length=10**9, rows=1)
    need = memory_need(base, batch=2, length=64 + 1, rows=1)
    monkeypatch.setattr(memory, "available_bytes", lambda device: need.total)
    with pytest.raises(InputError, match="is free on cpu"):
        Decoder(base, None, NO_TREE, batch=2, max_length=64)
    with pytest.raises(InputError, match="smaller batch, context or tree"):
        sweep_costs(base, random_heads(base), SweepOptions(rows=(1, 4), contexts=(4096,), rounds=3))
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * need.total)
    Decoder(base, None, NO_TREE, batch=2, max_length=64)
    monkeypatch.setattr(memory, "available_bytes", lambda device: None)
    Decoder(base, random_heads(base), SHAPES["chain"], batch=2, max_length=64)


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.parametrize("engine", ["eager", "native"])
def test_ten_thousand_steps_take_no_more_memory(engine: str) -> None:
    """In a process of its own: in this one other tests have left the allocator in any state."""
    if engine == "native" and compiler() is None:
        pytest.skip("no C++ compiler")
    script = Path(__file__).with_name("steady_memory.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script, engine], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["passes"] > 10_000
    assert found["bytes"] < 4 << 20
    assert found["objects"] < 200
