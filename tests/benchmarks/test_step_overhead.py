"""How much of a decoding step is not the model: masks, acceptance, cache moves, drafting, and the host's bookkeeping.

Run with ``pytest -n 0 -s tests/benchmarks/test_step_overhead.py`` to see the figures. Whole steps and bare forward
passes over the same rows are timed in turn in one process, so their ratio holds on a noisy machine; no timing is
asserted.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from mtp_bench.cli.loading import load_base, load_heads
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree
from mtp_bench.topology.shapes import typical_tree

CONTEXT = 128


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base("smollm2-135m")


def forward_ms(base: BaseModel, tree: StaticTree) -> float:
    """One bare pass of the base model over the tree's rows, everything around it prepared beforehand."""
    tensors = TreeTensors.build(tree, base.device)
    cache = TreeCache.allocate(base, batch=1, length=CONTEXT + tensors.rows)
    slots = CONTEXT + torch.arange(tensors.rows)[None]
    lengths = torch.tensor([CONTEXT])
    mask = row_mask(slots, lengths, tensors.ancestors, cache.length)
    positions = lengths[:, None] + tensors.depths
    layered = for_layers(base, mask, slots, positions, lengths, plain=base.engine == "native")
    cache.aim(slots, cache.length)
    with torch.inference_mode():
        start = time.perf_counter()
        base.choices(torch.ones_like(slots), positions, layered, cache)
        return 1e3 * (time.perf_counter() - start)


def test_share_of_a_step_outside_the_model(base: BaseModel) -> None:
    heads, _ = load_heads(None, base)
    tree = typical_tree(15, depth=heads.num_heads, top_k=10)
    decoder = Decoder(base, heads, tree, max_length=CONTEXT + 40)
    prompt = [1 + (37 * i) % 4000 for i in range(CONTEXT - 16)]
    steps, bare = [], []
    for _ in range(6):
        generation = next(iter(decoder.run([Request("p", prompt, 32, ignore_eos=True)])))
        assert len(generation.tokens) == 32
        steps.append(1e3 * generation.decode_s / generation.steps)
        bare.append(statistics.median(forward_ms(base, tree) for _ in range(generation.steps)))
    step, model = statistics.median(steps[1:]), statistics.median(bare[1:])
    share = 100 * (1 - model / step)
    print(f"\nstep of 16 rows: {step:.2f} ms, of it the model's forward pass {model:.2f} ms: {share:.1f}% outside")
