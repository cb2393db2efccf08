"""The native engine: what the stock layers compute, and the same bits for a token in a tree as alone."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, WIDE, tiny_base
from torch import nn

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.heads.ranking import best_of
from mtp_bench.models.base import BaseModel
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.models.native import library
from mtp_bench.models.native.model import NativeModel, why_not
from mtp_bench.models.native.parts import NativeNorm, NativeProduct, native_linear
from mtp_bench.models.native.weights import pack, panel_width

KINDS = ("llama", "llama-tied", "qwen2", "qwen3", "mistral-window", "mistral-narrow")
VOCABULARY = 77  # no whole number of panels either
DTYPES = (torch.float32, torch.bfloat16)
PREFIX = 21
pytestmark = pytest.mark.skipif(library.compiler() is None, reason="no C++ compiler")


def wide_base(architecture: str = "llama", dtype: torch.dtype = torch.float32) -> BaseModel:
    """A tiny model of sizes that the kernels take, with gains and biases that are not those of a fresh one."""
    base = tiny_base(architecture, **WIDE, vocab_size=VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in base.model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return replace(base, model=base.model.to(dtype))


def filled_cache(base: BaseModel, lengths: torch.Tensor) -> TreeCache:
    """Prompts in the cache, as the stock model writes them, of different lengths."""
    batch, width = len(lengths), int(lengths.max())
    cache = TreeCache.allocate(base, batch=batch, length=128)
    tokens = torch.randint(0, base.vocab_size, (batch, width), generator=torch.Generator().manual_seed(2))
    slots, starts = torch.arange(width).expand(batch, -1), torch.zeros(batch, dtype=torch.int64)
    cache.aim(slots, width)
    mask = row_mask(slots, starts, torch.ones(width, width, dtype=torch.bool).tril(), width)
    base.hidden_states(tokens, slots, for_layers(base, mask, slots, slots, starts), cache)
    return cache


def step(
    base: BaseModel, cache: TreeCache, lengths: torch.Tensor, tokens: torch.Tensor, sees: torch.Tensor, *, plain: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows [B, R] behind the prefixes, each seeing what ``sees`` bool [R, R] says."""
    rows = tokens.shape[1]
    slots, positions = lengths[:, None] + torch.arange(rows), lengths[:, None] + sees.sum(-1) - 1
    visible = int(lengths.max()) + rows + 3
    cache.aim(slots, visible)
    mask = for_layers(base, row_mask(slots, lengths, sees, visible), slots, positions, lengths, plain=plain)
    return base.choices(tokens, positions, mask, cache, (0, 2))


def tree_rows(rows: int) -> torch.Tensor:
    """Each row sees itself and every second one before it."""
    index = torch.arange(rows)
    return (index[:, None] >= index) & ((index[:, None] - index) % 2 == 0)


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (1, 9), (1, 20), (3, 5), (2, 17)])
@torch.inference_mode()
def test_steps_are_those_of_the_stock_model(architecture: str, batch: int, rows: int) -> None:
    base = wide_base(architecture)
    native = replace(base, engine="native")
    lengths = torch.tensor([PREFIX, 7, 12][:batch])
    tokens = torch.randint(0, base.vocab_size, (batch, rows), generator=torch.Generator().manual_seed(3))
    results = []
    for one in (base, native):
        cache = filled_cache(base, lengths)
        results.append([*step(one, cache, lengths, tokens, tree_rows(rows), plain=one is native), cache.data])
    for mine, stock in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, stock, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["llama", "mistral-narrow", "qwen3"])
@torch.inference_mode()
def test_a_token_has_the_same_bits_in_a_tree_as_alone(architecture: str, dtype: torch.dtype) -> None:
    """Whatever rows stand beside it, wherever its ancestors lie in the cache: a tree emits what plain decoding does."""
    base = replace(wide_base(architecture, dtype), engine="native")
    lengths = torch.tensor([PREFIX])
    for rows in (2, 5, 8, 9, 19, 33):
        tokens = torch.randint(0, base.vocab_size, (1, rows), generator=torch.Generator().manual_seed(rows))
        sees = tree_rows(rows)
        together = step(base, filled_cache(base, lengths), lengths, tokens, sees, plain=True)
        cache = filled_cache(base, lengths)
        for place, row in enumerate(sees[-1].nonzero().flatten().tolist()):  # the last row's path, token by token
            alone = step(base, cache, lengths + place, tokens[:, row : row + 1], torch.ones(1, 1).bool(), plain=True)
            for mine, theirs in zip(alone, together, strict=True):
                assert torch.equal(mine[0, 0], theirs[0, row])


