"""Memory is estimated before it is taken, and what cannot fit is refused with the numbers."""

from __future__ import annotations

import gc
import itertools
import resource
from pathlib import Path

import pytest
import torch
from tiny_decoding import NO_TREE
from tiny_models import SHAPES, onehot_base, onehot_heads, random_heads, tiny_base

from mtp_bench.decode import memory
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.memory import check_memory, memory_need
from mtp_bench.errors import InputError
from mtp_bench.models.memory import available_bytes
from mtp_bench.profile.costs import SweepOptions, sweep_costs
from mtp_bench.topology import chain

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
def test_ten_thousand_steps_take_no_more_memory() -> None:
    """Requests come and go in a batch of different trees all the while."""
    # One long cycle, on which the heads are right for half of the tokens.
    successor = [(token + 1) % 16 for token in range(16)]
    base = onehot_base(successor)
    heads = onehot_heads(3, good=tuple(range(8)), successor=successor)
    trees = [NO_TREE, SHAPES["single"], SHAPES["full-3-2-1"], chain(3)]
    decoder = Decoder(base, heads, NO_TREE, others=trees, batch=4, max_length=64)

    def serve(passes: int) -> None:
        until = decoder.passes + passes
        names = itertools.count()
        queue = (
            Request(str(n), [n % 16, 3], 20 + n % 30, topology=trees[n % len(trees)])
            for n in itertools.takewhile(lambda _: decoder.passes < until, names)
        )
        for _ in decoder.run(queue):
            pass

    serve(1000)
    gc.collect()
    before, objects = resident_bytes(), len(gc.get_objects())
    serve(10_000)
    gc.collect()
    assert decoder.passes > 11_000
    assert resident_bytes() - before < 4 << 20
    assert len(gc.get_objects()) - objects < 200


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
