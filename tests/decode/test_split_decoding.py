"""Decoding with accelerate's real hooks gives what decoding without them gives.

Without a GPU there is one device that computes; a part of the layers is on the disk instead, fetched by the same hooks.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_decoding import NO_TREE, PROMPTS, decode
from tiny_models import SHAPES, plain_greedy, prompt_of, random_eagle, random_heads, save_tiny_model, tiny_base

from mtp_bench.decode.cache import SplitCache, TreeCache
from mtp_bench.decode.probe import probe_tree
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.topology import DynamicTree, StaticTree, Topology

OFFLOADED = {"": "cpu", "model.layers.1": "disk", "model.norm": "disk"}
PARTS = ["llama", "llama-tied", "mistral-window", "gemma3"]
DRAFTS: dict[str, Topology] = {
    "none": NO_TREE, "medusa": SHAPES["random-2"], "eagle": SHAPES["full-3-2-1"], "eagle3": SHAPES["random-1"],
    "dynamic": DynamicTree(3, 3, 9),
}  # fmt: skip


def offloaded(architecture: str, folder: Path) -> BaseModel:
    save_tiny_model(tiny_base(architecture), folder)
    (folder / "map.json").write_text(json.dumps(OFFLOADED))
    return load_base_model(str(folder), LoadOptions(dtype="fp32", device_map=str(folder / "map.json")))


def heads_of(base: BaseModel, kind: str) -> AnyHeads | None:
    if kind == "none":
        return None
    return random_heads(base) if kind == "medusa" else random_eagle(base, "eagle3" if kind == "dynamic" else kind)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("architecture", PARTS)
def test_the_same_tokens_in_the_same_steps(
    architecture: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, split = tiny_base(architecture), offloaded(architecture, tmp_path)
    assert [one.device.type for one in split.model.parameters()].count("meta") > 5, "really dispatched"

    def in_parts(base: BaseModel, *, batch: int, length: int) -> TreeCache:
        shape = (1, 2, batch, base.num_kv_heads, length, base.head_dim)
        return SplitCache([TreeCache.zeros(shape, base.lm_head_weight) for _ in range(base.num_layers)])

    for kind, tree in DRAFTS.items():
        expected = decode(whole, heads_of(whole, kind), tree, batch=batch)
        with monkeypatch.context() as patch:
            patch.setattr(TreeCache, "allocate", in_parts)
            found = decode(split, heads_of(split, kind), tree, batch=batch)
        assert [one.tokens for one in found] == [one.tokens for one in expected], kind
        assert [one.accepted for one in found] == [one.accepted for one in expected], kind
    assert decode(split, None, NO_TREE)[0].tokens == plain_greedy(whole, PROMPTS[0], 28)


def test_a_split_model_is_probed_and_generates(tmp_path: Path) -> None:
    split = offloaded("llama", tmp_path)
    tree = SHAPES["random-3"]
    assert isinstance(tree, StaticTree)
    assert probe_tree(split, tree, prompt_of(9)).passed
    assert plain_greedy(split, PROMPTS[0], 28) == plain_greedy(tiny_base(), PROMPTS[0], 28)
