"""The same question put to Optuna, as a check on the exact search and as the way for questions without a formula.

Parameters are integers only: size, depth, and the most children a node may have at each depth. They name a tree (the
best one within those limits). Different parameters often name the same tree: it is scored once, and told to the sampler
as pruned from then on, or the sampler would settle on the first good tree it meets. The score is the one that the
exact search maximises, so its optimum is a true upper bound here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.curve import SPEED
from mtp_bench.search.exact.growth import grow_all
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.studies.fingerprint import fingerprint
from mtp_bench.search.studies.optuna_package import import_optuna as import_optuna  # also for others
from mtp_bench.search.studies.storage import open_storage
from mtp_bench.search.studies.workers import CACHED, KEY, RESULT, Candidate, open_study, retried, run_trials
from mtp_bench.search.values.sources import Source
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SAMPLED = "sampled"
STUDY = "mtp-bench"
_STARTUP_TRIALS = 20


@dataclass(frozen=True, slots=True)
class OptunaTrial:
    """One trial: the tree it named and its score.

    Args:
        number: from 0.
        value: tokens per second of each sequence, or tokens per step, by the objective.
        num_nodes, depth, tree_id: the tree.
        tokens_per_step, step_ms: its parts; ``step_ms`` is None without costs.
        origin: ``exact optimum``, ``no speculation``, ``chain`` (given to the study at its start) or ``sampled``.
        cached: the tree had been scored by an earlier trial, whose value this is.
    """

    number: int
    value: float
    num_nodes: int
    depth: int
    tree_id: str
    tokens_per_step: float
    step_ms: float | None
    origin: str
    cached: bool


@dataclass(frozen=True, eq=False)
class OptunaResult:
    """The study's finished trials in order, its best tree, and the exact result beside it.

    ``retried`` of the trials repeat one whose worker was lost.
    """

    trials: tuple[OptunaTrial, ...]
    best: OptunaTrial
    tree: StaticTree
    exact: ExactResult
    seeded: bool
    retried: int = 0

    @property
    def exact_value(self) -> float:
        """The exact optimum's score."""
        point = self.exact.best
        value = point.tokens_per_s if self.exact.objective == SPEED else point.tokens_per_step
        return float(value or 0.0)

    @property
    def gap(self) -> float:
        """Relative distance of the study's best below the exact optimum: 0 = found."""
        return 1 - self.best.value / self.exact_value

    def document(self) -> dict[str, Any]:
        """The ``optuna`` object of the ``--json`` documents."""
        best = self.best
        return {
            "trials": len(self.trials),
            "trees_scored": sum(not trial.cached for trial in self.trials),
            "retried": self.retried,
            "seeded": self.seeded,
            "value": best.value,
            "num_nodes": best.num_nodes,
            "depth": best.depth,
            "tree_id": best.tree_id,
            "found_by": best.origin,
            "gap_to_exact": self.gap,
        }


@dataclass(frozen=True, eq=False)
class _Problem:
    """Scores the trees that parameters name."""

    source: Source
    cost: CostTable | None
    max_nodes: int
    max_depth: int
    context: int | None
    batch: int
    objective: str

    @property
    def most_children(self) -> int:
        return max(1, min(self.source.max_children, self.max_nodes))

    def parameters(self, num_nodes: int, depth: int, children: int) -> dict[str, int]:
        """Parameters of the best tree with the same limit of children at every depth."""
        caps = {f"children_{d}": children for d in range(1, self.max_depth + 1)}
        return {"num_nodes": max(num_nodes, 1), "depth": depth, **caps}

    def suggest(self, trial: Trial) -> tuple[int, int, list[int]]:
        # What one node is worth falls with their number, hence the logarithm; depth 0 is no speculation.
        num_nodes = trial.suggest_int("num_nodes", 1, max(self.max_nodes, 1), log=True)
        depth = trial.suggest_int("depth", 0, self.max_depth)
        caps = [trial.suggest_int(f"children_{d}", 1, self.most_children) for d in range(1, self.max_depth + 1)]
        return num_nodes, depth, caps

    def propose(self, trial: Trial) -> Candidate:
        """The tree that a trial's parameters name."""
        tree, tokens = self.tree(*self.suggest(trial))
        return Candidate(tree.id, {"shape": [tree.num_nodes, tree.depth]}, lambda: [*self.score(tree, tokens), tokens])

    def question(self, seeded: bool) -> dict[str, Any]:
        """What is searched: two searches may share a study when it is the same."""
        return {
            "acceptance": fingerprint(self.source),
            "costs": None if self.cost is None else fingerprint(self.cost.points),
            "objective": self.objective,
            "budget": self.max_nodes,
            "depth": self.max_depth,
            "most children": self.most_children,
            "context": self.context,
            "batch": self.batch,
            "seeded": seeded,
        }

    def tree(self, num_nodes: int, depth: int, caps: list[int]) -> tuple[StaticTree, float]:
        """The best tree within the limits and its expected tokens per step."""
        growth = grow_all(self.source, max_nodes=num_nodes, max_depth=depth, max_children=caps)
        return growth.tree(num_nodes, depth), float(growth.value[growth.order(depth)].cumsum()[-1:].sum()) + 1.0

    def score(self, tree: StaticTree, tokens_per_step: float) -> tuple[float, float | None]:
        """(value, step_ms)."""
        if self.cost is None:
            return tokens_per_step, None
        try:
            step_ms = self.cost.topology_ms(tree, batch=self.batch, context=self.context)
        except InputError:
            if self.objective == SPEED:
                raise
            return tokens_per_step, None
        return (1e3 * tokens_per_step / step_ms if self.objective == SPEED else tokens_per_step), step_ms


