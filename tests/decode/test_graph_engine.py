"""The graph engine's logic, without a GPU: recordings that run again stand in for CUDA graphs.

What this shows: steps fixed to a bucket's bound decode as eager ones do, state is changed in place only, recording
leaves it as it was, and nothing in a step reads a value on the host or brings one from there. What it cannot show: that
CUDA captures it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoding import NO_TREE
from tiny_hydra import random_hydra
from tiny_models import SHAPES, prompt_of, random_eagle, random_heads, random_tree, tiny_base
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.decode.graph import GraphStepper, graph_bounds
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import CheckFailed, InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.engines import pick_engine
from mtp_bench.topology import DynamicTree, Topology

NEW_TOKENS = 90  # over several buckets
PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((40, 3, 61, 17))]
MAX_LENGTH = 160
TREES: dict[str, tuple[str, Topology]] = {
    "none": ("none", NO_TREE),
    "medusa": ("medusa", random_tree(1, max_nodes=30)),
    "eagle": ("eagle", SHAPES["full-3-2-1"]),
    "eagle3": ("eagle3", random_tree(2, max_nodes=30)),
    "dynamic": ("eagle3", DynamicTree(3, 3, 9)),
    "narrow": ("eagle3", DynamicTree(4, 1, 4)),
    "hydra": ("prefix-mlp", random_tree(2, max_nodes=30)),
}


class NoHostTraffic(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: reading a value, sizes that depend on values, constants of the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A single number is filled in by a kernel; a list would be copied from the host.
        copied = name == "lift_fresh" and args[0].dim() > 0
        assert not copied, "values of the host in a recorded step"
        assert not name.startswith(self.FORBIDDEN), f"{name} in a recorded step"
        return func(*args, **(kwargs or {}))


class Rerun:
    """A function that runs again in place of a graph: not when recorded, and always into the same outputs."""

    made = 0

    def __init__(self, function: Callable[[], Any], device: torch.device) -> None:
        self._function, self._outputs = function, None
        Rerun.made += 1

    def replay(self) -> Any:
        with NoHostTraffic():
            outputs = self._function()
        if self._outputs is None:
            self._outputs = outputs
        tree_map(lambda one, new: one.copy_(new) if isinstance(one, torch.Tensor) else one, self._outputs, outputs)
        return self._outputs


class Recorded(GraphStepper):
    recorder = Rerun


def heads_of(base: BaseModel, kind: str, folder: Path) -> AnyHeads | None:
    if kind == "none":
        return None
    if kind == "prefix-mlp":
        return random_hydra(base, folder, kind)
    return random_heads(base) if kind == "medusa" else random_eagle(base, kind)


def decode(
    base: BaseModel, heads: AnyHeads | None, tree: Topology, stepper: type[TreeStepper], batch: int
) -> list[Generation]:
    decoder = Decoder(base, heads, tree, batch=batch, max_length=MAX_LENGTH, stepper=stepper)
    requests = [Request(str(index), prompt, NEW_TOKENS) for index, prompt in enumerate(PROMPTS)]
    return sorted(decoder.run(requests), key=lambda one: one.request.key)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_recorded_steps_are_eager_steps(architecture: str, name: str, batch: int, tmp_path: Path) -> None:
    base = tiny_base(architecture)
    kind, tree = TREES[name]
    heads = heads_of(base, kind, tmp_path)
    Rerun.made = 0
    recorded = decode(base, heads, tree, Recorded, batch)
    eager = decode(base, heads, tree, TreeStepper, batch)
    assert [one.tokens for one in recorded] == [one.tokens for one in eager]
    assert [one.accepted for one in recorded] == [one.accepted for one in eager]
    assert Rerun.made == len(graph_bounds(MAX_LENGTH)) == 3, "one recording for each bucket, made once"


def test_costs_can_be_timed_from_recordings() -> None:
    base = tiny_base()
    heads = random_heads(base)
    tree = SHAPES["full-3-2-1"]
    tokens = torch.randint(0, base.vocab_size, (1, tree.rows), generator=torch.Generator().manual_seed(0))
    results = []
    for kind in (TreeStepper, Recorded):
        cache = TreeCache.allocate(base, batch=1, length=100)
        cache.data.normal_(generator=torch.Generator().manual_seed(1))
        stepper = kind(base, heads, TreeTensors.build(tree, base.device), cache)
        stepper.set_rows(stepper.tree, tokens.clone())
        outcome = []
        for _ in range(3):
            stepper.lengths.fill_(50)
            stepper.tokens.copy_(tokens)
            outcome.append(stepper.advance(50)[0].tolist())
        results.append(outcome)
    assert results[0] == results[1]


def test_a_recording_that_gives_something_else_is_refused() -> None:
    base = tiny_base()

    class Wrong(Rerun):
        def replay(self) -> Any:
            return tree_map(lambda one: one + 1, super().replay())

    class Broken(GraphStepper):
        recorder = Wrong

    with pytest.raises(CheckFailed, match="does not give what the same step gives eagerly"):
        decode(base, None, NO_TREE, Broken, 1)


def test_buckets() -> None:
    assert graph_bounds(0) == []
    assert graph_bounds(64) == [64]
    assert graph_bounds(200) == [64, 128, 192, 200]
    long = graph_bounds(16384)
    assert len(long) < 40
    assert long[-1] == 16384
    for below, bound in zip([0, *long], long, strict=False):
        assert 0 < bound - below <= max(64, bound / 4), "padding costs a quarter at most"


def test_engines_are_picked_by_device() -> None:
    assert pick_engine("auto", torch.device("cuda"), torch.bfloat16) == "graph"
    with pytest.raises(InputError, match="graphs are CUDA's"):
        pick_engine("graph", torch.device("cpu"), torch.bfloat16)
