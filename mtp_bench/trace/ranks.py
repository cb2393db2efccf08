"""The rank trace: at which place the draft had the true token, for every output position and depth.

Under lossless verification the emitted text does not depend on the tree, so one recording serves every tree:
``ranks[t, d - 1]`` is the rank of output token ``t + d`` in the draft of a step whose root is output token ``t``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_bytes
from mtp_bench.trace.npz import npz_bytes, read_npz, write_npz

SCHEMA_NAME = "mtp-bench/trace"
SCHEMA_VERSION = (1, 1)
WITHOUT_POOLS = (1, 0)
MISS = -1
POOL = "pool_top_k_"
_MAX_TOP_K = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, eq=False)
class RankTrace:
    """Ranks of the true tokens, split by prompt. All arrays are read-only.

    Args:
        ranks: int16 [T, D]; -1 where the true token is not among the ``top_k`` drafted, or lies past the end.
        prompt_offsets: int64 [P + 1], from 0 to T; prompt p owns rows ``prompt_offsets[p]:prompt_offsets[p + 1]``.
            Its row 0 is the root that prefill gives, so L rows emit L - 1 tokens in steps.
        top_k: ranks below this were looked for.
        prompt_ids: P names.
        categories: P categories.
        pools: what dynamic trees need, by their ``top_k``: int16 [T, D, D], ``pools[k][t, d - 1, j - 1]`` is the place
            of output token ``t + j``, on the true path, among the nodes of a pool of ``d`` levels sorted by descending
            path probability; -1 where the pool lacks it. A tree that keeps N nodes holds just the places below N.
        weights: float64 [P], how much each prompt counts in search and replay; None = all alike. They belong to a
            question asked of the trace (:meth:`weighted`), not to the recording: files do not hold them.

    Raises:
        InputError: a shape, dtype or range does not fit, with every fault found.
    """

    ranks: npt.NDArray[np.int16]
    prompt_offsets: npt.NDArray[np.int64]
    top_k: int
    prompt_ids: tuple[str, ...]
    categories: tuple[str, ...]
    pools: Mapping[int, npt.NDArray[np.int16]] = field(default_factory=dict)
    weights: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        faults = _faults(self)
        if faults:
            raise InputError("not a rank trace: " + "; ".join(faults), where="trace", fix="record the run again")
        # Copies, so that no one can change the trace through an array kept elsewhere.
        ranks = np.array(self.ranks, dtype=np.int16, order="C")
        offsets = np.array(self.prompt_offsets, dtype=np.int64)
        ranks.setflags(write=False)
        offsets.setflags(write=False)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "prompt_offsets", offsets)
        if self.weights is not None:
            weights = np.array(self.weights, dtype=np.float64)
            weights.setflags(write=False)
            object.__setattr__(self, "weights", weights)
        pools = {top_k: np.array(self.pools[top_k], dtype=np.int16, order="C") for top_k in sorted(self.pools)}
        for pool in pools.values():
            pool.setflags(write=False)
        object.__setattr__(self, "pools", MappingProxyType(pools))

    @property
    def num_positions(self) -> int:
        """T, rows over all prompts."""
        return int(self.ranks.shape[0])

    @property
    def depth(self) -> int:
        """D, the deepest draft recorded."""
        return int(self.ranks.shape[1])

    @property
    def num_prompts(self) -> int:
        """P."""
        return len(self.prompt_offsets) - 1

    @cached_property
    def prompt_lengths(self) -> npt.NDArray[np.int64]:
        """int64 [P]: rows of each prompt."""
        return np.diff(self.prompt_offsets)

    @cached_property
    def prompt_of_row(self) -> npt.NDArray[np.int64]:
        """int64 [T]: the prompt each row belongs to."""
        return np.repeat(np.arange(self.num_prompts), self.prompt_lengths)

    @cached_property
    def tokens_left(self) -> npt.NDArray[np.int64]:
        """int64 [T]: output tokens after each row's root, 0 for the last row of a prompt."""
        return np.repeat(self.prompt_offsets[1:], self.prompt_lengths) - 1 - np.arange(self.num_positions)

    @property
    def num_starts(self) -> int:
        """Rows at which a step could start: all but the last row of each prompt."""
        return int(np.maximum(self.prompt_lengths - 1, 0).sum())

    @cached_property
    def row_weights(self) -> npt.NDArray[np.float64]:
        """float64 [T]: the weight of each row's prompt."""
        weights = np.ones(self.num_prompts) if self.weights is None else self.weights
        return np.repeat(weights, self.prompt_lengths)

    @property
    def start_weight(self) -> float:
        """:attr:`num_starts`, each counted by its weight."""
        if self.weights is None:
            return float(self.num_starts)
        return float(self.weights @ np.maximum(self.prompt_lengths - 1, 0))

    def weighted(self, by_category: Mapping[str, float]) -> RankTrace:
        """The same trace with every prompt counted as often as its category's weight says; 1 where none is given.

        Raises:
            InputError: an unknown category, a negative weight, or nothing left to count.
        """
        known = sorted(set(self.categories))
        unknown = sorted(set(by_category) - set(known))
        if unknown:
            raise InputError(
                f"no prompt is of category {unknown[0]!r}", where="--weight", fix=f"there are: {', '.join(known)}"
            )
        weights = np.array([by_category.get(name, 1.0) for name in self.categories], dtype=np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise InputError("a weight is negative or no number", where="--weight", fix="give numbers of at least 0")
        found = replace(self, weights=weights)
        if found.start_weight <= 0:
            raise InputError(
                "no step counts with these weights", where="--weight", fix="give some category more than 0"
            )
        return found

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the saved file, for provenance."""
        return sha256_bytes(npz_bytes(self._arrays()))

    def select(self, prompt_indices: Sequence[int] | npt.NDArray[np.int64]) -> RankTrace:
        """The trace of the given prompts, in the given order.

        Raises:
            InputError: an index outside 0..P-1.
        """
        chosen = [int(index) for index in prompt_indices]
        if any(not 0 <= index < self.num_prompts for index in chosen):
            raise InputError(f"prompt index outside 0..{self.num_prompts - 1}", where="trace")
        spans = [slice(int(self.prompt_offsets[p]), int(self.prompt_offsets[p + 1])) for p in chosen]

        def rows(values: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
            return np.concatenate([values[span] for span in spans] or [values[:0]])

        return RankTrace(
            ranks=rows(self.ranks),
            pools={top_k: rows(pool) for top_k, pool in self.pools.items()},
            prompt_offsets=np.concatenate([[0], np.cumsum(self.prompt_lengths[chosen])]).astype(np.int64),
            top_k=self.top_k,
            prompt_ids=tuple(self.prompt_ids[p] for p in chosen),
            categories=tuple(self.categories[p] for p in chosen),
            weights=None if self.weights is None else self.weights[chosen],
        )

    def split_halves(self, seed: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Prompt indices (train, held-out): disjoint, complete, each category halved, sizes differing by at most 1."""
        generator = np.random.default_rng(seed)
        categories = np.array(self.categories, dtype=np.str_)
        # Dealing one long shuffled-within-category list alternately halves every category, odd ones in turn.
        dealt = [generator.permutation(np.flatnonzero(categories == name)) for name in np.unique(categories)]
        order = np.concatenate(dealt) if dealt else np.zeros(0, dtype=np.int64)
        return np.sort(order[0::2]).astype(np.int64), np.sort(order[1::2]).astype(np.int64)

    def save(self, path: Path | str) -> None:
        """Write ``trace.npz`` atomically; equal traces give equal bytes."""
        write_npz(Path(path), self._arrays())

    @classmethod
    def load(cls, path: Path | str) -> RankTrace:
        """Read a ``trace.npz``; one with only ``ranks`` and ``prompt_offsets`` will do.

        Missing names count up, missing categories are "all", a missing ``top_k`` is the largest rank plus one.

        Raises:
            InputError: missing, damaged, written by a newer version, or holding impossible values.
        """
        arrays = read_npz(Path(path))
        _check_schema(arrays, path)
        for name in ("ranks", "prompt_offsets"):
            if name not in arrays:
                raise InputError(f"no array '{name}'", where=str(path), fix="give a trace.npz of a profile run")
        ranks, offsets = arrays["ranks"], arrays["prompt_offsets"]
        prompts = max(offsets.size - 1, 0)
        largest = int(ranks.max()) if ranks.size and np.issubdtype(ranks.dtype, np.integer) else MISS
        try:
            return cls(
                ranks=ranks,
                prompt_offsets=offsets,
                top_k=int(arrays["top_k"]) if "top_k" in arrays else max(largest + 1, 1),
                prompt_ids=_names(arrays, "prompt_ids", [f"prompt-{p}" for p in range(prompts)]),
                categories=_names(arrays, "categories", ["all"] * prompts),
                pools={int(name[len(POOL) :]): arrays[name] for name in arrays if name.startswith(POOL)},
            )
        except InputError as error:
            raise InputError(error.what, where=str(path), fix=error.fix) from error
        except (TypeError, ValueError) as error:
            raise InputError(f"damaged: {error}", where=str(path), fix="record the run again") from error

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        version = ".".join(map(str, SCHEMA_VERSION if self.pools else WITHOUT_POOLS))
        return {
            "schema": np.array(f"{SCHEMA_NAME} {version}"),
            "ranks": self.ranks,
            "prompt_offsets": self.prompt_offsets,
            "top_k": np.array(self.top_k, dtype=np.int64),
            "prompt_ids": np.array(self.prompt_ids, dtype=np.str_),
            "categories": np.array(self.categories, dtype=np.str_),
            **{f"{POOL}{top_k}": pool for top_k, pool in self.pools.items()},
        }


def merge_traces(traces: Sequence[RankTrace], *, allow_duplicates: bool = False) -> RankTrace:
    """The trace of all prompts, shard after shard.

    Raises:
        InputError: no trace, different depth or top_k, or a prompt in two shards (unless ``allow_duplicates``).
    """
    if not traces:
        raise InputError("nothing to merge", where="trace")
    recorded: dict[str, set[Any]] = {
        "depth": {t.depth for t in traces},
        "top_k": {t.top_k for t in traces},
        "top_k of dynamic trees": {tuple(t.pools) for t in traces},
    }
    for name, values in recorded.items():
        if len(values) > 1:
            raise InputError(f"shards differ in {name}: {sorted(values)}", fix="merge shards of one profile")
    ids = tuple(name for trace in traces for name in trace.prompt_ids)
    doubles = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    if doubles and not allow_duplicates:
        raise InputError(f"prompts in more than one shard: {', '.join(doubles[:5])}", fix="merge each shard once")
    lengths = np.concatenate([trace.prompt_lengths for trace in traces])
    return RankTrace(
        ranks=np.concatenate([trace.ranks for trace in traces]),
        prompt_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        top_k=traces[0].top_k,
        prompt_ids=ids,
        categories=tuple(name for trace in traces for name in trace.categories),
        pools={top_k: np.concatenate([trace.pools[top_k] for trace in traces]) for top_k in traces[0].pools},
    )


def _faults(trace: RankTrace) -> list[str]:
    """Everything that keeps the fields from being a trace."""
    ranks, offsets = np.asarray(trace.ranks), np.asarray(trace.prompt_offsets)
    faults = []
    if ranks.ndim != 2 or not np.issubdtype(ranks.dtype, np.integer) or (ranks.ndim == 2 and ranks.shape[1] < 1):
        faults.append(f"ranks must be integers [T, D] with D >= 1, got {ranks.dtype} {list(ranks.shape)}")
    if offsets.ndim != 1 or not np.issubdtype(offsets.dtype, np.integer) or offsets.size < 1:
        faults.append(f"prompt_offsets must be integers [P + 1], got {offsets.dtype} {list(offsets.shape)}")
    if not 1 <= trace.top_k <= _MAX_TOP_K:
        faults.append(f"top_k must be 1..{_MAX_TOP_K}, got {trace.top_k}")
    if faults:
        return faults
    if offsets[0] != 0 or offsets[-1] != len(ranks) or (np.diff(offsets) < 0).any():
        return [f"prompt_offsets must rise from 0 to {len(ranks)}"]
    for name, values in (("prompt_ids", trace.prompt_ids), ("categories", trace.categories)):
        if len(values) != len(offsets) - 1:
            faults.append(f"{len(values)} {name} for {len(offsets) - 1} prompts")
    if ranks.size and (ranks.min() < MISS or ranks.max() >= trace.top_k):
        faults.append(f"ranks must lie in -1..{trace.top_k - 1}, found {ranks.min()}..{ranks.max()}")
    for top_k, pool in trace.pools.items():
        shape = (*ranks.shape, ranks.shape[1])
        if pool.shape != shape or not np.issubdtype(pool.dtype, np.integer):
            faults.append(f"the pool of top_k {top_k} must be integers {list(shape)}, got {list(pool.shape)}")
        elif pool.size and pool.min() < MISS:
            faults.append(f"places in the pool of top_k {top_k} must be -1 or more, found {pool.min()}")
    if (ranks[_past_end(offsets, ranks.shape[1])] != MISS).any():
        faults.append("a rank past the end of a text must be -1")
    return faults


def _past_end(offsets: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.bool_]:
    """bool [T, D]: no output token there, because the text ends before it."""
    left = np.repeat(offsets[1:], np.diff(offsets)) - 1 - np.arange(offsets[-1])
    return np.asarray(left[:, None] < np.arange(1, depth + 1)[None, :])


def _check_schema(arrays: dict[str, npt.NDArray[Any]], path: Path | str) -> None:
    if "schema" not in arrays:
        return  # a bare trace
    text = str(arrays["schema"])
    name, _, version = text.partition(" ")
    try:
        numbers = tuple(int(part) for part in version.split("."))
    except ValueError:
        numbers = ()
    if name != SCHEMA_NAME or not numbers:
        raise InputError(f"schema is '{text}', not '{SCHEMA_NAME} x.y'", where=str(path), fix="give a trace.npz")
    if numbers > SCHEMA_VERSION:
        raise InputError(f"written by a newer version ({text})", where=str(path), fix="upgrade mtp-bench")


def _names(arrays: dict[str, npt.NDArray[Any]], key: str, default: list[str]) -> tuple[str, ...]:
    return tuple(str(name) for name in arrays[key].tolist()) if key in arrays else tuple(default)
