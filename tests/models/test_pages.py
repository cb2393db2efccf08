"""Huge pages: which memory they are asked for, and that asking changes nothing where there are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.models import pages
from mtp_bench.models.pages import Span, anonymous_memory, huge_page_bytes, huge_pages, minus, whole_pages

needs_them = pytest.mark.skipif(huge_page_bytes() is None, reason="this kernel gives no huge pages")


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
def test_what_the_block_leaves_behind_is_in_huge_pages() -> None:
    old = torch.ones(8 << 20)
    with huge_pages():
        new = [torch.full((300_000,), float(index)) for index in range(40)]  # below a huge page each
    assert kib_in_huge_pages(new[20].data_ptr()) > 0
    assert all(bool((block == index).all()) for index, block in enumerate(new))
    assert bool((old == 1).all())


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


@needs_them
def test_gathering_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "COLLAPSE_SECONDS", -1.0)
    with huge_pages():
        block = torch.ones(16 << 20)
    assert kib_in_huge_pages(block.data_ptr()) == 0


def test_an_error_in_the_block_is_the_blocks() -> None:
    with pytest.raises(RuntimeError, match="mine"), huge_pages():
        raise RuntimeError("mine")