@pytest.fixture
def older_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels as they are compiled for another processor than this one."""
    if platform.machine() != "x86_64":
        pytest.skip("names of x86-64 processors")
    monkeypatch.setattr(library, "FLAGS", [flag.replace("native", request.param) for flag in library.FLAGS])
    library.library.cache_clear()
    yield
    library.library.cache_clear()


# Registers of eight and of four numbers, without products of bf16.
@pytest.mark.parametrize("older_processor", ["x86-64-v3", "x86-64-v2"], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_processors_without_avx512(older_processor: None, dtype: torch.dtype) -> None:
    assert library.library().mtp_lanes() < 16
    base = wide_base("qwen3", dtype)
    native = replace(base, engine="native")
    lengths, rows = torch.tensor([PREFIX, 9]), 11
    tokens = torch.randint(0, base.vocab_size, (2, rows), generator=torch.Generator().manual_seed(3))
    stock, mine = (
        step(one, filled_cache(base, lengths), lengths, tokens, tree_rows(rows), plain=one is native)
        for one in (base, native)
    )
    close = 2e-3 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(mine[0], stock[0], atol=close, rtol=close)
    assert (mine[2] == stock[2]).float().mean() > (0.99 if dtype == torch.float32 else 0.8)
    alone = step(native, filled_cache(base, lengths), lengths, tokens[:, :1], torch.ones(1, 1).bool(), plain=True)
    assert torch.equal(alone[0][:, 0], mine[0][:, 0])


@torch.inference_mode()
def test_a_single_row_needs_no_mask() -> None:
    base = replace(wide_base(), engine="native")
    lengths, token = torch.tensor([PREFIX]), torch.tensor([[5]])
    cache = filled_cache(base, lengths)
    masked = step(base, cache, lengths, token, torch.ones(1, 1).bool(), plain=True)
    cache.aim(lengths[:, None], PREFIX + 1)
    for mine, theirs in zip(base.choices(token, lengths[:, None], None, cache, (0, 2)), masked, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_products(dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    parts = [nn.Linear(64, outputs, bias=bias, dtype=dtype).requires_grad_(False) for outputs in (40, 7, 100)]
    x = torch.randn(2, rows, 64).to(dtype)
    doubled = [nn.functional.linear(x.double(), part.weight.double()) for part in parts]
    exact = torch.cat([out + (part.bias.double() if bias else 0) for out, part in zip(doubled, parts, strict=True)], -1)
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 64 * torch.finfo(dtype).eps}
    product = NativeProduct(*parts)
    torch.testing.assert_close(product(x).double(), exact, **close)
    torch.testing.assert_close(
        product(x, outputs=40, then="silu").double(), nn.functional.silu(exact[..., :40]), **close
    )
    assert torch.equal(native_linear(parts[2])(x), product(x)[..., 47:])
    assert torch.equal(product(x[:, :1]), product(x)[:, :1]), "the same bits beside other rows"


def test_packed_weights_are_all_there() -> None:
    weight = torch.arange(7 * 4, dtype=torch.float32).view(7, 4)
    panels = pack(weight)
    assert panels.shape[0] == -(-7 // panel_width())
    assert torch.equal(panels.flatten(2).transpose(1, 2).reshape(-1, 4)[:7], weight)
    pairs = pack(weight.bfloat16())  # [panels, I / 2, vectors, lanes, 2]
    assert torch.equal(pairs.flatten(2, 3).transpose(1, 2).reshape(-1, 4)[:7], weight.bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "top_k"), [(5, 5), (50, 1), (1000, 10), (3001, 40)])
def test_ranking_is_that_of_the_drafts_with_ties(dtype: torch.dtype, vocabulary: int, top_k: int) -> None:
    torch.manual_seed(vocabulary)
    # Whole numbers, so that many logits are equal.
    weight, x = torch.randint(-1, 2, (vocabulary, 8)).to(dtype), torch.randint(-2, 3, (3, 4, 8)).to(dtype)
    layer = nn.Linear(8, vocabulary, bias=False, dtype=dtype).requires_grad_(False)
    layer.weight.copy_(weight)
    ids, shares = NativeProduct(layer).best(x, top_k)
    expected, logs = best_of(nn.functional.linear(x, weight), top_k)
    assert torch.equal(ids, expected)
    torch.testing.assert_close(shares, logs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: torch.dtype) -> None:
    x, gain = torch.randn(2, 5, 96).to(dtype), torch.rand(96).to(dtype)
    exact = nn.functional.rms_norm(x.double(), (96,), gain.double(), 1e-3)
    got = NativeNorm(gain, 1e-3)(x)
    torch.testing.assert_close(got.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("architecture", [*KINDS, "gemma2", "gemma3"])
def test_what_is_not_computed_is_named(architecture: str) -> None:
    narrow = tiny_base(architecture, **({} if architecture != "gemma2" else {"kernel": "eager"}))  # type: ignore[arg-type]
    reason = why_not(narrow.model)
    assert reason is not None
    assert ("not Gemma" if "gemma" in architecture else "and these have 8") in reason
    if architecture in KINDS:
        assert why_not(wide_base(architecture).model) is None
    assert set(ARCHITECTURES) == {*KINDS, "gemma2", "gemma3"}


def test_threads_share_the_work_alike() -> None:
    base = replace(wide_base(), engine="native")
    lengths, tokens = torch.tensor([PREFIX]), torch.arange(11)[None]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                results.append(step(base, filled_cache(base, lengths), lengths, tokens, tree_rows(11), plain=True))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert torch.equal(mine, theirs)


def test_the_model_itself_stays_as_it_is() -> None:
    base = wide_base()
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    NativeModel(base.model)
    after: dict[str, Any] = base.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_auto_picks_it_for_models_that_it_knows() -> None:
    assert load_base_model("smollm2-135m", LoadOptions(dummy=True)).engine == "native"
    assert load_base_model("smollm2-135m", LoadOptions(dummy=True, dtype="fp16")).engine == "eager"
