"""A cache in parts holds and gives what a cache in one piece does."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.decode.cache import SplitCache, TreeCache

KV_HEADS, WIDTH, LENGTH = 2, 3, 20


def cache_pair(layers: list[int], batch: int, seed: int) -> tuple[TreeCache, SplitCache]:
    """The same random cache in one piece, and in parts of so many layers."""
    generator = torch.Generator().manual_seed(seed)
    whole = TreeCache.zeros((sum(layers), 2, batch, KV_HEADS, LENGTH, WIDTH), torch.zeros(0))
    whole.data.copy_(torch.randn(whole.data.shape, generator=generator))
    return whole, SplitCache([TreeCache(part.clone()) for part in whole.data.split(layers)])


def joined(cache: TreeCache) -> torch.Tensor:
    return torch.cat([part.data for part in cache.parts])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_sequence_of_uses_leaves_the_same(data: st.DataObject) -> None:
    layers = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    batch, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 99))
    whole, split = cache_pair(layers, batch, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    assert (split.batch, split.length) == (whole.batch, whole.length) == (batch, LENGTH)

    def slots(count: int) -> torch.Tensor:
        return torch.stack([torch.randperm(LENGTH, generator=generator)[:count] for _ in range(batch)])

    for use in data.draw(st.lists(st.sampled_from(["write", "move", "sequence", "take over"]), max_size=6)):
        count = data.draw(st.integers(1, 5))
        one, two = whole, split
        if use == "move":
            source, target = slots(count), slots(count)
            one.move(source, target)
            two.move(source, target)
        elif use == "take over":
            some = torch.randperm(batch, generator=generator)[: data.draw(st.integers(1, batch))].tolist()
            scratch = [cache_pair(layers, len(some), seed + count)[kind] for kind in (0, 1)]
            one.take_over(some, scratch[0])
            two.take_over(some, scratch[1])
        else:
            where, visible = slots(count), data.draw(st.integers(1, LENGTH))
            if use == "sequence":
                index = data.draw(st.integers(0, batch - 1))
                one, two, where = one.sequence(index), two.sequence(index), where[index : index + 1]
            one.aim(where, visible)
            two.aim(where, visible)
            assert one.get_mask_sizes() == two.get_mask_sizes() == (visible, 0)
            for layer in range(sum(layers)):
                rows = torch.randn(2, one.batch, KV_HEADS, count, WIDTH, generator=generator)
                for mine, theirs in zip(one.update(*rows, layer), two.update(*rows, layer), strict=True):
                    assert torch.equal(mine, theirs)
        assert torch.equal(whole.data, joined(split))


def test_a_cache_in_one_piece_is_its_only_part() -> None:
    whole, split = cache_pair([2, 1], 1, 0)
    assert whole.parts == (whole,)
    assert [len(part.data) for part in split.parts] == [2, 1]
