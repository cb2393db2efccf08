"""FlexAttention behind its flag: the same attention as SDPA's, its masks those that torch itself would make."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mtp_bench.errors import InputError
from mtp_bench.models import engines, flex
from mtp_bench.models.engines import packed_or_eager, pick_engine

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MODULE = torch.nn.Identity()
# batch, rows, slots: within one block, over several, exactly on their bounds.
SIZES = [(1, 1, 5), (2, 7, 73), (3, 16, 128), (1, 64, 129), (2, 128, 256), (1, 200, 700)]


def random_mask(batch: int, rows: int, slots: int) -> torch.Tensor:
    """As decoding makes them: every row sees a prefix of its sequence and some of the slots behind it."""
    generator = torch.Generator().manual_seed(batch + rows + slots)
    lengths = torch.randint(0, max(1, slots - rows), (batch,), generator=generator)
    mask = torch.arange(slots).expand(batch, 1, rows, slots) < lengths[:, None, None, None]
    behind = torch.rand(batch, 1, rows, rows, generator=generator) < 0.5
    behind |= torch.eye(rows, dtype=torch.bool)
    mask = mask.clone()
    mask[..., slots - rows :] |= behind
    return mask


def random_states(batch: int, rows: int, slots: int, heads: int = 6, kv_heads: int = 2) -> list[torch.Tensor]:
    """Query as a model hands it over, key and value as the cache does."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(batch, rows, heads, 16, generator=generator).transpose(1, 2)
    cache = torch.randn(2, batch, kv_heads, slots + 1, 16, generator=generator)
    return [query, *cache[:, :, :, :slots]]


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_those_that_torch_makes(size: tuple[int, int, int]) -> None:
    mask = random_mask(*size)
    ours = flex.block_mask(mask)
    theirs = create_block_mask(lambda b, h, row, slot: mask[b, 0, row, slot], size[0], None, *size[1:], device="cpu")
    assert ours.shape == theirs.shape == mask.shape
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        assert torch.equal(getattr(ours, counts), getattr(theirs, counts))
        assert torch.equal(getattr(ours, indices), getattr(theirs, indices))


@pytest.mark.parametrize("size", SIZES)
def test_attends_as_sdpa_does(size: tuple[int, int, int]) -> None:
    mask, states = random_mask(*size), random_states(*size)
    output, weights = flex.flex(MODULE, *states, flex.block_mask(mask))
    assert weights is None
    torch.testing.assert_close(output, dense(*states, mask), atol=2e-6, rtol=1e-5)
    scaled, _ = flex.flex(MODULE, *states, flex.block_mask(mask), scaling=1.0)
    torch.testing.assert_close(scaled, dense(4 * states[0], *states[1:], mask), atol=2e-6, rtol=1e-5)


def test_as_many_key_heads_as_query_heads() -> None:
    mask, states = random_mask(2, 7, 73), random_states(2, 7, 73, heads=3, kv_heads=3)
    output, _ = flex.flex(MODULE, *states, flex.block_mask(mask))
    torch.testing.assert_close(output, dense(*states, mask), atol=2e-6, rtol=1e-5)


def test_soft_capping() -> None:
    query, key, value = random_states(2, 7, 73)
    mask = random_mask(2, 7, 73)
    scores = query @ key.repeat_interleave(3, 1).transpose(2, 3)
    weights = (2.0 * torch.tanh(scores / 2.0)).masked_fill(~mask, -torch.inf).softmax(-1)
    output, _ = flex.flex(MODULE, query, key, value, flex.block_mask(mask), scaling=1.0, softcap=2.0)
    expected = (weights @ value.repeat_interleave(3, 1)).transpose(1, 2)
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)
    assert not torch.allclose(output, dense(4 * query, key, value, mask), atol=1e-2)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_kernel_reads_the_blocks_as_meant() -> None:
    """The unfused form looks at every element's mask and at no block; kernels skip what the blocks leave out."""
    kernel = torch.compile(flex_attention, dynamic=False)
    size = (2, 150, 700)  # seen in part, whole and not at all
    mask, states = random_mask(*size), random_states(*size)
    mask[1, :, :, 150:550] = False
    blocks = flex.block_mask(mask)
    assert blocks.full_kv_num_blocks.any()
    assert (blocks.kv_num_blocks + blocks.full_kv_num_blocks).sum() < 2 * 2 * 6
    with torch.inference_mode():
        output = kernel(*states, block_mask=blocks, enable_gqa=True)
    torch.testing.assert_close(output.transpose(1, 2), dense(*states, mask), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", [None, torch.ones(2, 1, 7, 73, dtype=torch.bool)])
def test_takes_no_other_mask(mask: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="block mask only"):
        flex.flex(MODULE, *random_states(2, 7, 73), mask)  # type: ignore[arg-type]


def test_engines_it_goes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[torch.device] = []
    monkeypatch.setattr(engines, "set_up_compiler", prepared.append)
    for device in (CPU, CUDA):
        with pytest.raises(InputError, match="whose sizes change"):
            pick_engine("compiled", device, torch.float32, "flex")
    prepared.clear()
    assert pick_engine("auto", CUDA, torch.bfloat16, "flex") == "eager"
    assert pick_engine("graph", CUDA, torch.bfloat16, "flex") == "graph"
    assert prepared == [CUDA, CUDA], "its kernel is compiled whatever the engine"
    assert pick_engine("auto", CPU, torch.float32, "flex") == packed_or_eager(CPU, torch.float32)
    with pytest.raises(InputError, match="an attention of its own"):
        pick_engine("native", CPU, torch.float32, "flex")
    assert pick_engine("eager", CPU, torch.float32, "flex") == "eager"
    assert prepared == [CUDA, CUDA], "on a CPU nothing is compiled"
