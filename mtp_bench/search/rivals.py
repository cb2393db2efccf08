"""Given trees against the best tree of their own size, paired on one trace, and against the fastest of all.

Averaged over all positions no tree can accept more than the best of its size (that is a theorem, and checked). By
replay, where steps start at harder positions, a paired interval over prompts says which differences are real. Since
the best trees are chosen on the very trace they are judged by, they are also chosen on one half of the prompts and
replayed on the other, each half in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.search.evaluate import Evaluation, evaluate_all
from mtp_bench.search.exact.curve import SPEED
from mtp_bench.search.exact.growth import Growth, grow_all
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.trie import TrieSource
from mtp_bench.topology import StaticTree
from mtp_bench.trace import Interval, RankTrace, paired_difference, replay

ROUNDING = 1e-9  # of a mean over all positions
SMOOTH_TO = 64  # the curve of best trees has every size up to here, and those of the given trees

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rival:
    """One given tree.

    Args:
        name: as given.
        given_nodes: before nodes beyond the heads' depth and ranks were cut off.
        evaluation: of what was left; its difference and speed ratio are to the best tree of the same size.
        optimum: the best tree of at most that size.
        held_out: paired difference to the best tree of that size as chosen on prompts that it is not judged by; None
            with fewer than four prompts.
        nodes_to_match: size of the smallest best tree that accepts as much, averaged over all positions.
        to_fastest: its predicted speed over that of the fastest tree, paired; None where its cost is not known.
    """

    name: str
    given_nodes: int
    evaluation: Evaluation
    optimum: Evaluation
    held_out: Interval | None
    nodes_to_match: int
    to_fastest: Interval | None

    @property
    def verdict(self) -> str:
        """By the paired interval of the replay: ``optimum``, ``tie`` or ``rival``; ``same`` for the same tree."""
        difference = self.evaluation.difference_tokens_per_step
        if self.evaluation.id == self.optimum.id:
            return "same"
        if difference is None or not difference.excludes(0.0):
            return "tie"
        return "optimum" if difference.value < 0 else "rival"

    def document(self) -> dict[str, Any]:
        """One line of the table."""
        one, best, difference = self.evaluation, self.optimum, self.evaluation.difference_tokens_per_step
        return {
            "tree": self.name,
            "given_nodes": self.given_nodes,
            "num_nodes": one.num_nodes,
            "depth": one.depth,
            "tokens_per_step_all_positions": one.tokens_per_step_all_positions,
            "optimum_all_positions": best.tokens_per_step_all_positions,
            "tokens_per_step": one.tokens_per_step,
            "optimum_tokens_per_step": best.tokens_per_step,
            "difference": None if difference is None else difference.value,
            "difference_low": None if difference is None else difference.low,
            "difference_high": None if difference is None else difference.high,
            "better": self.verdict,
            "held_out_difference": None if self.held_out is None else self.held_out.value,
            "held_out_low": None if self.held_out is None else self.held_out.low,
            "held_out_high": None if self.held_out is None else self.held_out.high,
            "optimum_nodes": best.num_nodes,
            "nodes_to_match": self.nodes_to_match,
            "step_ms": one.step_ms,
            "speedup_predicted": one.speedup_predicted,
            "share_of_fastest": None if self.to_fastest is None else self.to_fastest.value,
            "share_low": None if self.to_fastest is None else self.to_fastest.low,
            "share_high": None if self.to_fastest is None else self.to_fastest.high,
        }


@dataclass(frozen=True, eq=False)
class Rivalry:
    """All given trees, the best tree of each of their sizes, and the fastest tree (None without costs)."""

    rivals: tuple[Rival, ...]
    curve: tuple[Evaluation, ...]
    fastest: Evaluation | None

    @property
    def fastest_rival(self) -> Rival | None:
        """The given tree with the highest predicted speed."""
        known = [rival for rival in self.rivals if rival.to_fastest is not None]
        return max(known, key=lambda rival: rival.to_fastest.value if rival.to_fastest else 0.0, default=None)

    def summary(self) -> dict[str, Any]:
        """Counts over all given trees."""
        verdicts = [rival.verdict for rival in self.rivals]
        costed = [rival.to_fastest for rival in self.rivals if rival.to_fastest is not None]
        best = self.fastest_rival
        return {
            "trees": len(self.rivals),
            "never_above_the_optimum_on_all_positions": all(
                rival.evaluation.tokens_per_step_all_positions <= rival.optimum.tokens_per_step_all_positions + ROUNDING
                for rival in self.rivals
            ),
            "replay_below_the_optimum": sum(
                rival.evaluation.tokens_per_step < rival.optimum.tokens_per_step for rival in self.rivals
            ),
            "interval_excludes_zero": verdicts.count("optimum"),
            "ties": verdicts.count("tie"),
            "same_tree": verdicts.count("same"),
            "interval_favours_the_tree": verdicts.count("rival"),
            "held_out_interval_excludes_zero": sum(
                rival.held_out is not None and rival.held_out.high < 0 for rival in self.rivals
            ),
            "held_out_interval_favours_the_tree": sum(
                rival.held_out is not None and rival.held_out.low > 0 for rival in self.rivals
            ),
            "with_known_cost": len(costed),
            "slower_than_the_fastest": sum(ratio.high < 1 for ratio in costed),
            "fastest_given": None if best is None else best.name,
            "fastest_given_share": None if best is None or best.to_fastest is None else list(_ends(best.to_fastest)),
        }


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def against_optimum(
    trees: Mapping[str, StaticTree],
    trace: RankTrace,
    cost: CostTable | None = None,
    *,
    context: int | None = None,
    batch: int = 1,
    seed: int = 0,
) -> Rivalry:
    """Set each tree, cut to the trace's depth and ranks, against the best tree of at most its size.

    Raises:
        InputError: no tree is given, or none has a node within the trace's depth and ranks.
    """
    fitting = {name: tree.clip(max_depth=trace.depth, max_rank=trace.top_k - 1) for name, tree in trees.items()}
    fitting = {name: tree for name, tree in fitting.items() if tree.num_nodes}
    if not fitting:
        raise InputError("no tree with a node to compare", where="--against", fix="name trees or files of trees")
    place: dict[str, Any] = {"context": context, "batch": batch, "seed": seed}
    source, largest = TrieSource.from_trace(trace), max(tree.num_nodes for tree in fitting.values())
    growth = grow_all(source, max_nodes=largest, max_depth=trace.depth)
    own: dict[str, tuple[Evaluation, Evaluation]] = {}
    sizes = sorted({tree.num_nodes for tree in fitting.values()})
    for size in sizes:
        same_size = list({tree.id: tree for tree in fitting.values() if tree.num_nodes == size}.values())
        best, *others = evaluate_all([growth.tree(size, trace.depth), *same_size], trace, cost, **place)
        own |= {one.id: (one, best) for one in others}
    smooth = [growth.tree(size, trace.depth) for size in range(1, min(SMOOTH_TO, largest) + 1)]
    curve = {one.num_nodes: one for one in evaluate_all(smooth, trace, cost, **place)}
    curve |= {best.num_nodes: best for _, best in own.values()}
    elsewhere = _held_out_steps(trace, sizes, seed)
    held_out = {tree.id: _held_out(trace, tree, elsewhere, seed) for tree in fitting.values()}
    fastest, shares = _shares(list(fitting.values()), source, trace, cost, largest, place)
    rivals = []
    for name, tree in fitting.items():
        enough = _nodes_to_match(growth, own[tree.id][0])
        given = trees[name].num_nodes
        rivals.append(Rival(name, given, *own[tree.id], held_out[tree.id], enough, shares.get(tree.id)))
    return Rivalry(tuple(rivals), tuple(curve[size] for size in sorted(curve)), fastest)


def _shares(
    trees: Sequence[StaticTree],
    source: TrieSource,
    trace: RankTrace,
    cost: CostTable | None,
    largest: int,
    place: dict[str, Any],
) -> tuple[Evaluation | None, dict[str, Interval]]:
    """The fastest tree, and each tree's share of its speed by id, where its cost is known."""
    if cost is None:
        return None, {}
    where = {"context": place["context"], "batch": place["batch"]}
    fastest = exact_search(source, cost, max_nodes=largest, objective=SPEED, **where).tree
    unique = list({tree.id: tree for tree in trees}.values())
    best, *others = evaluate_all([fastest, *unique], trace, cost, **place)
    return best, {one.id: one.speed_ratio for one in others if one.speed_ratio is not None}


