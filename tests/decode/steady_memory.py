"""Ten thousand steps of a batch; prints by how much the process has grown. Run by ``test_memory.py``, with the engine's
name."""

from __future__ import annotations

import gc
import itertools
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_decoding import NO_TREE
from tiny_models import SHAPES, WIDE, onehot_base, onehot_heads, random_heads, tiny_base

from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import chain

STEPS = 10_000


def main(engine: str) -> None:
    """Requests come and go in a batch of different trees all the while."""
    torch.set_num_threads(1)
    # One long cycle, on which the heads are right for half of the tokens.
    successor = [(token + 1) % 16 for token in range(16)]
    heads = onehot_heads(3, good=tuple(range(8)), successor=successor)
    trees = [NO_TREE, SHAPES["single"], SHAPES["full-3-2-1"], chain(3)]
    base: BaseModel = onehot_base(successor)
    if engine == "native":
        base = replace(tiny_base(**WIDE, vocab_size=16), engine="native")
        heads = random_heads(base, num_heads=3)
    decoder = Decoder(base, heads, NO_TREE, others=trees, batch=4, max_length=64)

    def serve(passes: int) -> None:
        until = decoder.passes + passes
        queue = (
            Request(str(n), [n % 16, 3], 20 + n % 30, topology=trees[n % len(trees)])
            for n in itertools.takewhile(lambda _: decoder.passes < until, itertools.count())
        )
        for _ in decoder.run(queue):
            pass

    serve(STEPS // 10)
    gc.collect()
    before, objects, passes = resident_bytes(), len(gc.get_objects()), decoder.passes
    serve(STEPS)
    gc.collect()
    grown = {"bytes": resident_bytes() - before, "objects": len(gc.get_objects()) - objects}
    print(json.dumps({"passes": decoder.passes - passes, **grown}))


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1])
