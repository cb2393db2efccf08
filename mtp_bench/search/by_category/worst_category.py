"""The tree whose slowest category is fastest: ``max over trees of min over categories of tokens per second``.

Every category has the same plain decoding, so the slowest category is also the one with the least speedup.

For any weights of the categories that sum to 1, the slowest category of a tree is no faster than its weighted mean, so

    max over trees of min over categories  <=  min over weights of max over trees of the weighted mean,

and the inner maximum on the right is an exact search (`search.exact`) on weighted values: every search
gives a bound above, and all trees on its curve are candidates below. The weights are driven towards the least bound by
a double oracle (McMahan, Gordon, Blum 2003): the trees found so far and the categories play a matrix game, its optimal
weights are searched, the best tree joins the game, until none is new. What is left between the best candidate and the
bound, because a single tree is not a mixture of trees, is narrowed by exchanging single nodes, and printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.by_category.categories import CategoryTrie, split
from mtp_bench.search.by_category.exchange import exchange
from mtp_bench.search.exact.curve import SPEED, TOKENS
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.studies.optuna_search import import_optuna
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace, replay

Floats = npt.NDArray[np.float64]

_MOST_SEARCHES = 80
_ROUNDS = 1500  # of the matrix game
_CLOSE = 1e-9


@dataclass(frozen=True, eq=False)
class WorstCategory:
    """What was found.

    Attributes:
        names: the categories.
        tree: the best found.
        scores: float64 [C]: by category, what was maximised the least of: predicted tokens per second of a sequence
            (tokens per step without costs), averaged over all positions of the category.
        bound: no tree's slowest category is faster than this.
        weights: float64 [C]: weights of the categories under which the bound was found.
        average: the tree that is best for all positions alike, and ``average_scores`` its scores.
        searches: exact searches made.
    """

    objective: str
    names: tuple[str, ...]
    tree: StaticTree
    scores: Floats
    bound: float
    weights: Floats
    average: StaticTree
    average_scores: Floats
    searches: int

    @property
    def value(self) -> float:
        """The slowest category's score."""
        return float(self.scores.min())

    @property
    def gap(self) -> float:
        """Share of the bound by which a better tree might still be better; 0 = proven optimal."""
        return max(0.0, 1 - self.value / self.bound)

    def document(self) -> dict[str, Any]:
        """The ``worst_category`` object of the ``--json`` document."""
        return {
            "maximised": f"least {self.objective} of any category, averaged over all positions of the category",
            "value": self.value,
            "category": self.names[int(self.scores.argmin())],
            "upper_bound": self.bound,
            "gap_to_bound": self.gap,
            "bound_weights": dict(zip(self.names, self.weights.tolist(), strict=True)),
            "scores": dict(zip(self.names, self.scores.tolist(), strict=True)),
            "unweighted_optimum": {
                "num_nodes": self.average.num_nodes,
                "depth": self.average.depth,
                "value": float(self.average_scores.min()),
                "category": self.names[int(self.average_scores.argmin())],
                "scores": dict(zip(self.names, self.average_scores.tolist(), strict=True)),
            },
            "exact_searches": self.searches,
        }


def worst_category(
    trace: RankTrace,
    cost: CostTable | None,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
) -> WorstCategory:
    """Search; arguments as for :func:`~mtp_bench.search.exact.search.exact_search`.

    Raises:
        InputError: fewer than two categories with steps.
    """
    problem = _Problem.of(trace, cost, max_nodes, max_depth, context, batch)
    average = problem.search(_shares(trace))
    names = problem.trie.names
    played, bound, bound_weights = [average.own], np.inf, average.weights
    candidates = [average.candidate]
    starts = [average.weights, np.full(len(names), 1 / len(names)), *np.eye(len(names))]
    searches = 1
    while searches < _MOST_SEARCHES:
        weights = starts[searches] if searches < len(starts) else _game(np.array(played))
        found = problem.search(weights)
        searches += 1
        candidates.append(found.candidate)
        if found.value < bound:
            bound, bound_weights = found.value, weights
        known = float((np.array(played) @ weights).max())
        played.append(found.own)
        close = 1 - _fairest(candidates).scores.min() / bound < _CLOSE
        if searches > len(starts) and (close or found.value <= known * (1 + _CLOSE)):
            break
    # From every tree found: exchanges end at different trees, some of them short of the best.
    trees = {one.tree: None for one in candidates}
    best = _fairest([*candidates, *(problem.exchanged(average.exact, tree) for tree in trees)])
    return WorstCategory(
        problem.objective, names, best.tree, best.scores, float(bound), bound_weights, average.tree, average.own,
        searches,
    )  # fmt: skip


