"""What a given tree is worth: replayed tokens per step, predicted cost and speedup, each with its interval.

With a trace the tokens are replayed and prompts resampled. With a bare acceptance table there are only expected
values, and no interval. The interval of the speedup joins two independent sources of doubt: which prompts were drawn,
and how well the costs of this step and of the baseline were measured (log-normal noise with the standard error of
their medians; none where the cost table has no spread).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.replays import replay_once, token_draws
from mtp_bench.search.values.sources import Path, Source, expected_tokens_per_step
from mtp_bench.topology import DynamicTree, Topology
from mtp_bench.trace import Interval, RankTrace, accepted_lengths, interval_of
from mtp_bench.trace.bootstrap import RESAMPLES

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One tree's figures. Intervals are 95%; None = not known.

    Args:
        id: of the tree.
        num_nodes, depth, paths: the tree.
        tokens_per_step: replayed over the trace's prompts; expected, for a bare acceptance table.
        tokens_per_step_all_positions: averaged over all positions a step could start at; the search maximises this.
        tokens_per_step_ci: by resampling prompts.
        step_ms: predicted cost of a step.
        tokens_per_s: of each sequence.
        speedup_predicted: over plain decoding on the same cost envelope.
        speedup_predicted_ci: prompts and cost measurements resampled.
        difference_tokens_per_step: to the first tree of the comparison, paired on the same prompts.
        speed_ratio: predicted speed over that of the first tree, paired.
        notes: what limits these figures.
    """

    id: str
    num_nodes: int
    depth: int
    paths: tuple[Path, ...]
    tokens_per_step: float
    tokens_per_step_all_positions: float
    tokens_per_step_ci: tuple[float, float] | None = None
    step_ms: float | None = None
    tokens_per_s: float | None = None
    speedup_predicted: float | None = None
    speedup_predicted_ci: tuple[float, float] | None = None
    difference_tokens_per_step: Interval | None = None
    speed_ratio: Interval | None = None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The figures under the names of the ``--json`` documents."""
        names = [name for name in self.__dataclass_fields__ if name not in ("paths", "notes")]
        document = {name: _plain(getattr(self, name)) for name in names}
        return document | {"paths": [list(path) for path in self.paths], "notes": list(self.notes)}


@dataclass(frozen=True, eq=False)
class _Scored:
    """An evaluation with the draws behind it, for comparing it with another."""

    evaluation: Evaluation
    token_draws: Floats | None
    ms_draws: Floats | None


def evaluate(
    tree: Topology,
    acceptance: RankTrace | Source,
    cost: CostTable | None = None,
    *,
    context: int | None = None,
    batch: int = 1,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """Figures of one tree on a trace or a source; see :class:`Evaluation`.

    A tree larger or deeper than the cost table gets no cost, with a note. Nodes at ranks or depths that were not
    measured count as never accepted, with a note.
    """
    settings = _Settings(cost, context, batch, resamples, seed)
    return _score(tree, acceptance, settings).evaluation


def evaluate_all(
    trees: Sequence[Topology],
    acceptance: RankTrace | Source,
    cost: CostTable | None = None,
    *,
    context: int | None = None,
    batch: int = 1,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Evaluation]:
    """Figures of several trees, each but the first with its paired difference and speed ratio to the first."""
    settings = _Settings(cost, context, batch, resamples, seed)
    scored = [_score(tree, acceptance, settings) for tree in trees]
    return [one.evaluation if i == 0 else _compare(scored[0], one) for i, one in enumerate(scored)]


@dataclass(frozen=True, slots=True)
class _Settings:
    cost: CostTable | None
    context: int | None
    batch: int
    resamples: int
    seed: int


def _score(tree: Topology, acceptance: RankTrace | Source, settings: _Settings) -> _Scored:
    notes = [*_unmeasured(tree, acceptance)]
    if isinstance(acceptance, RankTrace):
        tokens = replay_once(acceptance, tree).tokens_per_step
        accepted = float(acceptance.row_weights @ accepted_lengths(acceptance, tree))
        everywhere = 1 + accepted / (acceptance.start_weight or 1.0)
        draws = token_draws(acceptance, tree, resamples=settings.resamples, seed=settings.seed)
    else:
        if isinstance(tree, DynamicTree):
            raise InputError(
                f"{tree} cannot be judged by acceptance rates alone",
                where="--acceptance",
                fix="profile an EAGLE draft with --dynamic-top-k, which records what dynamic trees hold",
            )
        tokens = everywhere = expected_tokens_per_step(acceptance, tree)
        draws = None
    interval = interval_of(tokens, draws)
    evaluation = Evaluation(
        tree.id, tree.num_nodes, tree.depth, () if isinstance(tree, DynamicTree) else tree.paths, tokens, everywhere,
        tokens_per_step_ci=interval.bounds if interval else None,
    )  # fmt: skip
    scored = _Scored(evaluation, draws, None)
    if settings.cost is not None:
        scored = _with_cost(scored, tree, settings.cost, settings, notes)
    return replace(scored, evaluation=replace(scored.evaluation, notes=tuple(notes)))


def _with_cost(scored: _Scored, tree: Topology, cost: CostTable, settings: _Settings, notes: list[str]) -> _Scored:
    one = scored.evaluation
    batch, context = settings.batch, settings.context
    notes += cost.notes(batch=batch, context=context)
    rows, deepest = cost.rows_limit(batch=batch, context=context), cost.depth_limit(batch=batch)
    if isinstance(tree, DynamicTree):
        deepest = cost.dynamic_top_ks(batch=batch).get(tree.top_k, 0)
    if one.num_nodes + 1 > rows or (deepest is not None and one.depth > deepest):
        notes.append(f"no cost: measured to {rows} rows" + (f" and depth {deepest}" if deepest is not None else ""))
        return scored
    widest = None if isinstance(tree, DynamicTree) else cost.width_limit(one.depth, batch=batch, context=context)
    if widest is not None and not isinstance(tree, DynamicTree) and max(tree.expanded_widths, default=0) > widest:
        notes.append(f"no cost: drafts of depth {one.depth} were measured to {widest} nodes expanded at a level")
        return scored
    step_ms = cost.topology_ms(tree, batch=batch, context=context)
    baseline_ms = cost.step_ms(1, batch=batch, context=context)
    ms_draws = _noisy(step_ms, one.num_nodes + 1, cost, settings)
    speedup_draws = None
    if scored.token_draws is not None:
        speedup_draws = scored.token_draws * _noisy(baseline_ms, 1, cost, settings) / ms_draws
    speedup = one.tokens_per_step * baseline_ms / step_ms
    interval = interval_of(speedup, speedup_draws)
    evaluation = replace(
        one,
        step_ms=step_ms,
        tokens_per_s=1e3 * one.tokens_per_step / step_ms,
        speedup_predicted=speedup,
        speedup_predicted_ci=interval.bounds if interval else None,
    )
    return _Scored(evaluation, scored.token_draws, ms_draws)


def _noisy(ms: float, rows: int, cost: CostTable, settings: _Settings) -> Floats:
    """float64 [resamples]: the cost as it might have been measured; equal row counts share their noise."""
    error = cost.relative_error(rows, batch=settings.batch, context=settings.context)
    noise = np.random.default_rng([settings.seed, rows]).standard_normal(settings.resamples)
    return np.asarray(ms * np.exp(error * noise))


def _compare(first: _Scored, other: _Scored) -> Evaluation:
    a, b = first.evaluation, other.evaluation
    if first.token_draws is None or other.token_draws is None:
        return b
    difference = interval_of(b.tokens_per_step - a.tokens_per_step, other.token_draws - first.token_draws)
    ratio = None
    if a.tokens_per_s and b.tokens_per_s and first.ms_draws is not None and other.ms_draws is not None:
        draws = (other.token_draws / other.ms_draws) / (first.token_draws / first.ms_draws)
        ratio = interval_of(b.tokens_per_s / a.tokens_per_s, draws)
    return replace(b, difference_tokens_per_step=difference, speed_ratio=ratio)


def _unmeasured(tree: Topology, acceptance: RankTrace | Source) -> list[str]:
    """A note when some nodes could not have been accepted, because nothing was recorded there."""
    if isinstance(tree, DynamicTree):
        return []
    depth = acceptance.depth if isinstance(acceptance, RankTrace) else acceptance.max_depth
    ranks = acceptance.top_k if isinstance(acceptance, RankTrace) else acceptance.max_rank + 1
    lost = tree.num_nodes - tree.clip(max_depth=depth, max_rank=ranks - 1).num_nodes
    if not lost:
        return []
    return [f"{lost} of {tree.num_nodes} nodes lie beyond depth {depth} or rank {ranks - 1}: counted as never accepted"]


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high}
    return list(value) if isinstance(value, tuple) else value
