"""Held-out figures: trees chosen on one half of the prompts, quoted on the other.

A tree fits the prompts it was chosen on a little too well. Both halves take their turn, so every prompt is replayed
once with a tree that was chosen without it; the pooled steps give the held-out figure and its interval, and the gap
to the figure on the choosing half (``optimism``) says how much the fit flattered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.exact.curve import SPEED
from mtp_bench.search.rules.constrained import within_rules
from mtp_bench.search.rules.constraints import UNCONSTRAINED, Constraints
from mtp_bench.search.values.estimators import TRIE, fit
from mtp_bench.topology import StaticTree
from mtp_bench.trace import Interval, RankTrace, interval_of, ratio_draws, replay
from mtp_bench.trace.bootstrap import RESAMPLES


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Figures on prompts that the tree was not chosen on.

    Args:
        trees: chosen on the first half, and on the second.
        train_tokens_per_step: replayed on the halves they were chosen on, pooled.
        held_out_tokens_per_step: replayed on the other halves, pooled, with the interval over prompts.
        train_speedup, held_out_speedup: predicted, pooled likewise; None without costs.
        seed: of the split.
        pool: tokens, steps and time by prompt on the other halves, for paired comparisons.
    """

    trees: tuple[StaticTree, StaticTree]
    train_tokens_per_step: float
    held_out_tokens_per_step: float
    held_out_tokens_per_step_ci: tuple[float, float] | None
    train_speedup: float | None
    held_out_speedup: float | None
    held_out_speedup_ci: tuple[float, float] | None
    seed: int
    pool: Pool

    @property
    def optimism(self) -> float:
        """Tokens per step that the fit flatters by: train minus held-out."""
        return self.train_tokens_per_step - self.held_out_tokens_per_step

    def document(self) -> dict[str, Any]:
        """The ``held_out`` object of the ``--json`` documents."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("trees", "seed", "pool")}
        document = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        sizes = [{"num_nodes": tree.num_nodes, "depth": tree.depth} for tree in self.trees]
        return document | {"optimism": self.optimism, "trees": sizes, "seed": self.seed}


@dataclass(slots=True)
class Pool:
    """Tokens, steps and milliseconds by prompt, gathered over both directions."""

    tokens: list[float]
    steps: list[float]
    ms: list[float]

    def add(self, trace: RankTrace, tree: StaticTree, step_ms: float | None) -> None:
        """Replay ``tree`` on all prompts of ``trace``."""
        run = replay(trace, tree)
        tokens, steps = run.counted
        self.tokens += tokens.tolist()
        self.steps += steps.tolist()
        self.ms += (steps * (math.nan if step_ms is None else step_ms)).tolist()

    @property
    def known_ms(self) -> bool:
        """Whether every step's cost is known."""
        return math.isfinite(sum(self.ms))

    def tokens_per_step(self, resamples: int, seed: int) -> tuple[float, Interval | None]:
        """``sum tokens / sum steps`` with its interval over prompts."""
        value = sum(self.tokens) / sum(self.steps) if sum(self.steps) else 1.0
        return value, interval_of(value, ratio_draws(self.tokens, self.steps, resamples=resamples, seed=seed))

    def speedup(self, baseline_ms: float, resamples: int, seed: int) -> tuple[float, Interval | None]:
        """Plain decoding's time over the time with trees: ``baseline_ms * sum tokens / sum ms``."""
        plain = [baseline_ms * count for count in self.tokens]
        value = sum(plain) / sum(self.ms) if sum(self.ms) else 1.0
        return value, interval_of(value, ratio_draws(plain, self.ms, resamples=resamples, seed=seed))


def split(trace: RankTrace, seed: int) -> tuple[tuple[RankTrace, RankTrace], tuple[RankTrace, RankTrace]]:
    """(half to choose on, half to quote on), both ways.

    Raises:
        InputError: fewer than two prompts with steps in them.
    """
    first, second = (trace.select(half) for half in trace.split_halves(seed))
    if not first.start_weight or not second.start_weight:
        raise InputError("too few prompts to hold some out", where="trace", fix="record at least two prompts")
    return (first, second), (second, first)


def choose_on_half(
    trace: RankTrace,
    cost: CostTable | None,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
    objective: str = SPEED,
    estimator: str = TRIE,
    seed: int = 0,
    resamples: int = RESAMPLES,
    constraints: Constraints = UNCONSTRAINED,
    trials: int = 0,
) -> HeldOut:
    """Choose on one half of the prompts, replay on the other, both ways.

    ``estimator`` is one of :data:`~mtp_bench.search.values.estimators.ESTIMATORS`; the other arguments are those of
    :func:`~mtp_bench.search.rules.constrained.constrained_search`.

    Raises:
        InputError: fewer than two prompts with steps in them.
    """
    halves = split(trace, seed)
    train, held_out = Pool([], [], []), Pool([], [], [])
    trees: list[StaticTree] = []
    limits: dict[str, Any] = {
        "max_nodes": max_nodes, "max_depth": max_depth, "context": context, "batch": batch, "objective": objective,
    }  # fmt: skip
    for chosen_on, other in halves:
        fitted = fit(estimator, chosen_on, cost, **limits)
        found = within_rules(fitted, cost, constraints=constraints, trials=trials, seed=seed, **limits)
        trees.append(found.tree)
        train.add(chosen_on, found.tree, found.best.step_ms)
        held_out.add(other, found.tree, found.best.step_ms)
    train_tokens, _ = train.tokens_per_step(resamples, seed)
    tokens, tokens_ci = held_out.tokens_per_step(resamples, seed)
    train_speedup = speedup = speedup_ci = None
    if cost is not None and held_out.known_ms:
        baseline_ms = cost.step_ms(1, batch=batch, context=context)
        train_speedup, _ = train.speedup(baseline_ms, resamples, seed)
        speedup, speedup_ci = held_out.speedup(baseline_ms, resamples, seed)
    return HeldOut(
        (trees[0], trees[1]),
        train_tokens,
        tokens,
        tokens_ci.bounds if tokens_ci else None,
        train_speedup,
        speedup,
        speedup_ci.bounds if speedup_ci else None,
        seed,
        held_out,
    )
