"""What adaptive trees could gain at most: one budget of nodes shared by all requests of a batch.

With B requests and one budget of nodes, the most valuable nodes of the whole forest are optimal (one global heap). If
every request has the same values, that heap gives every request the same tree and sharing gains nothing; it gains only
by what is known of the single request. Each bound here assumes that something is known, and is named for it:

* ``category``: the category of each request. Attainable, by a server that knows it.
* ``request``: each request's own rates, in hindsight. Bounds everything that keeps one tree per request.
* ``division``: how many nodes each request needs in this very step, the order of its nodes being the static tree's
  (``pool division``: the order of its own dynamic pool). Bounds every rule that divides a budget by the draft's
  confidence but keeps that order.
* ``nodes``: which drafted nodes are right. Bounds everything this draft can do.

The draft's own confidence, by which a real engine would share, is not in a trace (pools hold places, not
probabilities), so what a given confidence rule gains cannot be told from it; ``division`` says what it cannot exceed.

All are averages over all positions (a replay starts at harder ones), and limits of many requests: sharing among fewer
gains less, and at batch 1 nothing, so they bound every batch size. Cost depends on the mean number of nodes per
request, a whole number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.by_category.categories import split
from mtp_bench.search.exact.growth import Growth, grow_all
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import DynamicTree
from mtp_bench.trace import RankTrace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STATIC = "static"
ASSUMES = {
    STATIC: "nothing: the same tree for every request (attained)",
    "category": "the category of each request is known; values counted on these very prompts",
    "request": "each request's own rates are known in hindsight; one tree per request",
    "division": "the nodes that each request needs in each step are known; order of the static tree",
    "nodes": "the drafted nodes that are right are known",
}
POOL_STATIC = "nothing: as many nodes of its own pool for every request (attained)"
POOL_DIVISION = "the nodes that each request needs in each step are known; order of its own pool"


@dataclass(frozen=True, eq=False)
class Gain:
    """Most tokens per step for each mean number of nodes, under one assumption.

    Attributes:
        name: of the assumption, see the module.
        depth: deepest draft.
        top_k: of the pools; None for other trees.
        tokens: float64 [max_nodes + 1]: tokens per step at 0, 1, ... nodes per request on average.
    """

    name: str
    depth: int
    top_k: int | None
    tokens: Floats

    @property
    def assumes(self) -> str:
        """What must be known for it."""
        if self.top_k is None:
            return ASSUMES[self.name]
        return POOL_STATIC if self.name == "pool static" else POOL_DIVISION


@dataclass(frozen=True)
class Bound:
    """The best speed under one assumption at one batch size and context.

    Attributes:
        num_nodes: nodes per request on average.
        gain: its speed over that of the same kind of tree with nothing known.
    """

    name: str
    assumes: str
    num_nodes: int
    depth: int
    top_k: int | None
    tokens_per_step: float
    step_ms: float
    speedup: float
    gain: float

    def document(self) -> dict[str, Any]:
        """For the ``--json`` documents."""
        return dict(self.__dict__)


def gains(trace: RankTrace, *, max_nodes: int, max_depth: int | None = None) -> list[Gain]:
    """Every bound that the trace allows, for every depth; no request takes more than ``max_nodes`` nodes."""
    deepest = trace.depth if max_depth is None else min(max_depth, trace.depth)
    found: list[Gain] = []
    whole = _grown({"": trace}, max_nodes, deepest)
    categories = _grown(split(trace), max_nodes, deepest)
    requests = _grown(split(trace, [str(p) for p in range(trace.num_prompts)]), max_nodes, deepest)
    for depth in range(1, deepest + 1):
        found.append(Gain(STATIC, depth, None, _pooled(whole, depth, max_nodes)))
        if len(categories) > 1:
            found.append(Gain("category", depth, None, _pooled(categories, depth, max_nodes)))
        if trace.num_prompts > 1:
            found.append(Gain("request", depth, None, _pooled(requests, depth, max_nodes)))
        static = static_places(trace, whole[0][1], depth)
        found.append(Gain("division", depth, None, divided(static, trace, max_nodes)))
        right = np.where(np.logical_and.accumulate(trace.ranks[:, :depth] >= 0, axis=1), np.arange(depth), -1)
        found.append(Gain("nodes", depth, None, divided(right, trace, max_nodes)))
    for top_k, pool in trace.pools.items():
        for depth in range(1, deepest + 1):
            places = pool[:, depth - 1, :depth].astype(np.int64)
            found.append(Gain("pool static", depth, top_k, uniform(places, trace, max_nodes)))
            found.append(Gain("pool division", depth, top_k, divided(places, trace, max_nodes)))
    return found


def bounds(found: list[Gain], cost: CostTable, *, context: int | None = None, batch: int = 1) -> list[Bound]:
    """The best speed of each assumption over depths and mean numbers of nodes, as far as costs are known."""
    baseline_ms = cost.step_ms(1, batch=batch, context=context)
    best: dict[tuple[str, int | None], Bound] = {}
    for one in found:
        for nodes, ms in _costs(one, cost, batch, context):
            tokens = float(one.tokens[nodes])
            bound = Bound(
                one.name, one.assumes, nodes, one.depth if nodes else 0, one.top_k, tokens, ms,
                tokens * baseline_ms / ms, 1.0,
            )  # fmt: skip
            key = (one.name, one.top_k)
            if key not in best or bound.speedup > best[key].speedup * (1 + 1e-12):
                best[key] = bound
    return [
        replace(bound, gain=bound.speedup / best[_attained(*key)].speedup)
        for key, bound in best.items()
        if _attained(*key) in best
    ]


def _attained(name: str, top_k: int | None) -> tuple[str, int | None]:
    return (STATIC, None) if top_k is None else ("pool static", top_k)


def _costs(one: Gain, cost: CostTable, batch: int, context: int | None) -> Iterator[tuple[int, float]]:
    """(nodes, step ms) for every number of nodes with a known cost at this depth."""
    verify = cost.verify_curve(batch=batch, context=context)
    if one.top_k is None:
        limit = cost.depth_limit(batch=batch)
        if limit is not None and one.depth > limit:
            return
        draft_ms = float(cost.draft_curve(one.depth, batch=batch, context=context)[one.depth])
    else:
        if one.depth > cost.dynamic_top_ks(batch=batch).get(one.top_k, 0):
            return
        tree = DynamicTree(one.depth, one.top_k, 1)
        draft_ms = cost.topology_ms(tree, batch=batch, context=context) - float(verify[1])
    for nodes in range(min(len(one.tokens), len(verify))):
        yield nodes, float(verify[nodes]) + (draft_ms if nodes else 0.0)


def _grown(parts: dict[str, RankTrace], max_nodes: int, depth: int) -> list[tuple[float, Growth]]:
    """(share of all positions, best trees) of each part."""
    total = sum(part.start_weight for part in parts.values())
    return [
        (part.start_weight / total, grow_all(TrieSource.from_trace(part), max_nodes=max_nodes, max_depth=depth))
        for part in parts.values()
    ]


def _pooled(grown: list[tuple[float, Growth]], depth: int, max_nodes: int) -> Floats:
    """One global heap over the requests' trees of at most ``depth``."""
    values = [growth.value[growth.order(depth)] for _, growth in grown]
    sizes = np.concatenate([np.full(len(one), share) for (share, _), one in zip(grown, values, strict=True)])
    return filled(np.concatenate(values), sizes, max_nodes)


