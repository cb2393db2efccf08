"""Throughput against the batch size: measured beside predicted, per batch and topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtp_bench.cost import DeviceLimits, StepWork
from mtp_bench.decode.bench import ENGINE_BASELINE
from mtp_bench.decode.throughput import ThroughputRow
from mtp_bench.profile.costs import StepCost
from mtp_bench.topology import StaticTree, Topology
from mtp_bench.trace import RankTrace, batch_passes, paired_ratio, replay

SCHEMA = "mtp-bench/throughput"


def throughput_document(
    rows: Sequence[ThroughputRow],
    trees: Mapping[str, Topology],
    trace: RankTrace,
    costs: Mapping[int, Mapping[str, StepCost]],
    work: Mapping[int, Mapping[str, StepWork]],
    limits: DeviceLimits,
    *,
    block: int,
    seed: int = 0,
) -> dict[str, Any]:
    """The document of ``throughput.json``.

    Args:
        trace: of the benched prompts, in the order in which they were queued.
        costs: of a step, by batch size and arm; work: what it moves and computes.
        block: prompts per queue.
    """
    shapes: dict[str, Topology] = {ENGINE_BASELINE: StaticTree(()), **trees}
    repeats = 1 + max(row.repeat for row in rows)
    points = []
    for batch in sorted({row.batch for row in rows}):  # they were decoded in random order
        by_arm = {arm: [row for row in rows if (row.arm, row.batch) == (arm, batch)] for arm in shapes}
        for arm, own in by_arm.items():
            measured = _measured(own, by_arm[ENGINE_BASELINE], seed)
            passes = repeats * _passes(trace, shapes[arm], batch, block)
            predicted = 1e3 * measured["tokens"] / (passes * costs[batch][arm].step_ms)
            points.append(
                {
                    "tree": arm,
                    "num_nodes": shapes[arm].num_nodes,
                    "depth": shapes[arm].depth,
                    "batch": batch,
                    **measured,
                    "verify_ms": costs[batch][arm].verify_ms,
                    "draft_ms": costs[batch][arm].draft_ms,
                    "predicted_passes": passes,
                    "predicted_tokens_per_s": predicted,
                    "prediction_error": predicted / measured["tokens_per_s"] - 1,
                    "tokens_per_s_per_request": measured["tokens_per_s"] / batch,
                    "work": work[batch][arm].figures(measured["pass_ms"], limits),
                }
            )
    return {"schema": SCHEMA, "version": 1, "block": block, "repeats": repeats, "points": points}


def _measured(own: Sequence[ThroughputRow], baseline: Sequence[ThroughputRow], seed: int) -> dict[str, Any]:
    """Pooled figures of one arm at one batch size, and its speedup over the baseline there, blocks paired."""
    tokens, passes = sum(row.tokens for row in own), sum(row.passes for row in own)
    seconds = sum(row.decode_s for row in own)
    ratio = paired_ratio(_tokens_and_seconds(baseline), _tokens_and_seconds(own), seed=seed)
    return {
        "tokens": tokens,
        "passes": passes,
        "tokens_per_step": tokens / sum(row.steps for row in own),
        "pass_ms": 1e3 * seconds / passes,
        "tokens_per_s": tokens / seconds,
        "speedup": (tokens / seconds) / _pooled(baseline),
        "speedup_ci": list(ratio.bounds) if ratio else None,
        "prefill_s": sum(row.prefill_s for row in own),
        "differing": sum(row.differing for row in own),
        "requests": sum(row.requests for row in own),
    }


def _passes(trace: RankTrace, tree: Topology, batch: int, block: int) -> int:
    """Passes that the queues of all blocks take, by replay."""
    steps = replay(trace, tree).steps.tolist()
    return sum(batch_passes(steps[start : start + block], batch) for start in range(0, len(steps), block))


def _tokens_and_seconds(rows: Sequence[ThroughputRow]) -> tuple[list[int], list[float]]:
    """By block, summed over repeats."""
    blocks = sorted({row.block for row in rows})
    tokens = [sum(row.tokens for row in rows if row.block == block) for block in blocks]
    seconds = [sum(row.decode_s for row in rows if row.block == block) for block in blocks]
    return tokens, seconds


def _pooled(rows: Sequence[ThroughputRow]) -> float:
    return sum(row.tokens for row in rows) / sum(row.decode_s for row in rows)
