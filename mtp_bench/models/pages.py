"""Huge pages for weights that every decoding step reads whole (Linux).

With pages of 4 KiB a processor spends part of a pass over the weights looking up addresses, from a tenth to half of it
on one virtual machine within hours: ``tests/benchmarks/test_huge_pages.py`` prints what huge pages gain. Memory is
allocated as ever, then the kernel is asked to gather it into huge pages, which it is free to refuse.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Values of the kernel's <linux/mman.h>; Python's ``mmap`` module advises only on mappings that it made itself.
MADV_HUGEPAGE = 14
MADV_COLLAPSE = 25  # since Linux 6.1; before, the kernel gathers them in the background
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
# Beyond this the kernel is left to do it in the background: it takes seconds for each gigabyte.
COLLAPSE_SECONDS = 20.0
# Private writable memory that no file is behind: "start-end rw-p offset device inode", and perhaps "[heap]".
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*(?:\[heap\])?$")

Span = tuple[int, int]


@contextmanager
def huge_pages() -> Iterator[None]:
    """Ask for huge pages for the memory that the block allocates and leaves behind; no error where there are none."""
    size = huge_page_bytes()
    if size is None:
        yield
        return
    before = anonymous_memory()
    yield
    _gather(whole_pages(minus(anonymous_memory(), before), size), size)


def huge_buffer(size: int) -> torch.Tensor:
    """Zeros uint8 [size] in huge pages from the first touch on, where there are any: nothing is to be gathered."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    page = huge_page_bytes()
    if page is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
    area = mmap.mmap(-1, (-(-size // page) + 1) * page, flags=flags)
    area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    start = -whole.data_ptr() % page
    return whole[start : start + size]


def huge_page_bytes() -> int | None:
    """Size of a huge page, None where there are none to be asked for."""
    try:
        allowed = "[never]" not in (SETTINGS / "enabled").read_text()
        return int((SETTINGS / "hpage_pmd_size").read_text()) if allowed and sys.platform == "linux" else None
    except (OSError, ValueError):
        return None


def anonymous_memory() -> list[Span]:
    """Address ranges of this process that hold plain memory, in order."""
    matches = map(_ANONYMOUS.match, Path("/proc/self/maps").read_text().splitlines())
    return [(int(match[1], 16), int(match[2], 16)) for match in matches if match]


def minus(spans: list[Span], others: list[Span]) -> list[Span]:
    """What of ``spans`` is in none of ``others``; both in order and without overlaps."""
    left = []
    for start, end in spans:
        for low, high in others:
            if low < end and high > start:
                if low > start:
                    left.append((start, low))
                start = max(start, high)
        if start < end:
            left.append((start, end))
    return left


def whole_pages(spans: list[Span], size: int) -> list[Span]:
    """The spans cut down to whole pages of ``size`` bytes."""
    cut = [(-(-start // size) * size, end // size * size) for start, end in spans]
    return [(start, end) for start, end in cut if start < end]


def _gather(spans: list[Span], size: int) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in spans:
        advise(start, end - start, MADV_HUGEPAGE)
    until = time.monotonic() + COLLAPSE_SECONDS
    # Page by page: one that cannot be gathered must not stop the others.
    for start, end in spans:
        for page in range(start, end, size):
            if time.monotonic() > until:
                return
            advise(page, size, MADV_COLLAPSE)
