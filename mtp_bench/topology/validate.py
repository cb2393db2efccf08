"""All defects of a list of paths at once, each with its JSON pointer.

A tree is a prefix-closed set of paths. Someone who wrote one by hand wants the whole list of what is wrong, not the
first exception, so nothing here stops early: every path is looked at, then how the paths fit together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from mtp_bench.errors import InputError

Path = tuple[int, ...]

# Rank traces hold ranks as int16, so a larger one could never be measured.
MAX_RANK = 32_767
# Far beyond any draft; keeps the arrays of a damaged or hostile file from filling the memory.
MAX_DEPTH = 256


@dataclass(frozen=True, slots=True)
class Defect:
    """One finding. ``pointer`` is an RFC 6901 JSON pointer into the file ("" is the whole document)."""

    pointer: str
    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.pointer or '(whole document)'}  {self.message}"

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return asdict(self)


class TopologyError(InputError):
    """A topology that cannot be used. ``defects`` holds every finding; the message lists every one."""

    def __init__(self, defects: Sequence[Defect], *, where: str = "") -> None:
        self.defects = tuple(defects)
        count = sum(defect.severity == "error" for defect in self.defects)
        lines = [f"the topology has {count} error{'' if count == 1 else 's'}"]
        lines += [f"  {defect.severity}: {defect}" for defect in self.defects]
        fixes = dict.fromkeys(defect.fix for defect in self.defects if defect.fix)
        super().__init__("\n".join(lines), where=where, fix="\n  -> ".join(fixes))


def errors_of(defects: Sequence[Defect]) -> list[Defect]:
    """Only the findings that make a tree unusable."""
    return [defect for defect in defects if defect.severity == "error"]


def find_path_defects(
    value: object,
    *,
    pointer: str = "",
    top_k: int | None = None,
    heads: int | None = None,
    complete_prefixes: bool = False,
    allow_empty: bool = False,
) -> list[Defect]:
    """List what is wrong with ``value`` as a list of paths; an empty result means a usable tree.

    Args:
        value: what the JSON file holds (anything).
        pointer: JSON pointer of ``value`` in its file.
        top_k: number of ranks that the heads offer; a rank at or above it can't be drafted.
        heads: number of heads; a deeper path can't be drafted.
        complete_prefixes: missing parents will be added, so they are no defect.
        allow_empty: an empty list (no speculation) is no defect.
    """
    defect = _shape_defect(value, pointer, allow_empty)
    if defect is not None:
        return [defect]
    assert isinstance(value, (list, tuple))
    found: list[tuple[int, Defect]] = []
    good: list[tuple[int, Path]] = []
    for index, raw in enumerate(value):
        wrong = _single_path_defects(raw, f"{pointer}/{index}")
        found += [(index, defect) for defect in wrong]
        if not wrong:
            good.append((index, tuple(int(rank) for rank in raw)))
    found += _duplicates(good, pointer)
    if not complete_prefixes:
        found += _missing_parents(good, pointer)
    found += _gaps(good, pointer, complete_prefixes)
    found += _beyond_limits(good, pointer, top_k, heads)
    return [defect for _, defect in sorted(found, key=lambda item: (item[0], item[1].severity))]


def all_prefixes(paths: Sequence[Path]) -> set[Path]:
    """Every non-empty prefix of every path, the paths included."""
    return {path[:length] for path in paths for length in range(1, len(path) + 1)}


def _shape_defect(value: object, pointer: str, allow_empty: bool) -> Defect | None:
    if isinstance(value, str):
        fix = "write a JSON list such as [[0], [1], [0, 0]], or convert it: mtp-bench import FILE --format vllm"
        return Defect(pointer, "string", "a string instead of a list of paths", fix=fix)
    if not isinstance(value, (list, tuple)):
        fix = "write a JSON list such as [[0], [1], [0, 0]]"
        return Defect(pointer, "not-a-list", f"{_kind(value)} instead of a list of paths", fix=fix)
    if not value and not allow_empty:
        fix = "add at least the path [0]; to decode without speculation use --topology none"
        return Defect(pointer, "empty", "the list of paths is empty", fix=fix)
    return None


def _single_path_defects(raw: object, pointer: str) -> list[Defect]:
    if not isinstance(raw, (list, tuple)):
        fix = "write every path as a list of ranks; mtp-bench import also reads a branching vector such as [3, 2, 1]"
        return [Defect(pointer, "path-not-a-list", f"{_show(raw)} is not a path (a list of ranks)", fix=fix)]
    if not raw:
        return [Defect(pointer, "empty-path", "an empty path: the root is not a node", fix="remove the empty path")]
    if len(raw) > MAX_DEPTH:
        return [Defect(pointer, "too-deep", f"a path of {len(raw)} ranks; at most {MAX_DEPTH} are possible")]
    return [
        Defect(f"{pointer}/{place}", "bad-rank", complaint, fix="ranks are integers counted from 0")
        for place, rank in enumerate(raw)
        if (complaint := _rank_complaint(rank))
    ]


def _rank_complaint(rank: object) -> str:
    if isinstance(rank, (bool, np.bool_)):
        return f"rank {_show(bool(rank))} is a truth value, not an integer"
    if not isinstance(rank, (int, np.integer)):
        return f"rank {_show(rank)} is {_kind(rank)}, not an integer"
    # str() of an integer of thousands of digits is refused by Python itself, so a huge number is not repeated.
    if rank < 0:
        return f"rank {rank if rank >= -MAX_RANK else '(huge)'} is negative"
    return f"rank is larger than {MAX_RANK}" if rank > MAX_RANK else ""


def _duplicates(entries: list[tuple[int, Path]], pointer: str) -> list[tuple[int, Defect]]:
    first: dict[Path, int] = {}
    found = []
    for index, path in entries:
        if path in first:
            message = f"{list(path)} is a duplicate of {pointer}/{first[path]}"
            found.append((index, Defect(f"{pointer}/{index}", "duplicate", message, fix="remove the duplicates")))
        first.setdefault(path, index)
    return found


def _missing_parents(entries: list[tuple[int, Path]], pointer: str) -> list[tuple[int, Defect]]:
    present = {path for _, path in entries}
    found = []
    for index, path in entries:
        if len(path) > 1 and path[:-1] not in present:
            absent = [list(path[:length]) for length in range(1, len(path)) if path[:length] not in present]
            names = ", ".join(map(str, absent))
            message = f"{list(path)} hangs in the air: {names} {'is' if len(absent) == 1 else 'are'} missing"
            fix = "add the missing parents, or let --complete-prefixes do it"
            found.append((index, Defect(f"{pointer}/{index}", "missing-parent", message, fix=fix)))
    return found


def _gaps(entries: list[tuple[int, Path]], pointer: str, complete_prefixes: bool) -> list[tuple[int, Defect]]:
    """Legal where children are the deterministic top-k, but some engines and sampled drafts need ranks from 0 on."""
    index_of: dict[Path, int] = {}
    for index, path in entries:
        index_of.setdefault(path, index)
    if complete_prefixes:
        for index, path in entries:
            for length in range(1, len(path)):
                index_of.setdefault(path[:length], index)
    found = []
    previous: Path = ()
    for path in sorted(index_of, key=lambda path: (len(path), path)):
        siblings = len(previous) == len(path) and previous[:-1] == path[:-1]
        expected = previous[-1] + 1 if siblings else 0
        if path[-1] > expected:
            last = path[-1] - 1
            missing = f"rank {last} is" if last == expected else f"ranks {expected} to {last} are"
            message = f"gap before {list(path)}: {missing} not among its siblings"
            index = index_of[path]
            found.append((index, Defect(f"{pointer}/{index}", "sibling-gap", message, "warning")))
        previous = path
    return found


def _beyond_limits(
    entries: list[tuple[int, Path]], pointer: str, top_k: int | None, heads: int | None
) -> list[tuple[int, Defect]]:
    found = []
    for index, path in entries:
        if heads is not None and len(path) > heads:
            message = f"{list(path)} has depth {len(path)} but there are {heads} heads"
            fix = f"use more heads, or clip the tree: mtp-bench import FILE --clip-depth {heads}"
            found.append((index, Defect(f"{pointer}/{index}", "deeper-than-heads", message, fix=fix)))
        for place, rank in enumerate(path):
            if top_k is not None and rank >= top_k:
                message = f"rank {rank} of {list(path)} is beyond the top-{top_k} of the heads (ranks 0 to {top_k - 1})"
                fix = f"use heads with more candidates, or clip: mtp-bench import FILE --clip-rank {top_k - 1}"
                found.append((index, Defect(f"{pointer}/{index}/{place}", "rank-beyond-top-k", message, fix=fix)))
    return found


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", float: "a float"}
    names |= {int: "an integer", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def _show(value: object) -> str:
    text = {True: "true", False: "false", None: "null"}[value] if isinstance(value, (bool, type(None))) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