def filled(worth: Floats, sizes: Floats, max_nodes: int) -> Floats:
    """float64 [max_nodes + 1]: tokens per step with budgets 0, 1, ... filled with the worthiest items first.

    Args:
        worth: of one node of each item.
        sizes: nodes of each item, per request on average; the last one taken may be taken in part.
    """
    order = np.argsort(-worth, kind="stable")
    nodes = np.concatenate([[0.0], np.cumsum(sizes[order])])
    tokens = np.concatenate([[1.0], 1 + np.cumsum((worth * sizes)[order])])
    return np.asarray(np.interp(np.arange(max_nodes + 1), nodes, tokens))


def static_places(trace: RankTrace, growth: Growth, depth: int) -> Ints:
    """int64 [T, depth]: place of each node of the true path in the static order of ``growth``; -1 where it lacks it."""
    order = growth.order(depth)
    place = np.full(len(growth.depth), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    places = np.full((trace.num_positions, depth), -1, dtype=np.int64)
    node = np.full(trace.num_positions, -1, dtype=np.int64)
    alive = np.ones(trace.num_positions, dtype=bool)
    for level in range(depth):
        here = np.flatnonzero(growth.depth == level + 1)
        if not len(here):
            break
        # Nodes of one depth are sorted by parent, then rank, so their codes ascend.
        codes = (growth.parent[here] + 1) * trace.top_k + growth.rank[here]
        wanted = (node + 1) * trace.top_k + trace.ranks[:, level]
        found = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        alive &= (trace.ranks[:, level] >= 0) & (codes[found] == wanted)
        node = np.where(alive, here[found], -1)
        places[alive, level] = place[node[alive]]
    return places


def uniform(places: Ints, trace: RankTrace, max_nodes: int) -> Floats:
    """float64 [max_nodes + 1]: tokens per step when every request verifies the first 0, 1, ... nodes of its order."""
    needed = _needed(places)
    accepted = np.array([(needed <= nodes).sum(axis=1) @ trace.row_weights for nodes in range(max_nodes + 1)])
    return np.asarray(1 + accepted / trace.start_weight)


def divided(places: Ints, trace: RankTrace, max_nodes: int) -> Floats:
    """float64 [max_nodes + 1]: the most tokens per step when requests take unequal numbers of nodes of their orders.

    What a request accepts is a staircase in its number of nodes; its concave hull, taken in parts, bounds every
    division of the budget, and is the optimum of many requests (a linear programme solved by its slopes).

    Args:
        places: int64 [T, D]: place in the order of each node of the true path, -1 where it is missing.
    """
    needed = _needed(places)
    needed = np.where(needed <= max_nodes, needed, np.inf)
    rows = np.arange(len(needed))
    at, reached = np.zeros(len(needed)), np.zeros(len(needed), dtype=np.int64)
    worth, sizes = [np.zeros(0)], [np.zeros(0)]
    for _ in range(needed.shape[1]):
        height = np.arange(1, needed.shape[1] + 1) - reached[:, None]
        run = needed - at[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = np.where((height > 0) & np.isfinite(run), height / run, -np.inf)
        # The steepest chord, the longest of equal ones.
        best = needed.shape[1] - 1 - slope[:, ::-1].argmax(axis=1)
        steep = slope[rows, best]
        going = np.isfinite(steep)
        worth.append(steep[going])
        sizes.append(run[rows, best][going] * trace.row_weights[going] / trace.start_weight)
        at, reached = np.where(going, needed[rows, best], at), np.where(going, best + 1, reached)
    return filled(np.concatenate(worth), np.concatenate(sizes), max_nodes)


def _needed(places: Ints) -> Floats:
    """float64 [T, D]: nodes of the order that must be verified to accept each depth; inf where that is impossible."""
    there = np.logical_and.accumulate(places >= 0, axis=1)
    return np.where(there, np.maximum.accumulate(places, axis=1) + 1.0, np.inf)
