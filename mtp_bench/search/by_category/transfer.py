"""Does a tree tuned on one kind of text serve another? Relative loss of speed, tree by tree, category by category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.search.exact.curve import SPEED, TOKENS
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace, replay

ALL = "all"


@dataclass(frozen=True, eq=False)
class Transfer:
    """Trees tuned on each category (and on all), used on each category.

    Attributes:
        tuned_on: names of the rows, ``all`` last; used_on: names of the columns.
        loss: float64 [rows, columns], ``1 - speed / speed of the tree tuned on the column's own category``. It can be
            negative: the search maximises an average over all positions, the figures are replayed.
        trees: the tree of each row.
    """

    tuned_on: tuple[str, ...]
    used_on: tuple[str, ...]
    loss: npt.NDArray[np.float64]
    trees: tuple[StaticTree, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tuned_on": list(self.tuned_on),
            "used_on": list(self.used_on),
            "num_nodes": [tree.num_nodes for tree in self.trees],
            "loss": np.round(self.loss, 6).tolist(),
        }


def transfer(
    trace: RankTrace, cost: CostTable | None, *, budget: int = 63, context: int | None = None, batch: int = 1
) -> Transfer | None:
    """Tune a static tree on the prompts of each category and replay it on the others'; None with one category only."""
    names = sorted(set(trace.categories))
    parts = {name: trace.select([i for i, one in enumerate(trace.categories) if one == name]) for name in names}
    parts = {name: part for name, part in parts.items() if part.num_starts}
    if len(parts) < 2:
        return None
    objective = SPEED if cost is not None else TOKENS

    def tuned(part: RankTrace) -> StaticTree:
        return exact_search(
            TrieSource.from_trace(part), cost, max_nodes=budget, context=context, batch=batch, objective=objective
        ).tree

    def speed(tree: StaticTree, part: RankTrace) -> float:
        step_ms = 1.0 if cost is None else cost.topology_ms(tree, batch=batch, context=context)
        return replay(part, tree).tokens_per_step / step_ms

    trees = {name: tuned(part) for name, part in parts.items()} | {ALL: tuned(trace)}
    own = np.array([speed(trees[name], part) for name, part in parts.items()])
    speeds = np.array([[speed(tree, part) for part in parts.values()] for tree in trees.values()])
    return Transfer(tuple(trees), tuple(parts), 1 - speeds / own, tuple(trees.values()))
