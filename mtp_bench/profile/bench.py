"""Real decoding beside the prediction: tokens/s, speedups with paired intervals, losslessness, prediction error."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mtp_bench.cost import CostTable
from mtp_bench.decode.bench import ENGINE_BASELINE, HF_BASELINE, VLLM_BASELINE, VLLM_LOOKUP, BenchRow
from mtp_bench.errors import InputError
from mtp_bench.files import write_text
from mtp_bench.profile.costs import StepCost
from mtp_bench.topology import StaticTree, Topology
from mtp_bench.trace import RankTrace, paired_ratio, ratio_interval, replay

SCHEMA = "mtp-bench/bench"
# Other engines, as the document calls them.
OTHERS = {"hf": HF_BASELINE, "vllm": VLLM_BASELINE, "vllm_lookup": VLLM_LOOKUP}


@dataclass(frozen=True)
class Predictor:
    """Predicts an arm's tokens/s: tokens per step by replaying the benched prompts, over the cost of a step.

    Attributes:
        steps: costs of the arms' very steps, timed in between the decoding.
        cost: the run's table, measured when it was profiled; None without one, or one of another engine.
        context: cached tokens at which the table is read.
    """

    trace: RankTrace
    steps: Mapping[str, StepCost]
    cost: CostTable | None = None
    context: int | None = None

    def tokens_per_s(self, arm: str, tree: Topology) -> float | None:
        """By the steps timed beside the decoding; None for an arm that was not timed."""
        if arm not in self.steps:
            return None
        return 1e3 * replay(self.trace, tree).tokens_per_step / self.steps[arm].step_ms

    def from_profile(self, tree: Topology) -> float | None:
        """By the run's own costs; None where they are not known.

        The engine runs exactly the tree's rows, so the cost at these rows is taken, not the envelope above them.
        """
        if self.cost is None:
            return None
        try:
            step_ms = self.cost.topology_ms(tree, context=self.context, padded=False)
        except InputError:
            return None
        return 1e3 * replay(self.trace, tree).tokens_per_step / step_ms


def summarize(
    rows: Sequence[BenchRow], trees: Mapping[str, Topology], predictor: Predictor, *, exact: bool, seed: int = 0
) -> dict[str, Any]:
    """The document of ``bench.json``.

    Args:
        exact: whether outputs must be identical (fp32); else a divergence must be a near-tie.
    """
    arms = list(dict.fromkeys(row.arm for row in rows))
    baseline = {"engine": _predicted_figures(rows, ENGINE_BASELINE, StaticTree(()), predictor, exact)}
    others = {key: arm for key, arm in OTHERS.items() if arm in arms}
    for key, arm in others.items():
        baseline[key] = arm_figures(rows, arm, None, exact)
        baseline["engine"][f"speedup_over_{key}"] = speedup_between(rows, arm, ENGINE_BASELINE, seed)
    tree_documents = []
    for name, tree in trees.items():
        document = _predicted_figures(rows, name, tree, predictor, exact)
        over_engine = speedup_between(rows, ENGINE_BASELINE, name, seed)
        document |= {"tree": name, "num_nodes": tree.num_nodes, "depth": tree.depth, "id": tree.id}
        document |= {"speedup": over_engine["value"], "speedup_ci": over_engine["ci"]}
        for key, arm in others.items():
            document[f"speedup_over_{key}"] = speedup_between(rows, arm, name, seed)
        replayed = replay(predictor.trace, tree)
        document["replayed_steps"] = replayed.total_steps
        tree_documents.append(document)
    return {"schema": SCHEMA, "version": 1, "baseline": baseline, "trees": tree_documents}


def _predicted_figures(
    rows: Sequence[BenchRow], arm: str, tree: Topology, predictor: Predictor, exact: bool
) -> dict[str, Any]:
    """``arm_figures``, and beside them what the run's own costs had promised."""
    document = arm_figures(rows, arm, predictor.tokens_per_s(arm, tree), exact)
    promised = predictor.from_profile(tree)
    error = None if promised is None else promised / document["tokens_per_s"] - 1
    return document | {"profile_tokens_per_s": promised, "profile_error": error}


