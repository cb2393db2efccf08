"""A step of a model split over two devices never mixes them: checked on devices that only pretend to be there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from split_models import FIRST, LAYERS, SECOND, place, pretended_devices, split_base, split_map
from tiny_hydra import random_hydra
from tiny_models import SHAPES, prompt_of, random_eagle, random_heads, tiny_base

from mtp_bench.decode.cache import SplitCache, TreeCache
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import DynamicTree, StaticTree, Topology

MAPS = {
    "head-first": split_map(),
    "head-last": split_map(head=SECOND),
    "two-layers": split_map(2, norm=FIRST),
    "embedding-last": split_map(embedding=SECOND, head=SECOND),
    "there-and-back": {**split_map(), LAYERS[2]: FIRST},
    "head-alone": {**split_map(0, embedding=SECOND), "lm_head": FIRST},
}
TREE = SHAPES["full-3-2-1"]
DRAFTS: dict[str, Topology] = {
    "none": StaticTree(()), "medusa": TREE, "eagle": TREE, "eagle3": TREE, "hydra": TREE,
    "dynamic": DynamicTree(3, 3, 9),
}  # fmt: skip


def heads_of(kind: str, folder: Path) -> Any:
    """Real ones: making them reads values."""
    base = tiny_base()
    if kind == "none":
        return None
    if kind == "hydra":
        return random_hydra(base, folder, "prefix-mlp")
    return random_heads(base) if kind == "medusa" else random_eagle(base, "eagle3" if kind == "dynamic" else kind)


def run(base: BaseModel, heads: AnyHeads | None, tree: Topology, batch: int) -> TreeStepper:
    """A prefill and a step with its draft, all but the values that the host reads."""
    tensors = TreeTensors.build(tree, base.device, batch=batch)
    cache = TreeCache.allocate(base, batch=batch, length=100 + tensors.rows)
    stepper = TreeStepper(base, heads, tensors, cache)
    stepper._prefill(list(range(batch)), [prompt_of(9 + index) for index in range(batch)])
    result = stepper.step_on_device(9 + batch)
    assert result.device == stepper.tokens.device == stepper.lengths.device == base.device
    return stepper


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("placing", MAPS)
def test_no_operation_meets_two_devices(placing: str, kind: str, batch: int, tmp_path: Path) -> None:
    heads = heads_of(kind, tmp_path)
    with pretended_devices():
        base = split_base(MAPS[placing])
        stepper = run(base, heads and place(heads, str(base.device)), DRAFTS[kind], batch)
        for layer, device in enumerate(base.layer_devices):
            assert str(device) == MAPS[placing][LAYERS[layer]], "keys and values lie where their layer runs"
        held = [(part.data.device, len(part.data)) for part in stepper.cache.parts]
    assert [device for device, layers in held for _ in range(layers)] == list(base.layer_devices)
    assert isinstance(stepper.cache, SplitCache)


@pytest.mark.parametrize(
    ("architecture", "kernel"), [("mistral-window", "sdpa"), ("gemma2", "eager"), ("qwen3", "eager")]
)
def test_other_architectures(architecture: str, kernel: str) -> None:
    """Masks of several kinds, in a dict and not, cross with the rows."""
    with pretended_devices():
        base = split_base(split_map(head=FIRST), architecture, kernel)
        run(base, None, StaticTree(()), 1)
        run(base, place(random_heads(base), FIRST), TREE, 2)  # type: ignore[arg-type]


def forward(base: BaseModel) -> None:
    """The pass that a probe compares with: no cache, no mask, transformers' own attention."""
    tokens = torch.zeros(2, 7, dtype=torch.int64, device=base.device)
    with base.stock_attention():
        hidden = base.hidden_states(tokens, torch.arange(7, device=base.device).expand(2, 7), None, None)
    assert base.logits(hidden).device == base.device


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma3"])
@pytest.mark.parametrize("placing", MAPS)
def test_the_stock_pass(placing: str, architecture: str) -> None:
    device_map = dict(MAPS[placing])
    if architecture == "gemma3":  # its LM head is its embedding
        device_map["lm_head"] = device_map["model.embed_tokens"]
    with pretended_devices():
        forward(split_base(device_map, architecture))


@pytest.mark.parametrize(
    ("function", "transfers", "missing"),
    [
        ("aim", 1, 0),
        ("move", 2, 0),
        ("move", 2, 1),
        ("hidden_states", 2, 0),
        ("hidden_states", 2, 1),
        ("_features", 1, 0),
    ],
)
def test_every_transfer_is_needed(function: str, transfers: int, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of our own transfers (of so many in a function) the checks above fail: they can."""
    carry, calls = torch.Tensor.to, [0]
    names = {function} | ({"<listcomp>"} if function == "_features" else set())

    def left_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        caller = sys._getframe(1).f_code
        if caller.co_name in names and caller.co_filename.endswith(("decode/cache.py", "models/base.py")):
            calls[0] += 1
            if (calls[0] - 1) % transfers == missing:
                return tensor
        return carry(tensor, *args, **kwargs)

    def everything() -> None:
        run(base, draft, TREE, 1)
        forward(base)

    draft: Any = random_eagle(tiny_base())
    with pretended_devices():
        base = split_base(split_map(2, norm=FIRST, head=SECOND))
        place(draft, SECOND)
        monkeypatch.setattr(torch.Tensor, "to", left_out)
        with pytest.raises(AssertionError, match="over lazy:0, lazy:1"):
            everything()
        monkeypatch.undo()
        everything()
    assert calls[0]