def worst_category_optuna(
    trace: RankTrace,
    cost: CostTable | None,
    *,
    trials: int,
    seed: int = 0,
    max_nodes: int,
    max_depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
) -> tuple[StaticTree, float]:
    """(best tree, its slowest category's score) of an unseeded study over weights of the categories, N and depth."""
    problem = _Problem.of(trace, cost, max_nodes, max_depth, context, batch)
    optuna = import_optuna()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    trees: dict[int, StaticTree] = {}

    def objective(trial: Any) -> float:
        weights = np.array([trial.suggest_float(f"weight_{name}", 1e-3, 1.0, log=True) for name in problem.trie.names])
        found = problem.exact(weights / weights.sum())
        nodes = trial.suggest_int("num_nodes", 1, max(problem.max_nodes, 1), log=True)
        depth = trial.suggest_int("depth", 0, found.max_depth)
        trees[trial.number] = tree = found.growth.tree(min(nodes, found.max_nodes), depth)
        return float(problem.scores(tree).min())

    study.optimize(objective, n_trials=trials)
    return trees[study.best_trial.number], float(study.best_value)


def held_out_worst(
    trace: RankTrace, cost: CostTable | None, *, seed: int = 0, **limits: Any
) -> dict[str, float] | None:
    """Least score of any category, replayed on the prompts the tree was not chosen on, both ways; beside it that of the
    tree which is best for all positions alike, chosen likewise. None where a half lacks a category.
    """
    halves = [trace.select(half) for half in trace.split_halves(seed)]
    if len(split(trace)) < 2 or any(set(split(half)) != set(split(trace)) for half in halves):
        return None
    totals = {"worst_category": np.zeros((2, len(split(trace)))), "unweighted": np.zeros((2, len(split(trace))))}
    for chosen_on, other in (halves, halves[::-1]):
        found = worst_category(chosen_on, cost, **limits)
        for name, tree in (("worst_category", found.tree), ("unweighted", found.average)):
            step_s = 1.0 if cost is None else _step_s(cost, tree, limits)
            runs = [replay(part, tree) for part in split(other).values()]
            totals[name] += np.array([[run.total_tokens, run.total_steps * step_s] for run in runs]).T
    return {name: float((tokens / time).min()) for name, (tokens, time) in totals.items()}


def _step_s(cost: CostTable, tree: StaticTree, limits: dict[str, Any]) -> float:
    place = {name: limits[name] for name in ("context", "batch") if name in limits}
    return cost.topology_ms(tree, **place) / 1e3


def _shares(trace: RankTrace) -> Floats:
    """float64 [C]: each category's share of the positions a step could start at: all positions counted alike."""
    starts = np.array([part.num_starts for part in split(trace).values()], dtype=np.float64)
    return np.asarray(starts / starts.sum())


def _game(payoffs: Floats) -> Floats:
    """float64 [C]: weights that minimise the best tree's weighted score; payoffs float64 [trees, C].

    Regret matching plus with linear averaging (Tammelin 2014): both sides learn, the averages approach the solution.
    """
    scaled = payoffs / np.abs(payoffs).max()
    regrets = [np.ones(size) for size in scaled.shape]
    total = np.zeros(scaled.shape[1])
    for turn in range(1, _ROUNDS + 1):
        tree, weights = (_mixed(regret) for regret in regrets)
        by_tree = scaled @ weights
        regrets[0] = np.maximum(regrets[0] + by_tree - tree @ by_tree, 0)
        by_category = _mixed(regrets[0]) @ scaled
        regrets[1] = np.maximum(regrets[1] + weights @ by_category - by_category, 0)
        total += turn * weights
    return np.asarray(total / total.sum())


