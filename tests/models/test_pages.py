"""Huge pages: which memory they are asked for, and that asking changes nothing where there are none."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import random_eagle, tiny_base

from mtp_bench.decode.drafters import engine_heads
from mtp_bench.models import pages
from mtp_bench.models.fused import packed_model
from mtp_bench.models.packed import can_pack
from mtp_bench.models.pages import Span, anonymous_memory, huge_buffer, huge_page_bytes, huge_pages, minus, whole_pages

needs_them = pytest.mark.skipif(huge_page_bytes() is None, reason="this kernel gives no huge pages")


def kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    return list(zip(edges[::2], edges[1::2], strict=False))


def points(some: list[Span]) -> set[int]:
    return {point for start, end in some for point in range(start, end)}


@given(spans(), spans())
def test_minus(some: list[Span], others: list[Span]) -> None:
    left = minus(some, others)
    assert points(left) == points(some) - points(others)
    assert left == sorted(left)
    assert all(start < end for start, end in left)


@given(spans(), st.integers(1, 9))
def test_whole_pages(some: list[Span], size: int) -> None:
    cut = whole_pages(some, size)
    expected = {page for page in range(70) if points(some) >= set(range(page * size, (page + 1) * size))}
    # Neighbouring spans are not joined, so a page across two of them is left out.
    assert {start // size + k for start, end in cut for k in range((end - start) // size)} <= expected
    assert all(start % size == end % size == 0 for start, end in cut)


def test_own_memory_is_found() -> None:
    block = torch.ones(1 << 20)
    address = block.data_ptr()
    assert any(start <= address and address + block.nbytes <= end for start, end in anonymous_memory())


@needs_them
@pytest.mark.skipif(kernel() < (6, 1), reason="this kernel gathers pages in the background only")
def test_what_the_block_leaves_behind_is_in_huge_pages() -> None:
    old = torch.ones(8 << 20)
    with huge_pages():
        # Larger than what the C library takes from memory that was freed before, which is not new.
        new = [torch.full((9 << 20,), float(index)) for index in range(3)]
    assert kib_in_huge_pages(new[1].data_ptr() + (18 << 20)) > 0  # its middle: its ends share pages with others
    assert all(bool((block == index).all()) for index, block in enumerate(new))
    assert bool((old == 1).all())


@needs_them
def test_a_buffer_is_huge_pages_from_the_first_touch_on() -> None:
    buffer = huge_buffer(5 << 20)
    assert buffer.data_ptr() % (2 << 20) == 0
    assert len(buffer) == 5 << 20
    assert not bool(buffer.any())
    buffer.fill_(7)
    assert kib_in_huge_pages(buffer.data_ptr()) >= 4096


def kib_in_huge_pages(address: int) -> int:
    """Of the mapping that holds this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            inside = int(head[1], 16) <= address < int(head[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    return 0


@pytest.mark.parametrize("setting", ["always madvise [never]", None])
def test_without_them_nothing_is_asked(setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
        (tmp_path / "hpage_pmd_size").write_text("2097152")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    monkeypatch.setattr(pages, "_gather", lambda *args: pytest.fail("asked"))
    assert huge_page_bytes() is None
    with huge_pages():
        pass
    assert len(huge_buffer(1000)) == 1000


@pytest.mark.parametrize("seconds", [20.0, -1.0])
def test_gathering_ends_when_its_time_is_up(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def madvise(start: int, length: int, advice: int) -> None:
        asked.append((start, length, advice))

    monkeypatch.setattr(pages.ctypes, "CDLL", lambda name: SimpleNamespace(madvise=madvise))
    monkeypatch.setattr(pages, "COLLAPSE_SECONDS", seconds)
    pages._gather([(0, 4), (8, 10)], 2)
    assert asked[:2] == [(0, 4, pages.MADV_HUGEPAGE), (8, 2, pages.MADV_HUGEPAGE)]
    pages_asked = [(start, 2, pages.MADV_COLLAPSE) for start in (0, 2, 8)]
    assert asked[2:] == (pages_asked if seconds > 0 else [])


@needs_them
@pytest.mark.skipif(not can_pack(torch.float32), reason="this torch or CPU has no packed fp32 products")
def test_packed_models_and_heads_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Span]] = []
    monkeypatch.setattr(pages, "_gather", lambda spans, size: asked.append(spans))
    base = tiny_base()
    packed_model(base.model)
    assert len(asked) == 1
    engine_heads(random_eagle(base), "packed")
    assert len(asked) == 2


def test_an_error_in_the_block_is_the_blocks() -> None:
    with pytest.raises(RuntimeError, match="mine"), huge_pages():
        raise RuntimeError("mine")
