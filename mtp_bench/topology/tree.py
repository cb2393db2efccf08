"""The tree itself: an immutable, prefix-closed set of paths and everything derived from it.

Nodes are kept in one canonical order, by length and then lexicographically, so that equal trees have equal arrays and
one id whatever order they were written in. Row 0 is the root (the token that the base model has already chosen), row i
is ``paths[i - 1]``; parents therefore always come before their children.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_json
from mtp_bench.topology.validate import MAX_DEPTH, Path, TopologyError, all_prefixes, errors_of, find_path_defects

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def canonical(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Sort by length, then lexicographically."""
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


@dataclass(frozen=True)
class StaticTree:
    """N drafted nodes below a root; N = 0 means decoding without speculation.

    Equality and hash are those of ``paths``. Arrays are read-only, so they can be shared. Use :meth:`from_paths` for
    anything a user wrote; the bare constructor takes paths that are canonical already.

    Raises:
        ValueError: the constructor got paths that are not sorted, unique and prefix-closed.
    """

    paths: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        seen: set[Path] = {()}
        previous: Path = ()
        for path in self.paths:
            if (len(path), path) <= (len(previous), previous) or path[:-1] not in seen:
                raise ValueError(f"not canonical at {path}; use StaticTree.from_paths")
            seen.add(path)
            previous = path

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], *, complete_prefixes: bool = False) -> StaticTree:
        """Build a tree from paths in any order.

        Args:
            paths: rank sequences from the root; none of them is the root itself. May be empty.
            complete_prefixes: add missing parents (lists that name only the leaves).

        Raises:
            TopologyError: with every defect of the paths.
        """
        value = [path.tolist() if isinstance(path, np.ndarray) else path for path in paths]
        defects = errors_of(find_path_defects(value, complete_prefixes=complete_prefixes, allow_empty=True))
        if defects:
            raise TopologyError(defects)
        clean = [tuple(int(rank) for rank in path) for path in value]
        return cls(canonical(all_prefixes(clean) if complete_prefixes else clean))

    @property
    def num_nodes(self) -> int:
        """N, the root excluded."""
        return len(self.paths)

    @property
    def rows(self) -> int:
        """Rows of one verification pass: N + 1."""
        return len(self.paths) + 1

    @property
    def depth(self) -> int:
        """Length of the longest path; 0 for the empty tree."""
        return len(self.paths[-1]) if self.paths else 0

    @cached_property
    def max_rank(self) -> int:
        """Largest rank of any node; -1 for the empty tree."""
        return max((path[-1] for path in self.paths), default=-1)

    @cached_property
    def _row_of(self) -> dict[Path, int]:
        return {(): 0} | {path: row for row, path in enumerate(self.paths, start=1)}

    def row_of(self, path: Sequence[int]) -> int:
        """Row of a node (0 for the empty path, the root).

        Raises:
            KeyError: no such node.
        """
        return self._row_of[tuple(path)]

    @cached_property
    def parents(self) -> Int64Array:
        """Row of each row's parent, int64 [rows]; -1 for the root."""
        return _frozen([-1] + [self._row_of[path[:-1]] for path in self.paths])

    @cached_property
    def depths(self) -> Int64Array:
        """Distance from the root, int64 [rows]; this is the offset of a row's position id."""
        return _frozen([0] + [len(path) for path in self.paths])

    @cached_property
    def ranks(self) -> Int64Array:
        """Rank of each row in its head's sorted list, int64 [rows]; -1 for the root."""
        return _frozen([-1] + [path[-1] for path in self.paths])

    @cached_property
    def path_rows(self) -> Int64Array:
        """``path_rows[r, d]`` = row of ``r``'s ancestor-or-self at depth ``d``, else -1; int64 [rows, depth + 1]."""
        table = np.full((self.rows, self.depth + 1), -1, dtype=np.int64)
        table[0, 0] = 0
        for row in range(1, self.rows):
            table[row] = table[self.parents[row]]
            table[row, self.depths[row]] = row
        table.flags.writeable = False
        return table

    @cached_property
    def ancestor_mask(self) -> BoolArray:
        """``mask[i, j]`` = row ``j`` is ``i`` or an ancestor of it, bool [rows, rows]: what row ``i`` may attend to."""
        mask = np.eye(self.rows, dtype=np.bool_)
        for row in range(1, self.rows):
            mask[row] |= mask[self.parents[row]]
        mask.flags.writeable = False
        return mask

    @cached_property
    def children_counts(self) -> Int64Array:
        """Number of children of each row, int64 [rows]."""
        return _frozen(np.bincount(self.parents[1:], minlength=self.rows))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Rows without children, ascending. The empty tree has none: its root is not a node."""
        return tuple(int(row) for row in np.flatnonzero(self.children_counts == 0) if row)

    @cached_property
    def level_widths(self) -> tuple[int, ...]:
        """Number of nodes at depth 1, 2, ..."""
        return tuple(int(width) for width in np.bincount(self.depths, minlength=1)[1:])

    @cached_property
    def expanded_widths(self) -> tuple[int, ...]:
        """Number of nodes with children at depth 1, 2, ... up to the last but one: what each pass of a draft layer that
        goes level by level runs over, the first (the root) apart."""
        inner = self.depths[self.children_counts > 0]
        return tuple(int(width) for width in np.bincount(inner, minlength=1)[1:])

    @cached_property
    def uniform_levels(self) -> bool:
        """Whether all nodes of a level have the same number of children (some engines can express nothing else)."""
        return all(len(set(self.children_counts[self.depths == level])) == 1 for level in range(self.depth + 1))

    @property
    def is_chain(self) -> bool:
        """Whether it is a plain draft of the best token at each depth (the empty tree counts, with length 0)."""
        return self.max_rank <= 0

    @property
    def body(self) -> dict[str, Any]:
        """What the id hashes: the verified paths and nothing that follows from them."""
        return {"kind": "static_tree", "paths": [list(path) for path in self.paths]}

    @cached_property
    def id(self) -> str:
        """``sha256:`` + SHA-256 of the JSON of :attr:`body` (sorted keys, no spaces); independent of input order."""
        return f"sha256:{sha256_json(self.body)}"

    def clip(self, *, max_depth: int | None = None, max_rank: int | None = None) -> StaticTree:
        """The tree without nodes deeper than ``max_depth`` or below a rank above ``max_rank``."""
        return StaticTree(
            tuple(
                path
                for path in self.paths
                if (max_depth is None or len(path) <= max_depth) and (max_rank is None or max(path) <= max_rank)
            )
        )

    def __repr__(self) -> str:
        return f"StaticTree(num_nodes={self.num_nodes}, depth={self.depth}, id={self.id[7:15]})"


def chain(num_tokens: int) -> StaticTree:
    """The draft's best token at each of ``num_tokens`` depths; 0 is no speculation.

    Raises:
        InputError: negative, or longer than any draft.
    """
    if not 0 <= num_tokens <= MAX_DEPTH:
        raise InputError(f"a chain of {num_tokens} tokens", fix=f"choose a length from 0 to {MAX_DEPTH}")
    return StaticTree(tuple((0,) * length for length in range(1, num_tokens + 1)))


def _frozen(values: npt.ArrayLike) -> Int64Array:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array
