"""Packed weights: the same products, the stock model untouched, the same text and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoding import NO_TREE, decode
from tiny_hydra import random_hydra
from tiny_models import ARCHITECTURES, random_eagle, random_heads, random_tree, tiny_base
from torch import nn

from mtp_bench.decode.drafters import engine_heads
from mtp_bench.errors import InputError
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models import engines, load
from mtp_bench.models.engines import pick_engine
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.packed import PackedLinear, PackedProduct, can_pack, pack_linears, shared_copy
from mtp_bench.topology import DynamicTree, Topology

NAMES = [name for name in ARCHITECTURES if name != "gemma2"]  # that one knows only eager attention
CPU = torch.device("cpu")
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if can_pack(dtype)]
pytestmark = pytest.mark.skipif(not DTYPES, reason="this torch or CPU has no packed products")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(1, 1), (1, 13), (3, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_products(dtype: torch.dtype, rows: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64).to(dtype), torch.randn(*rows, 64).to(dtype)
    offset = torch.randn(96).to(dtype) if bias else None
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    got = PackedProduct(weight, offset)(x)
    assert got.dtype == dtype
    # Rounded once at the end, as the plain product is.
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 64 * torch.finfo(dtype).eps}
    torch.testing.assert_close(got.double(), exact, **close)
    product, other = PackedProduct(weight, offset), torch.randn(*rows, 96).to(dtype)
    torch.testing.assert_close(product(x, "swish").double(), torch.nn.functional.silu(exact), **close)
    torch.testing.assert_close(product.combined(x, other, "add").double(), exact + other.double(), **close)
    torch.testing.assert_close(product.combined(x, other, "mul").double(), exact * other.double(), **close)


@pytest.mark.parametrize("architecture", NAMES)
def test_the_copy_shares_weights_and_leaves_the_model_alone(architecture: str) -> None:
    base = tiny_base(architecture)
    layer = base.decoder.layers[0]  # type: ignore[index, union-attr]
    hook = layer.register_forward_pre_hook(lambda module, args: None)
    twin = shared_copy(base.model)
    pack_linears(twin)
    pairs = zip(base.model.parameters(), twin.parameters(), strict=True)
    assert all(mine is theirs for mine, theirs in pairs)
    assert any(isinstance(part, PackedLinear) for part in twin.modules())
    assert not any(type(part) is nn.Linear for part in twin.modules())
    assert not any(isinstance(part, PackedLinear) for part in base.model.modules())
    assert not any(part._forward_pre_hooks for part in twin.modules())
    hook.remove()


@pytest.mark.parametrize("architecture", NAMES)
@pytest.mark.parametrize("kind", ["none", "medusa", "eagle", "eagle3", "hydra"])
def test_text_and_steps_are_those_of_the_eager_engine(architecture: str, kind: str, tmp_path: Path) -> None:
    base = tiny_base(architecture)
    fast = replace(base, engine="packed")
    heads: AnyHeads | None = None
    if kind == "hydra":  # a prefix layer is a LLaMA's
        heads = random_hydra(base, tmp_path, "mlp" if architecture == "gemma3" else "prefix-mlp")
    elif kind != "none":
        heads = random_heads(base, "map") if kind == "medusa" else random_eagle(base, kind)
    trees: list[Topology] = [NO_TREE] if heads is None else [random_tree(1), random_tree(2)]
    if kind == "eagle3":
        trees.append(DynamicTree(3, 3, 9))
    for tree in trees:
        for batch in (1, 2):
            plain, quick = (decode(one, heads, tree, batch=batch) for one in (base, fast))  # type: ignore[arg-type]
            assert [g.tokens for g in quick] == [g.tokens for g in plain]
            # Texts are the base model's, but a draft's near-ties may fall either way.
            steps, expected = (sum(g.steps for g in some) for some in (quick, plain))
            assert abs(steps - expected) <= 0.05 * expected


def test_every_layer_of_hydra_heads_is_packed(tmp_path: Path) -> None:
    heads = random_hydra(tiny_base(), tmp_path)
    twin = engine_heads(heads, "packed")
    assert isinstance(twin, HydraHeads)
    packed_layers = [part for part in twin.modules() if isinstance(part, PackedLinear)]
    assert len(packed_layers) == sum(isinstance(part, nn.Linear) for part in heads.modules()) == 4 * (2 + 1 + 1) + 7
    assert twin._embedding is heads._embedding, "the borrowed embedding is not copied"


def test_auto_picks_it_where_it_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "compiler", lambda: None)
    assert pick_engine("auto", CPU, DTYPES[0]) == "packed"
    with pytest.raises(InputError, match="no packed products of float16"):
        pick_engine("packed", CPU, torch.float16)
    assert pick_engine("auto", CPU, torch.float16) == "eager"
    monkeypatch.setattr(load, "available_bytes", lambda device: 1000)
    assert load_base_model("smollm2-135m", LoadOptions(dummy=True)).engine == "eager"
    with pytest.raises(InputError, match="packing takes"):
        load_base_model("smollm2-135m", LoadOptions(engine="packed", dummy=True))


def test_the_first_of_equal_logits_is_chosen() -> None:
    """As argmax does, in which generate and the reference passes trust; bf16 logits are often equal."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.randint(0, 4, (3, 7, 50_000), generator=generator).to(dtype)
        assert torch.equal(logits.max(-1).indices, logits.argmax(-1))
        assert torch.equal(logits.max(-1).indices, (logits == logits.amax(-1, keepdim=True)).int().argmax(-1))


@pytest.mark.parametrize("kind", ["none", "medusa", "eagle", "eagle3"])
def test_every_product_of_a_step_is_a_packed_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base model's layers, its LM head, and the draft's LM rows: else equal text would show nothing."""
    base = replace(tiny_base(), engine="packed")
    heads: AnyHeads | None = None
    if kind != "none":
        heads = random_heads(base, "map") if kind == "medusa" else random_eagle(base, kind)
    decode(base, heads, NO_TREE if heads is None else random_tree(1))
    used: set[PackedProduct] = set()
    for way in ("__call__", "combined"):
        monkeypatch.setattr(PackedProduct, way, noting(used, getattr(PackedProduct, way)))
    decode(base, heads, NO_TREE if heads is None else random_tree(1))
    made = set(products_of(base._packed.model))
    if heads is not None:
        twin = engine_heads(heads, "packed")
        assert twin is engine_heads(heads, "packed"), "made once"
        assert twin.lm_product in used  # type: ignore[union-attr]
    assert len(made) == 3 * 5 + 1, "q, k and v are one; the LM head"
    assert made <= used


def noting(used: set[PackedProduct], multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def noted(self: PackedProduct, *args: Any) -> torch.Tensor:
        used.add(self)
        return multiply(self, *args)

    return noted


def products_of(model: nn.Module) -> list[PackedProduct]:
    return [value for part in model.modules() for value in vars(part).values() if isinstance(value, PackedProduct)]
