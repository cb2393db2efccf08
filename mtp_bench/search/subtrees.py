"""Dynamic programme over subtrees: the best tree of every size (or of every width of its levels) where siblings are
bound to each other.

Best-first growth is exact as long as rules only delete subtrees. Two rules do more. *Contiguous siblings*: a child of
rank r may be taken only with all ranks before it, and where values do not fall with rank a poor child may have to be
paid for to reach a good one. *A limit of children*: of two children the less valuable one may have the richer
subtree, so a node's best children are not its most valuable ones. Both are solved by sharing the nodes below each node
among its children, one rank after the other (the budget x depth x branch programme, in arrays over all nodes of a
depth).

The same programme with a state of one number per level, in place of one number in all, knows the best tree for every
vector of level widths. Limits of level widths are then exact too, and so are costs that depend on the widths, as long
as wider levels do not cost less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mtp_bench.search.sources import CERTAIN, ROOT, Source
from mtp_bench.topology import StaticTree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Path = tuple[int, ...]
State = tuple[int, ...]

NONE = -np.inf
WINDOW = 1 << 21  # numbers held at once while siblings are combined


class Level(NamedTuple):
    """Children of all nodes of one depth. Nodes that share what lies below them (the product model) are one.

    Args:
        parent: int64 [M], ascending, index of the parent in the level above.
        rank: int64 [M].
        rate: float64 [M], P(child accepted given its parent was).
        child: int64 [M], index of the child in its own level.
        parents, children: how many there are of each.
    """

    parent: Ints
    rank: Ints
    rate: Floats
    child: Ints
    parents: int
    children: int


def levels_of(source: Source, *, max_depth: int, top_k: int | None = None) -> list[Level]:
    """Everything a source knows down to ``max_depth``, ranks from ``top_k`` on left out."""
    levels: list[Level] = []
    nodes, values = ROOT, CERTAIN
    for depth in range(1, min(max_depth, source.max_depth) + 1):
        found = source.expand(depth, nodes, values)
        if top_k is not None:
            found = found.take(np.flatnonzero(found.rank < top_k))
        if not len(found.rank):
            break
        below, first, child = np.unique(found.node, return_index=True, return_inverse=True)
        rate = found.value / values[found.parent]
        levels.append(Level(found.parent, found.rank, rate, child.reshape(-1), len(nodes), len(below)))
        nodes, values = below, found.value[first]
    return levels


@dataclass(frozen=True)
class Siblings:
    """Which sets of children a node may have.

    The children are offered rank by rank; a *slot* remembers what the rules need to know about those taken so far.

    Args:
        contiguous: a child needs all ranks before it.
        max_children: at most so many; None = any number.
    """

    contiguous: bool = False
    max_children: int | None = None

    def slots(self, ranks: int) -> int:
        """Number of slots when ``ranks`` ranks are offered."""
        if self.contiguous:
            return ranks + 1
        return 1 if self.max_children is None else min(self.max_children, ranks) + 1

    def moves(self, rank: int, slots: int) -> list[tuple[int, int]]:
        """(slot before, slot after) of taking the child of this rank, in an order that never takes it twice."""
        if self.contiguous:
            return [(rank, rank + 1)]
        return [(0, 0)] if slots == 1 else [(slot, slot + 1) for slot in reversed(range(slots - 1))]


@dataclass(frozen=True, eq=False)
class Subtrees:
    """The most that trees of every state add to the expected tokens.

    The state of a tree is ``(nodes,)``, or ``(width of level 1, width of level 2, ...)`` when ``max_widths`` is given.

    Args:
        levels: from :func:`levels_of`.
        siblings: which children may go together; with ``contiguous`` a limit of children is one of ranks: give it as
            ``top_k`` to :func:`levels_of`.
        max_nodes: largest size.
        max_widths: widest levels, one number per level.
    """

    levels: Sequence[Level]
    siblings: Siblings
    max_nodes: int
    max_widths: Sequence[int] | None = None
    _below: list[Floats] = field(init=False, repr=False)
    _histories: dict[tuple[int, int], list[list[Floats | None]]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        children = self.levels[-1].children if self.levels else 1
        below = [np.zeros((children, *self._shape(len(self.levels))))]
        for depth in reversed(range(len(self.levels))):
            below.append(self._merged(depth, below[-1]))
        object.__setattr__(self, "_below", below[::-1])

    @property
    def tokens(self) -> Floats:
        """Expected tokens per step by state: exactly so many nodes (or such widths), -inf where there is no tree.

        Nodes that are never accepted are not counted in, save those that ``contiguous`` asks for: where a smaller
        state has more, filling its tree up is better.
        """
        return 1.0 + np.asarray(self._below[0][0])

    def tree(self, state: State) -> StaticTree:
        """The best tree of exactly this state.

        Raises:
            ValueError: there is no such tree.
        """
        if self._below[0][(0, *state)] == NONE:
            raise ValueError(f"no tree of {state}")
        return StaticTree.from_paths(list(self._paths(0, 0, state, ())))

    def _shape(self, depth: int) -> State:
        """Shape of the table of what lies below nodes of this depth."""
        if self.max_widths is not None:
            return tuple(min(width, self.max_nodes) + 1 for width in self.max_widths[depth : len(self.levels)])
        most = 0
        for level in reversed(self.levels[depth:]):
            most = min(self.max_nodes, (int(level.rank.max()) + 1) * (1 + most))
        return (most + 1,)

    def _offers(self, depth: int, below: Floats, rank: int, parents: Ints | None = None) -> Floats:
        """float64 [P, ...]: what the child of this rank adds with its subtree, by the subtree's state without itself.

        A rank that is never accepted can be taken where the rules need it, and adds nothing.
        """
        level = self.levels[depth]
        shape = below.shape[1:] if self.max_widths is None else (1, *below.shape[1:])
        offers = np.full((level.parents if parents is None else len(parents), *shape), NONE)
        if self.siblings.contiguous:
            offers.reshape(len(offers), -1)[:, 0] = 0.0  # nothing below it
        chosen = np.flatnonzero(level.rank == rank)
        rows = level.parent[chosen]
        if parents is not None:
            place = np.searchsorted(parents, rows)
            kept = (place < len(parents)) & (parents[np.minimum(place, len(parents) - 1)] == rows)
            chosen, rows = chosen[kept], place[kept]
        rate = level.rate[chosen].reshape(-1, *(1 for _ in shape))
        offers[rows] = rate * (1.0 + below[level.child[chosen]].reshape(-1, *shape))
        return offers

    def _merged(self, depth: int, below: Floats) -> Floats:
        """The table of one depth from that of the next."""
        steps: Iterable[list[Floats | None]] = self._slots(depth, below)
        if not self.siblings.contiguous:
            steps = deque(steps, maxlen=1)  # the last one knows all sets of children, not only prefixes
        return reduce(np.maximum, [table for slots in steps for table in slots if table is not None])

    def _slots(self, depth: int, below: Floats, parents: Ints | None = None) -> Iterator[list[Floats | None]]:
        """The tables by slot, before the first rank and after each."""
        level = self.levels[depth]
        ranks = int(level.rank.max()) + 1
        rows = level.parents if parents is None else len(parents)
        start = np.full((rows, *self._shape(depth)), NONE)
        start.reshape(rows, -1)[:, 0] = 0.0  # no child yet
        slots: list[Floats | None] = [start] + [None] * (self.siblings.slots(ranks) - 1)
        yield slots
        for rank in range(ranks):
            offers = self._offers(depth, below, rank, parents)
            after = list(slots)
            for source, target in self.siblings.moves(rank, len(slots)):
                table = slots[source]
                if table is not None:
                    taken = _combine(table, offers)
                    known = slots[target]
                    after[target] = taken if known is None else np.maximum(known, taken)
            if self.siblings.contiguous:
                after[rank] = None  # no longer to be extended
            slots = after
            yield slots

    def _paths(self, depth: int, node: int, state: State, path: Path) -> Iterator[Path]:
        """Paths of the best tree of ``state`` below ``node``."""
        if depth == len(self.levels) or not any(state):
            return
        history = self._history(depth, node)
        rank, slot = self._best_slot(history, state)
        while rank > 0:
            rank -= 1
            before = history[rank]
            table = before[slot]
            value = history[rank + 1][slot]
            assert value is not None
            if table is not None and table[(0, *state)] == value[(0, *state)]:
                continue  # this rank was not needed
            slot, state, given = self._undo(depth, node, rank, before, slot, state, float(value[(0, *state)]))
            child = (*path, rank)
            yield child
            yield from self._paths(depth + 1, self._child(depth, node, rank), given, child)

    def _best_slot(self, history: list[list[Floats | None]], state: State) -> tuple[int, int]:
        """(ranks offered, slot) where the best value of ``state`` stands."""
        steps = range(len(history)) if self.siblings.contiguous else [len(history) - 1]
        found = [
            (float(table[(0, *state)]), step, slot)
            for step in steps
            for slot, table in enumerate(history[step])
            if table is not None
        ]
        _, step, slot = max(found, key=lambda one: (one[0], -one[1], -one[2]))
        return step, slot

    def _undo(
        self, depth: int, node: int, rank: int, before: list[Floats | None], slot: int, state: State, value: float
    ) -> tuple[int, State, State]:
        """(slot, state) before the child of ``rank`` was taken, and the state of the child's subtree."""
        offers = self._offers(depth, self._below[depth + 1], rank, np.array([node]))
        for source, target in self.siblings.moves(rank, len(before)):
            table = before[source]
            if target != slot or table is None:
                continue
            for share in np.ndindex(*offers.shape[1:]):
                rest = _without(state, share)
                if min(rest) >= 0 and table[(0, *rest)] + offers[(0, *share)] == value:
                    return source, rest, share if self.max_widths is None else share[1:]
        raise AssertionError("a value without an origin")

    def _history(self, depth: int, node: int) -> list[list[Floats | None]]:
        """Tables of one node after each rank, remembered: the trees of neighbouring sizes share most of them."""
        key = (depth, node)
        if key not in self._histories:
            self._histories[key] = list(self._slots(depth, self._below[depth + 1], np.array([node])))
        return self._histories[key]

    def _child(self, depth: int, node: int, rank: int) -> int:
        level = self.levels[depth]
        found = np.flatnonzero((level.parent == node) & (level.rank == rank))
        return int(level.child[found[0]]) if len(found) else 0  # an unknown child has nothing below it