def optuna_search(
    acceptance: RankTrace | Source,
    cost: CostTable | None,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    trials: int = 200,
    seed: int = 0,
    seeded: bool = True,
    context: int | None = None,
    batch: int = 1,
    objective: str = SPEED,
    storage: str | None = None,
    study_name: str = STUDY,
    on_trial: Callable[[int], None] | None = None,
) -> OptunaResult:
    """Search with Optuna's TPE sampler; arguments as for :func:`exact_search`, and:

    Args:
        trials: in all, over all workers of the study and all its resumptions.
        seed: of the sampler; the same seed gives the same trials to a worker that is alone from the first to the last.
        seeded: start from the exact optimum, from no speculation and from a chain.
        storage: where the study is kept, see :func:`~mtp_bench.search.studies.storage.open_storage`; None = in memory.
        study_name: of the study in ``storage``.
        on_trial: called with the number of finished trials, for a progress bar.

    Raises:
        InputError: as :func:`exact_search`; Optuna not installed; no trial asked for; the storage cannot be used; the
            study was made for another question.
    """
    if trials < 1:
        raise InputError(f"{trials} trials", where="--trials", fix="give at least 1")
    source = TrieSource.from_trace(acceptance) if isinstance(acceptance, RankTrace) else acceptance
    exact = exact_search(
        source, cost, max_nodes=max_nodes, max_depth=max_depth, context=context, batch=batch, objective=objective
    )
    deepest = exact.max_depth if exact.max_nodes else 0
    problem = _Problem(source, cost, exact.max_nodes, deepest, context, batch, objective)
    with open_storage(storage) as opened:
        study = open_study(opened, study_name, problem.question(seeded), _sampler(seed, 0))
        run_trials(
            study,
            problem.propose,
            trials=trials,
            queue=_seeds(problem, exact) if seeded else (),
            sampler_from=lambda number: _sampler(seed, number),
            on_trial=on_trial,
        )
        return _result(study, problem, exact, seeded)


def _sampler(seed: int, number: int) -> BaseSampler:
    """The sampler of a worker whose first trial is ``number``; the study's first worker has the plain seed."""
    drawn = seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    return import_optuna().samplers.TPESampler(seed=drawn, n_startup_trials=_STARTUP_TRIALS)


def _seeds(problem: _Problem, exact: ExactResult) -> list[tuple[str, dict[str, int]]]:
    best, widest = exact.best, problem.most_children
    longest = min(problem.max_depth, problem.max_nodes)
    return [
        ("exact optimum", problem.parameters(best.num_nodes, best.depth, widest)),
        ("no speculation", problem.parameters(0, 0, 1)),
        ("chain", problem.parameters(longest, longest, 1)),
    ]


def _result(study: Study, problem: _Problem, exact: ExactResult, seeded: bool) -> OptunaResult:
    finished = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    records = tuple(_record(trial) for trial in finished)
    best = max(records, key=lambda record: (record.value, -record.number))
    params = next(trial for trial in finished if trial.number == best.number).params
    caps = [params[f"children_{d}"] for d in range(1, problem.max_depth + 1)]
    tree, _ = problem.tree(params["num_nodes"], params["depth"], caps)
    return OptunaResult(records, best, tree, exact, seeded, retried(finished))


def _record(trial: FrozenTrial) -> OptunaTrial:
    value, step_ms, tokens = trial.user_attrs[RESULT]
    num_nodes, depth = trial.user_attrs["shape"]
    return OptunaTrial(
        number=trial.number,
        value=float(value),
        num_nodes=num_nodes,
        depth=depth,
        tree_id=trial.user_attrs[KEY],
        tokens_per_step=float(tokens),
        step_ms=step_ms,
        origin=trial.user_attrs.get("origin", SAMPLED),
        cached=trial.user_attrs[CACHED],
    )
