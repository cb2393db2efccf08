"""The best topology of every kind, side by side: static tree, dynamic tree, chain.

Static trees have an exact search of their own (``exact``). Dynamic trees have no formula, but few parameters: a trace
that recorded their pools replays every (depth, top_k, num_nodes) exactly, so the grid is scored whole; Optuna, given
the same question, must find the same optimum, and is what larger grids are left to. All kinds are compared by replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import Evaluation, evaluate_all
from mtp_bench.search.exact.curve import SPEED
from mtp_bench.search.replays import replay_once
from mtp_bench.search.rules.constraints import UNCONSTRAINED, Constraints
from mtp_bench.search.studies.optuna_search import import_optuna
from mtp_bench.topology import DynamicTree, StaticTree, Topology, chain, name_of
from mtp_bench.trace import RankTrace

Kind = Literal["static", "dynamic", "chain"]
KINDS: tuple[Kind, ...] = ("static", "dynamic", "chain")


@dataclass(frozen=True, eq=False)
class BestOfKind:
    """The best topology of one kind.

    Attributes:
        evaluation: its figures, paired with those of the best kind's.
    """

    kind: Kind
    topology: Topology
    evaluation: Evaluation

    def document(self) -> dict[str, Any]:
        """For the ``--json`` document and ``optimize.json``."""
        body = self.topology.as_dict() if isinstance(self.topology, DynamicTree) else None
        return {"kind": self.kind, "name": name_of(self.topology), "dynamic": body, **self.evaluation.document()}


@dataclass(frozen=True, eq=False)
class DynamicSearch:
    """The whole grid of dynamic trees and its best; ``optuna_gap`` is how far below it Optuna's study ended."""

    best: DynamicTree
    value: float
    scored: int
    optuna_best: DynamicTree | None = None
    optuna_trials: int = 0
    optuna_gap: float | None = None

    def document(self) -> dict[str, Any]:
        """For the ``--json`` document and ``optimize.json``."""
        return {
            "best": str(self.best),
            "value": self.value,
            "grid_scored": self.scored,
            "optuna": None
            if self.optuna_best is None
            else {"best": str(self.optuna_best), "trials": self.optuna_trials, "gap_to_grid": self.optuna_gap},
        }


@dataclass(frozen=True)
class Question:
    """What is maximised over which topologies; see ``OptimizeOptions``."""

    trace: RankTrace
    cost: CostTable | None
    budget: int
    max_depth: int | None
    context: int | None
    batch: int
    objective: str
    constraints: Constraints = UNCONSTRAINED

    def value(self, topology: Topology) -> float:
        """Replayed tokens per second of each sequence, or tokens per step without a cost or by the objective."""
        tokens = replay_once(self.trace, topology).tokens_per_step
        if self.cost is None or self.objective != SPEED:
            return tokens
        return 1e3 * tokens / self.cost.topology_ms(topology, batch=self.batch, context=self.context)

    @property
    def deepest(self) -> int:
        """Deepest topology to be considered."""
        return min(self.trace.depth, self.max_depth if self.max_depth is not None else self.trace.depth)

    @property
    def most_nodes(self) -> int:
        """Most nodes to be considered: the budget, as far as costs are known."""
        if self.cost is None:
            return self.budget
        return min(self.budget, self.cost.rows_limit(batch=self.batch, context=self.context) - 1)

    def dynamic_limits(self) -> dict[int, int]:
        """top_k -> deepest dynamic tree that both the trace and the costs know."""
        limits = dict.fromkeys(self.trace.pools, self.deepest)
        if self.cost is not None and self.objective == SPEED:
            known = self.cost.dynamic_top_ks(batch=self.batch)
            limits = {k: min(depth, known[k]) for k, depth in limits.items() if k in known}
        return {k: depth for k, depth in limits.items() if depth > 0}


def dynamic_search(question: Question, *, trials: int = 0, seed: int = 0) -> DynamicSearch | None:
    """Score the whole grid by replay, and put the same question to Optuna; None when no dynamic tree is known."""
    limits = question.dynamic_limits()
    if not limits or question.most_nodes < 1:
        return None
    values = {tree: question.value(tree) for tree in _grid(question, limits) if question.constraints.allows(tree)}
    if not values:
        return None
    best = max(values, key=lambda tree: (values[tree], -tree.num_nodes, -tree.depth, -tree.top_k))
    found = DynamicSearch(best, values[best], len(values))
    if not trials:
        return found
    tree = _optuna_best(question, limits, values, trials, seed)
    gap = 1 - values.get(tree, 0.0) / values[best]
    return DynamicSearch(best, values[best], len(values), tree, trials, gap)


def _grid(question: Question, limits: dict[int, int]) -> Iterator[DynamicTree]:
    for top_k, deepest in limits.items():
        for depth in range(1, deepest + 1):
            for num_nodes in range(1, min(question.most_nodes, top_k + (depth - 1) * top_k**2) + 1):
                yield DynamicTree(depth, top_k, num_nodes)


def _optuna_best(
    question: Question, limits: dict[int, int], values: dict[DynamicTree, float], trials: int, seed: int
) -> DynamicTree:
    """What a study of integer parameters finds, without being told anything."""
    optuna = import_optuna()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def tree_of(parameters: Any) -> DynamicTree:
        top_k = parameters["top_k"]
        depth = min(parameters["depth"], limits[top_k])
        return DynamicTree(depth, top_k, min(parameters["num_nodes"], top_k + (depth - 1) * top_k**2))

    def objective(trial: Any) -> float:
        trial.suggest_categorical("top_k", sorted(limits))
        trial.suggest_int("depth", 1, max(limits.values()))
        trial.suggest_int("num_nodes", 1, question.most_nodes, log=True)
        return values.get(tree_of(trial.params), 0.0)  # breaks a rule of the engine

    study.optimize(objective, n_trials=trials)
    return tree_of(study.best_params)


def best_chain(question: Question) -> StaticTree | None:
    """The chain with the highest value; None when nothing may be drafted."""
    longest = min(question.deepest, question.most_nodes)
    if question.cost is not None:
        limit = question.cost.depth_limit(batch=question.batch)
        longest = longest if limit is None else min(longest, limit)
    chains = [chain(length) for length in range(1, longest + 1)]
    return max(filter(question.constraints.allows, chains), key=question.value, default=None)


def compare_kinds(question: Question, candidates: dict[Kind, Topology], *, seed: int = 0) -> list[BestOfKind]:
    """Best first; each with its difference to the best, paired on the same prompts.

    Raises:
        InputError: there is no candidate.
    """
    if not candidates:
        raise InputError("no topology of this kind can be judged", where="--kind", fix="profile with --dynamic-top-k")
    order = sorted(candidates, key=lambda kind: question.value(candidates[kind]), reverse=True)
    figures = evaluate_all(
        [candidates[kind] for kind in order], question.trace, question.cost, context=question.context,
        batch=question.batch, seed=seed,
    )  # fmt: skip
    return [BestOfKind(kind, candidates[kind], one) for kind, one in zip(order, figures, strict=True)]


def wanted_kinds(asked: str, trace: RankTrace) -> Sequence[Kind]:
    """The kinds that ``--kind`` asks to choose from; ``auto``: every kind that the trace can judge."""
    if asked == "auto":
        return KINDS if trace.pools else ("static", "chain")
    return [kind for kind in KINDS if kind == asked]