def _mixed(regret: Floats) -> Floats:
    """Probabilities in proportion to regrets; even where there is none."""
    total = float(regret.sum())
    return regret / total if total > 0 else np.full(len(regret), 1 / len(regret))


@dataclass(frozen=True, eq=False)
class _Candidate:
    tree: StaticTree
    scores: Floats


def _fairest(candidates: Sequence[_Candidate]) -> _Candidate:
    """The first one whose slowest category is the fastest."""
    return max(candidates, key=lambda one: float(one.scores.min()))


@dataclass(frozen=True, eq=False)
class _Found:
    """One exact search: the best tree for these weights (``own`` scores, weighted ``value``), and the tree on its curve
    with the best slowest category."""

    exact: ExactResult
    weights: Floats
    tree: StaticTree
    own: Floats
    value: float
    candidate: _Candidate


@dataclass(frozen=True, eq=False)
class _Problem:
    trie: CategoryTrie
    cost: CostTable | None
    max_nodes: int
    max_depth: int | None
    context: int | None
    batch: int

    @classmethod
    def of(
        cls, trace: RankTrace, cost: CostTable | None, max_nodes: int, max_depth: int | None, context: int | None,
        batch: int,
    ) -> _Problem:  # fmt: skip
        parts = split(trace)
        if len(parts) < 2:
            raise InputError(
                f"{len(parts)} category with steps in the trace",
                where="--objective worst-category",
                fix="profile prompts of several categories, or use --objective speed",
            )
        return cls(CategoryTrie.of(parts, trace), cost, max_nodes, max_depth, context, batch)

    @property
    def objective(self) -> str:
        return "tokens_per_step" if self.cost is None else "predicted tokens_per_s"

    def exact(self, weights: Floats) -> ExactResult:
        return exact_search(
            self.trie.mixture(weights), self.cost, max_nodes=self.max_nodes, max_depth=self.max_depth,
            context=self.context, batch=self.batch, objective=TOKENS if self.cost is None else SPEED,
        )  # fmt: skip

    def search(self, weights: Floats) -> _Found:
        found = self.exact(weights)
        tokens = self.trie.curve_tokens(found)
        scores = tokens if self.cost is None else 1e3 * tokens / found.curve.step_ms
        fair = int(np.nanargmax(scores.min(axis=0)))
        own = int(np.nanargmax(weights @ scores))
        candidate = _Candidate(found.tree_of(found.curve[fair]), scores[:, fair])
        tree, figures = found.tree_of(found.curve[own]), scores[:, own]
        most = float(weights @ figures) if found.bound_tokens_per_s is None else found.bound_tokens_per_s
        return _Found(found, weights, tree, figures, most, candidate)

    def scores(self, tree: StaticTree) -> Floats:
        tokens = self.trie.tokens(tree)
        if self.cost is None:
            return tokens
        return 1e3 * tokens / self.cost.topology_ms(tree, context=self.context, batch=self.batch)

    def exchanged(self, found: ExactResult, tree: StaticTree) -> _Candidate:
        """``tree`` after exchanging single nodes for as long as its slowest category gains; limits of ``found``."""

        def step_ms(num_nodes: int, depth: int) -> float:
            if num_nodes > found.max_nodes or depth > found.max_depth:
                return np.inf
            if self.cost is None:
                return 1.0
            return self.cost.step_ms(num_nodes + 1, depth=depth, context=self.context, batch=self.batch)

        if self.cost is not None and self.cost.has_widths:
            return _Candidate(tree, self.scores(tree))  # what an exchange costs is not a matter of size and depth
        better = exchange(self.trie, tree, step_ms)
        return _Candidate(better, self.scores(better))
