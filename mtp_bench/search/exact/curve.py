"""What the exact search hands back: the curve over sizes and depths, the band near its top, the marginal rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.search.values.sources import Path

SPEED = "speed"
TOKENS = "tokens"
BAND = 0.01  # "as good as the best" for people who prefer a smaller tree

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best tree of one size and depth. Without a cost table the last three are None.

    Args:
        num_nodes: N.
        depth: of the tree.
        tokens_per_step: expected, averaged over all positions (replay is what to report).
        step_ms: cost of a step of one sequence's batch.
        tokens_per_s: of each sequence.
        speedup: over plain decoding on the same cost envelope.
    """

    num_nodes: int
    depth: int
    tokens_per_step: float
    step_ms: float | None = None
    tokens_per_s: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """Every (N, depth) as columns, sorted by depth, then N; the first is N = 0. Costs are NaN where unknown."""

    num_nodes: Ints
    depth: Ints
    tokens_per_step: Floats
    step_ms: Floats
    tokens_per_s: Floats
    speedup: Floats

    def __len__(self) -> int:
        return len(self.num_nodes)

    def __getitem__(self, index: int) -> CurvePoint:
        costs = (self.step_ms[index], self.tokens_per_s[index], self.speedup[index])
        known = [None if np.isnan(value) else float(value) for value in costs]
        tokens = float(self.tokens_per_step[index])
        return CurvePoint(int(self.num_nodes[index]), int(self.depth[index]), tokens, *known)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Name -> column, for CSV and plots."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def best_by_size(self, objective: str = SPEED) -> list[CurvePoint]:
        """For each N the point with the best objective."""
        return [self[int(index)] for index in self.best_indices(objective)]

    def best_indices(self, objective: str) -> Ints:
        """int64: where the points of :meth:`best_by_size` stand."""
        order = np.lexsort((self.depth, -self.score(objective), self.num_nodes))
        sizes = self.num_nodes[order]
        return np.asarray(order[np.flatnonzero(np.diff(sizes, prepend=-1))])

    def score(self, objective: str) -> Floats:
        """The column that is maximised; -inf where its cost is unknown."""
        column = self.tokens_per_s if objective == SPEED else self.tokens_per_step
        return np.where(np.isnan(column), -np.inf, column)


@dataclass(frozen=True, slots=True)
class NodeMargin:
    """The marginal rule for one node: it pays if accepted with a probability of at least ``threshold``.

    ``threshold = delta_ms * tokens_per_step / step_ms`` with the best tree's tokens and cost, ``delta_ms`` being what
    the node adds to the step. None where the cost with it is unknown.
    """

    path: Path
    value: float
    delta_ms: float | None
    threshold: float | None

    @property
    def pays(self) -> bool | None:
        """Whether its value reaches the threshold."""
        return None if self.threshold is None else self.value >= self.threshold

    def document(self) -> dict[str, Any]:
        """The node for the ``--json`` documents."""
        return {**asdict(self), "path": list(self.path), "pays": self.pays}


@dataclass(frozen=True, slots=True)
class Band:
    """Sizes whose best speed is within 1% of the best, and the smallest tree among them."""

    sizes: tuple[int, ...]
    smallest: CurvePoint


def near_best(curve: Curve, objective: str) -> Band:
    """The sizes whose best score is within :data:`BAND` of the best of all."""
    by_size = curve.best_indices(objective)
    scores = curve.score(objective)[by_size]
    inside = by_size[scores >= (1 - BAND) * scores.max()]
    return Band(tuple(curve.num_nodes[inside].tolist()), curve[int(inside[0])])
