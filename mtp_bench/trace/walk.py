"""How many drafted tokens a tree would have had accepted at every position: one trie walk, all positions at once.

The tree becomes a table "state x rank -> next state". Leaving the tree leads to a state that remembers the depth
reached and never changes, so after as many look-ups as the tree is deep the state tells the accepted length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.topology import DynamicTree, StaticTree, Topology
from mtp_bench.trace.ranks import RankTrace

_BLOCK = 1 << 15  # rows at a time, so that the intermediate arrays stay in the CPU's cache


def accepted_lengths(trace: RankTrace, tree: Topology) -> npt.NDArray[np.int8]:
    """int8 [T]: for each row, the length of the longest prefix of ``ranks[row]`` that is a path of ``tree``.

    Nodes at ranks or depths that the trace did not record are never accepted.

    Raises:
        InputError: a dynamic tree whose top_k or depth was not recorded.
    """
    if isinstance(tree, DynamicTree):
        return _accepted_dynamic(trace, tree)
    accepted = np.zeros(trace.num_positions, dtype=np.int8)
    levels = min(tree.depth, trace.depth)
    if levels == 0:
        return accepted
    miss_above = min(tree.max_rank + 1, trace.top_k)
    table, depth_of = _transitions(tree, miss_above)
    for start in range(0, trace.num_positions, _BLOCK):
        block = np.minimum(trace.ranks[start : start + _BLOCK, :levels].T, miss_above) + 1
        state = np.take(table, block[0].astype(np.intp))  # the root is state 0
        for column in block[1:]:
            state += column
            state = np.take(table, state)
        accepted[start : start + _BLOCK] = np.take(depth_of, state // (miss_above + 2))
    return accepted


def _accepted_dynamic(trace: RankTrace, tree: DynamicTree) -> npt.NDArray[np.int8]:
    """A node of the true path is verified when its place in the pool is among the first; parents come first."""
    pool = trace.pools.get(tree.top_k)
    if pool is None or tree.depth > trace.depth:
        known = f"top_k {', '.join(map(str, trace.pools))} to depth {trace.depth}" if trace.pools else "none"
        raise InputError(
            f"no trace of {tree}: dynamic trees recorded: {known}",
            where="trace",
            fix=f"profile an EAGLE draft with --dynamic-top-k {tree.top_k} --depth {tree.depth}",
        )
    places = pool[:, tree.depth - 1, : tree.depth]
    held = (places >= 0) & (places < tree.num_nodes)
    return np.asarray(np.logical_and.accumulate(held, axis=1).sum(axis=1), dtype=np.int8)


def _transitions(tree: StaticTree, miss_above: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int8]]:
    """The flat table of next states (times the table's width, ready for adding a column) and each state's depth.

    Columns: 0 is a miss, rank + 1 for ranks below ``miss_above``, the last one for all ranks from there on. States:
    the tree's rows, then one final state per depth.
    """
    width = miss_above + 2
    depths: npt.NDArray[Any] = np.asarray(tree.depths)
    final = tree.rows + np.arange(tree.depth + 1)
    table = np.empty((tree.rows + tree.depth + 1, width), dtype=np.intp)
    table[: tree.rows] = final[depths][:, None]
    table[tree.rows :] = final[:, None]
    nodes = 1 + np.flatnonzero(np.asarray(tree.ranks)[1:] < miss_above)
    table[np.asarray(tree.parents)[nodes], np.asarray(tree.ranks)[nodes] + 1] = nodes
    return (table * width).ravel(), np.concatenate([depths, np.arange(tree.depth + 1)]).astype(np.int8)
