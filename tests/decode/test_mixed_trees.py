"""A batch whose requests use different trees: each decodes as it would alone with its own tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_decoding import NO_TREE
from tiny_hydra import random_hydra
from tiny_models import SHAPES, WIDE, prompt_of, random_eagle, random_heads, random_tree, tiny_base

from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.engines import Engine
from mtp_bench.models.native.library import compiler
from mtp_bench.topology import DynamicTree, StaticTree

# Nearly every token at depth 1, so that something is accepted.
COVER = StaticTree.from_paths([(rank,) for rank in range(20)] + [(a, b) for a in range(20) for b in range(2)])
TREES = [NO_TREE, SHAPES["chain"], SHAPES["gap"], COVER, random_tree(1, max_nodes=30), SHAPES["full-3-2-1"]]
# Mixed lengths and outputs, so that requests end at different times and slots change their tree.
REQUESTS = [
    Request(str(index), prompt_of(length, index), new_tokens, topology=TREES[index % len(TREES)])
    for index, (length, new_tokens) in enumerate(
        [(4, 20), (19, 31), (9, 12), (1, 28), (13, 2), (9, 25), (30, 17), (5, 33), (17, 9), (3, 26), (11, 14)]
    )
]
MAX_LENGTH = 64


def in_order(generations: list[Generation]) -> list[Generation]:
    return sorted(generations, key=lambda one: int(one.request.key))


def alone(base: BaseModel, heads: AnyHeads, request: Request) -> Generation:
    decoder = Decoder(base, heads, request.topology or NO_TREE, max_length=MAX_LENGTH)
    (one,) = decoder.run([Request(request.key, request.prompt, request.max_new_tokens)])
    return one


@pytest.mark.parametrize("batch", [2, 3, 8])
@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "hydra"])
@pytest.mark.parametrize(
    ("architecture", "engine"),
    [("llama", "eager"), ("mistral-window", "eager"), ("gemma3", "eager"), ("llama", "native"), ("qwen3", "native")],
)
def test_every_request_decodes_as_alone(
    architecture: str, engine: Engine, kind: str, batch: int, tmp_path: Path
) -> None:
    base = tiny_base(architecture)
    if engine == "native":
        if compiler() is None:
            pytest.skip("no C++ compiler")
        base = replace(tiny_base(architecture, **WIDE), engine=engine)
    heads: AnyHeads
    if kind == "hydra":  # a prefix layer is a LLaMA's
        heads = random_hydra(base, tmp_path, "mlp" if architecture == "gemma3" else "prefix-mlp")
    else:
        heads = random_heads(base) if kind == "medusa" else random_eagle(base, kind)
    expected = [alone(base, heads, request) for request in REQUESTS]
    decoder = Decoder(base, heads, NO_TREE, others=TREES, batch=batch, max_length=MAX_LENGTH)
    together = in_order(list(decoder.run(REQUESTS)))
    assert [one.tokens for one in together] == [one.tokens for one in expected]
    assert [one.accepted for one in together] == [one.accepted for one in expected]
    assert sum(sum(one.accepted) for one in together) > 10, "a test where nothing is accepted shows nothing"


def test_requests_without_a_tree_use_the_decoders_own() -> None:
    base = tiny_base()
    heads = random_heads(base)
    own = SHAPES["full-3-2-1"]
    plain = [Request(one.key, one.prompt, one.max_new_tokens) for one in REQUESTS]
    mixed = Decoder(base, heads, own, others=[SHAPES["chain"]], batch=3, max_length=MAX_LENGTH)
    single = Decoder(base, heads, own, batch=3, max_length=MAX_LENGTH)
    steps = [[one.steps for one in in_order(list(decoder.run(plain)))] for decoder in (mixed, single)]
    assert steps[0] == steps[1]


def test_refusals() -> None:
    base = tiny_base()
    heads = random_eagle(base, "eagle3")
    decoder = Decoder(base, heads, NO_TREE, others=[SHAPES["chain"]], max_length=MAX_LENGTH)
    stranger = Request("1", [1, 2], 4, topology=SHAPES["gap"])
    with pytest.raises(InputError, match="6 nodes that this decoder was not made for"):
        list(decoder.run([stranger]))
    with pytest.raises(InputError, match="cannot share a batch"):
        Decoder(base, heads, DynamicTree(3, 2, 4), others=[StaticTree(())], max_length=MAX_LENGTH)