def work(levels: Sequence[Level], max_widths: Sequence[int]) -> int:
    """Elementary operations of :class:`Subtrees` with these widths, without a limit of children."""
    total = 0
    for depth, level in enumerate(levels):
        shape = [width + 1 for width in max_widths[depth : len(levels)]]
        total += (int(level.rank.max()) + 1) * level.parents * prod(shape) * prod(shape[1:])
    return total


def _combine(table: Floats, offers: Floats) -> Floats:
    """``out[p, s] = max over t of table[p, s - 1 - t] + offers[p, t]``: the child itself and t below it are taken.

    The 1 counts on the first axis only: it is the child's own level, or the number of nodes.
    """
    if table.ndim == 2 and offers.shape[1] * table.size <= WINDOW:
        return _combine_at_once(table, offers)
    out = np.full(table.shape, NONE)
    for share in np.ndindex(*offers.shape[1:]):
        added = offers[(slice(None), *share)]
        if (added == NONE).all():
            continue
        ends = _without(table.shape[1:], share)
        if min(ends) < 1:
            continue
        target = out[(slice(None), *(slice(size - end, None) for size, end in zip(table.shape[1:], ends, strict=True)))]
        source = table[(slice(None), *(slice(0, end) for end in ends))]
        np.maximum(target, source + added.reshape(-1, *(1 for _ in ends)), out=target)
    return out


def _combine_at_once(table: Floats, offers: Floats) -> Floats:
    """The same for sizes, all shares in one array: many times as fast for few parents."""
    parents, shares = offers.shape
    padded = np.concatenate([np.full((parents, shares), NONE), table[:, :-1]], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, shares, axis=1)
    return np.asarray((windows + offers[:, None, ::-1]).max(axis=2))


def _without(state: State, share: State) -> State:
    """What is left of ``state`` after a child with ``share`` below it; the first number also pays for the child."""
    return (state[0] - share[0] - 1, *(a - b for a, b in zip(state[1:], share[1:], strict=True)))
