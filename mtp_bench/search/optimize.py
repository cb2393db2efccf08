"""Everything ``optimize-tree`` says about one trace (or acceptance table) and one cost table, as one document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import Evaluation, evaluate, evaluate_all
from mtp_bench.search.exact.curve import SPEED, CurvePoint
from mtp_bench.search.exact.search import ExactResult
from mtp_bench.search.kinds import (
    BestOfKind,
    DynamicSearch,
    Kind,
    Question,
    best_chain,
    compare_kinds,
    dynamic_search,
    wanted_kinds,
)
from mtp_bench.search.robustness.held_out import HeldOut, choose_on_half
from mtp_bench.search.robustness.summary import Robustness
from mtp_bench.search.rules.constrained import constrained_search, within_rules
from mtp_bench.search.rules.constraints import UNCONSTRAINED, Constraints
from mtp_bench.search.studies.optuna_search import STUDY, OptunaResult, optuna_search
from mtp_bench.search.values.estimators import TRIE, Fit, check_table_estimator, fit
from mtp_bench.search.values.sources import MarginalSource, Path, Source
from mtp_bench.topology import StaticTree, Topology
from mtp_bench.trace import AcceptanceTable, RankTrace


@dataclass(frozen=True)
class OptimizeOptions:
    """What to search.

    Attributes:
        budget: most nodes.
        max_depth: deepest tree, None = as deep as the heads.
        context: cached tokens at which costs are taken, None = the smallest measured.
        trials: Optuna trials, 0 = no study.
        kind: static, dynamic, chain, or auto = the fastest of them.
        seeded: start the study from the exact optimum.
        storage: where the study is kept, None = in memory.
        study: its name there.
        estimator: where node values come from, one of :data:`~mtp_bench.search.values.estimators.ESTIMATORS`.
        constraints: what the engine loads. Optuna then searches only what the exact methods cannot.
    """

    budget: int = 63
    max_depth: int | None = None
    context: int | None = None
    batch: int = 1
    objective: str = SPEED
    trials: int = 100
    seeded: bool = True
    kind: str = "auto"
    estimator: str = TRIE
    storage: str | None = None
    study: str = STUDY
    seed: int = 0
    constraints: Constraints = UNCONSTRAINED


@dataclass(frozen=True, eq=False)
class Optimization:
    """The outcome.

    Attributes:
        winner: the best tree's figures, replayed.
        smallest: figures of the smallest tree within 1% of the best.
        curve: for each size the best tree's point and its replayed figures (None without a trace).
        kinds: the best of each kind that was asked for, best first; empty without a trace.
        dynamic: the search among dynamic trees, None where they are not known.
        robustness: how far the choice hangs on the sample and the estimator; None without a trace of a few prompts.
        node_values: P(accepted) of the best static tree's nodes, averaged over all positions.
    """

    options: OptimizeOptions
    exact: ExactResult
    optuna: OptunaResult | None
    held_out: HeldOut | None
    winner: Evaluation
    smallest: Evaluation
    curve: list[tuple[CurvePoint, Evaluation | None]]
    kinds: list[BestOfKind]
    dynamic: DynamicSearch | None
    node_values: dict[Path, float]
    robustness: Robustness | None = None

    @property
    def tree(self) -> StaticTree:
        """The best static tree."""
        return self.exact.tree

    @property
    def topology(self) -> Topology:
        """The best of the kinds asked for."""
        return self.kinds[0].topology if self.kinds else self.exact.tree

    @property
    def best(self) -> Evaluation:
        """Figures of ``topology``."""
        return self.kinds[0].evaluation if self.kinds else self.winner

    @property
    def smallest_tree(self) -> StaticTree:
        """The smallest tree within 1% of the best."""
        return self.exact.tree_of(self.exact.band.smallest)

    def document(self) -> dict[str, Any]:
        """The document of ``optimize.json`` and ``--json``."""
        exact = self.exact.document()
        exact["curve"] = [_curve_line(point, evaluation) for point, evaluation in self.curve]
        return {
            "objective": self.options.objective,
            "budget": self.options.budget,
            "context": self.options.context,
            "batch": self.options.batch,
            **self.best.document(),
            "kind": self.kinds[0].kind if self.kinds else "static",
            "kinds": [one.document() for one in self.kinds],
            "dynamic": None if self.dynamic is None else self.dynamic.document(),
            "static": self.winner.document(),
            "do_not_speculate": self.exact.do_not_speculate,
            "smallest_within_band": self.smallest.document(),
            "exact": exact,
            "optuna": None if self.optuna is None else _study(self.optuna),
            "held_out": None if self.held_out is None else self.held_out.document(),
            "estimator": self.options.estimator,
            **({} if self.robustness is None else self.robustness.document()),
        }


def optimize(
    acceptance: RankTrace | AcceptanceTable,
    cost: CostTable | None,
    options: OptimizeOptions,
    *,
    on_trial: Callable[[int], None] | None = None,
) -> Optimization:
    """Search, study, hold out, and replay the best tree of every size.

    Raises:
        InputError: speed is asked for without costs, or the trace is empty.
    """
    common: dict[str, Any] = {
        "max_nodes": options.budget,
        "max_depth": options.max_depth,
        "context": options.context,
        "batch": options.batch,
        "objective": options.objective,
    }
    rules: dict[str, Any] = {"constraints": options.constraints, "trials": options.trials, "seed": options.seed}
    source: Source
    scored: RankTrace | Source
    found: Fit | None = None
    if isinstance(acceptance, RankTrace):
        if acceptance.start_weight == 0:
            raise InputError("the trace has no steps", where="trace", fix="profile with longer answers")
        found = fit(options.estimator, acceptance, cost, **common)
        source, scored = found.source, acceptance
        exact = within_rules(found, cost, **common, **rules)
    else:
        check_table_estimator(options.estimator)
        source = scored = MarginalSource(acceptance.per_rank)
        exact = constrained_search(source, cost, **common, **rules)
    study = None
    if options.trials and not options.constraints.restricts_static:
        study = optuna_search(
            source, cost, trials=options.trials, seed=options.seed, seeded=options.seeded, storage=options.storage,
            study_name=options.study, on_trial=on_trial, **common,
        )  # fmt: skip
    held_out = robustness = None
    if found is not None and isinstance(acceptance, RankTrace) and acceptance.num_prompts >= 4:
        held_out = choose_on_half(acceptance, cost, estimator=options.estimator, **common, **rules)
        if not options.constraints.restricts_static:
            robustness = Robustness.of(found, acceptance, cost, seed=options.seed, **common)
    places: dict[str, Any] = {"context": options.context, "batch": options.batch, "seed": options.seed}
    points = exact.curve.best_by_size(options.objective)
    replays: list[Evaluation | None] = [None] * len(points)
    if isinstance(acceptance, RankTrace):
        replays = [*evaluate_all([exact.tree_of(point) for point in points], acceptance, cost, **places)]
    return Optimization(
        options,
        exact,
        study,
        held_out,
        evaluate(exact.tree, scored, cost, **places),
        evaluate(exact.tree_of(exact.band.smallest), scored, cost, **places),
        list(zip(points, replays, strict=True)),
        *_kinds(acceptance, cost, exact, options),
        dict(zip(exact.tree.paths, source.node_values(exact.tree).tolist(), strict=True)),
        robustness,
    )


def best_of_kinds(
    trace: RankTrace, cost: CostTable | None, options: OptimizeOptions, *, drafting: bool = False
) -> BestOfKind | None:
    """The best topology of the kinds asked for, without all that ``optimize`` adds.

    N = 0 is among the static ones, unless ``drafting``: then at least one node, however slow; None if there is no such.
    """
    limits: dict[str, Any] = {
        "max_nodes": options.budget, "max_depth": options.max_depth, "context": options.context,
        "batch": options.batch, "objective": options.objective,
    }  # fmt: skip
    fitted = fit(options.estimator, trace, cost, **limits)
    exact = within_rules(
        fitted, cost, constraints=options.constraints, trials=options.trials, seed=options.seed, **limits
    )
    if drafting and len(exact.curve) == 1:
        return None
    found, _ = _kinds(trace, cost, exact.drafting() if drafting else exact, options)
    return found[0]


def _kinds(
    acceptance: RankTrace | AcceptanceTable, cost: CostTable | None, exact: ExactResult, options: OptimizeOptions
) -> tuple[list[BestOfKind], DynamicSearch | None]:
    """The best of each kind asked for, and the search among dynamic trees."""
    if not isinstance(acceptance, RankTrace):
        if options.kind not in ("auto", "static"):
            raise InputError(
                f"acceptance rates alone cannot judge a {options.kind} topology",
                where="--kind",
                fix="search on a profiled run",
            )
        return [], None
    question = Question(
        acceptance, cost, options.budget, options.max_depth, options.context, options.batch, options.objective,
        options.constraints,
    )  # fmt: skip
    wanted = wanted_kinds(options.kind, acceptance)
    candidates: dict[Kind, Topology] = {}
    dynamic = None
    if "static" in wanted:
        candidates["static"] = exact.tree
    if "dynamic" in wanted:
        dynamic = dynamic_search(question, trials=options.trials, seed=options.seed)
        if dynamic is not None:
            candidates["dynamic"] = dynamic.best
    if "chain" in wanted:
        chained = best_chain(question)
        twice = options.constraints.restricts_static and chained == candidates.get("static")
        if chained is not None and not twice:
            candidates["chain"] = chained
    return compare_kinds(question, candidates, seed=options.seed), dynamic


def _curve_line(point: CurvePoint, evaluation: Evaluation | None) -> dict[str, Any]:
    return {
        "num_nodes": point.num_nodes,
        "depth": point.depth,
        "tokens_per_step_uniform": point.tokens_per_step,
        "tokens_per_step": evaluation.tokens_per_step if evaluation else None,
        "tokens_per_step_ci": _pair(evaluation.tokens_per_step_ci) if evaluation else None,
        "step_ms": point.step_ms,
        "speedup": evaluation.speedup_predicted if evaluation else point.speedup,
        "speedup_ci": _pair(evaluation.speedup_predicted_ci) if evaluation else None,
    }


def _pair(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _study(study: OptunaResult) -> dict[str, Any]:
    best_so_far = float("-inf")
    trials = []
    for trial in study.trials:
        best_so_far = max(best_so_far, trial.value)
        trials.append(
            {
                "number": trial.number,
                "value": trial.value,
                "best_so_far": best_so_far,
                "num_nodes": trial.num_nodes,
                "depth": trial.depth,
                "origin": trial.origin,
                "cached": trial.cached,
            }
        )
    document = study.document()
    return document | {"num_trials": document["trials"], "trials": trials, "exact_value": study.exact_value}