def arm_figures(rows: Sequence[BenchRow], arm: str, predicted: float | None, exact: bool) -> dict[str, Any]:
    """Pooled figures of one arm; ``exact``: whether every divergence counts as a loss."""
    own = [row for row in rows if row.arm == arm]
    tokens, steps = sum(row.tokens_in_steps for row in own), sum(row.steps for row in own)
    seconds = sum(row.decode_s for row in own)
    by_prompt = _by_prompt(own)
    interval = ratio_interval(by_prompt[0], by_prompt[1])
    divergences = [row for row in own if row.first_divergence is not None]
    unexplained = [row for row in divergences if exact or not row.tie]
    measured = tokens / seconds
    return {
        "tokens": sum(row.tokens for row in own),
        "tokens_in_steps": tokens,
        "steps": steps,
        "tokens_per_step": tokens / steps,
        "prefill_s": sum(row.prefill_s for row in own),
        "decode_s": seconds,
        "step_ms": 1e3 * seconds / steps,
        "tokens_per_s": measured,
        "tokens_per_s_ci": list(interval.bounds) if interval else None,
        "tokens_per_s_mean_of_prompts": float(np.mean([t / s for t, s in zip(*by_prompt, strict=True)])),
        "lossless": not unexplained,
        "divergences": len(divergences),
        "divergences_at_near_ties": sum(row.tie for row in divergences),
        "runs": len(own),
        "predicted_tokens_per_s": predicted,
        "prediction_error": None if predicted is None else predicted / measured - 1,
    }


def _by_prompt(rows: Sequence[BenchRow]) -> tuple[list[int], list[float]]:
    """Tokens and seconds summed over repeats, by prompt in order of first appearance."""
    names = list(dict.fromkeys(row.prompt_id for row in rows))
    tokens = [sum(row.tokens_in_steps for row in rows if row.prompt_id == name) for name in names]
    seconds = [sum(row.decode_s for row in rows if row.prompt_id == name) for name in names]
    return tokens, seconds


def speedup_between(rows: Sequence[BenchRow], first: str, second: str, seed: int) -> dict[str, Any]:
    """Decode speed of ``second`` over ``first``, prompts resampled in pairs."""
    one, other = (_by_prompt([row for row in rows if row.arm == arm]) for arm in (first, second))
    ratio = paired_ratio(one, other, seed=seed)
    if ratio is None:
        return {"value": (sum(other[0]) / sum(other[1])) / (sum(one[0]) / sum(one[1])), "ci": None}
    return {"value": ratio.value, "ci": list(ratio.bounds)}


def write_bench_csv(path: Path, rows: Sequence[BenchRow], trees: Mapping[str, Topology], predictor: Predictor) -> None:
    """One line per arm, prompt and repeat; ``tokens`` are those emitted while ``decode_s`` ran (all but the first)."""
    names = predictor.trace.prompt_ids
    alone = {name: replace(predictor, trace=predictor.trace.select([i])) for i, name in enumerate(names)}
    shapes: dict[str, Topology] = {ENGINE_BASELINE: StaticTree(()), **trees}
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        [
            "tree",
            "num_nodes",
            "depth",
            "baseline",
            "prompt_id",
            "category",
            "repeat",
            "tokens",
            "steps",
            "tokens_per_step",
            "prefill_s",
            "decode_s",
            "tokens_per_s",
            "predicted_tokens_per_s",
            "lossless",
            "first_divergence",
            "near_tie",
        ]
    )
    for row in rows:
        tree = shapes.get(row.arm)
        predicted = alone[row.prompt_id].tokens_per_s(row.arm, tree) if tree is not None else None
        writer.writerow(
            [
                row.arm, tree.num_nodes if tree else 0, tree.depth if tree else 0, ENGINE_BASELINE, row.prompt_id,
                row.category, row.repeat, row.tokens_in_steps, row.steps,
                f"{row.tokens_in_steps / row.steps:.4f}" if row.steps else "",
                f"{row.prefill_s:.6f}", f"{row.decode_s:.6f}", f"{row.tokens_in_steps / row.decode_s:.3f}",
                "" if predicted is None else f"{predicted:.3f}",
                row.first_divergence is None, "" if row.first_divergence is None else row.first_divergence, row.tie,
            ]
        )  # fmt: skip
    write_text(path, stream.getvalue())