def _held_out_steps(trace: RankTrace, sizes: Sequence[int], seed: int) -> dict[int, Ints]:
    """Size -> int64 [P], steps of each prompt with the best tree of that size chosen on the half without it."""
    halves = trace.split_halves(seed)
    if trace.num_prompts < 4 or not all(trace.select(half).num_starts for half in halves):
        return {}
    steps = {size: np.zeros(trace.num_prompts, dtype=np.int64) for size in sizes}
    for chosen_on, judged_by in (halves, halves[::-1]):
        source, other = TrieSource.from_trace(trace.select(chosen_on)), trace.select(judged_by)
        growth = grow_all(source, max_nodes=max(sizes), max_depth=trace.depth)
        for size in sizes:
            steps[size][judged_by] = replay(other, growth.tree(size, trace.depth)).steps
    return steps


def _held_out(trace: RankTrace, tree: StaticTree, steps: Mapping[int, Ints], seed: int) -> Interval | None:
    if not steps:
        return None
    run = replay(trace, tree)
    return paired_difference((run.tokens, steps[tree.num_nodes]), (run.tokens, run.steps), seed=seed)


def _nodes_to_match(growth: Growth, rival: Evaluation) -> int:
    tokens = 1.0 + np.concatenate([[0.0], np.cumsum(growth.value[growth.order(len(growth.orders))])])
    return int(np.searchsorted(tokens, rival.tokens_per_step_all_positions - ROUNDING))
