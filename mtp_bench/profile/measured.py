"""The race of ``optimize-tree --measure`` by real decoding, and what it says: predicted and measured side by side."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import ENGINE_BASELINE, Contender, bench_row, engine_arms
from mtp_bench.decode.generate import Generation
from mtp_bench.files import write_text
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.bench import Predictor
from mtp_bench.search.race.candidates import BASELINE, Candidate
from mtp_bench.search.race.run import Heat, Lap, Race
from mtp_bench.search.race.verdict import Verdict, decide
from mtp_bench.topology import StaticTree
from mtp_bench.trace import Interval, replay

LAP_COLUMNS = (
    "candidate", "num_nodes", "prompt_id", "category", "tokens", "steps", "decode_s", "ms_per_token", "log_speedup",
    "diverged", "lossless",
)  # fmt: skip


def decoding_heat(base: BaseModel, heads: AnyHeads, candidates: Sequence[Candidate], answers: Sequence[Answer]) -> Heat:
    """Decodes an answer's prompt with the candidates named, in that order; the first call warms all of them up.

    A text that is not the baseline's is lossless only where rounding explains it, in fp32 never.
    """
    contenders = {one.name: Contender(one.topology, heads) for one in candidates}
    arms = engine_arms(base, contenders, answers)
    warm: list[Callable[[Answer], Generation]] = list(arms.values())

    def heat(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        while warm:
            warm.pop()(answers[0])
        answer = answers[prompt]
        outcome = {name: arms[name](answer) for name in names}
        return {name: _lap(base, name, answer, outcome) for name in names}

    return heat


def _lap(base: BaseModel, name: str, answer: Answer, outcome: Mapping[str, Generation]) -> Lap:
    row = bench_row(base, name, 0, answer, {**outcome, ENGINE_BASELINE: outcome[BASELINE]})
    diverged = row.first_divergence is not None
    explained = row.tie and base.dtype != torch.float32
    return Lap(row.tokens_in_steps, row.steps, row.decode_s, diverged, explained or not diverged)


def measured_document(race: Race, candidates: Sequence[Candidate], predictor: Predictor) -> dict[str, Any]:
    """The ``measured`` object of ``optimize.json``.

    Args:
        predictor: with the trace of the race's prompts and the costs that the candidates were chosen by; a candidate's
            prediction is for the prompts that it decoded.
    """
    verdict = decide(race)
    return {
        "rules": {
            "pruner": "optuna.pruners.WilcoxonPruner",
            "statistic": "ms per token, paired by prompt",
            "p_threshold": race.rules.p_threshold,
            "n_startup_steps": race.rules.startup_prompts,
            "seed": race.rules.seed,
        },
        "prompts": race.prompts,
        "decodes": race.decodes,
        "decodes_without_stopping": race.prompts * len(candidates),
        "winner": verdict.winner,
        "fastest": verdict.fastest,
        "tied": list(verdict.tied),
        "decided_by": verdict.rule,
        "runner_up": verdict.runner_up,
        "runner_up_to_winner": _ratio(verdict.ratio),
        "candidates": [_figures(race, one, verdict, predictor) for one in candidates],
    }


def _figures(race: Race, one: Candidate, verdict: Verdict, predictor: Predictor) -> dict[str, Any]:
    laps = race.laps[one.name].values()
    own = Predictor(predictor.trace.select(sorted(race.laps[one.name])), {}, predictor.cost, predictor.context)
    predicted, plain = own.from_profile(one.topology), own.from_profile(StaticTree(()))
    measured = race.tokens_per_s(one.name)
    return {
        "name": one.name,
        "id": one.topology.id,
        "why": one.why,
        "num_nodes": one.topology.num_nodes,
        "depth": one.topology.depth,
        "prompts": len(laps),
        "outcome": race.outcomes[one.name],
        "predicted_tokens_per_s": predicted,
        "tokens_per_s": measured,
        "tokens_per_s_ci": _bounds(race.tokens_per_s_interval(one.name)),
        "prediction_error": None if predicted is None else predicted / measured - 1,
        "predicted_speedup": None if predicted is None or plain is None else predicted / plain,
        "speedup": _ratio(race.speed_ratio(one.name, over=BASELINE)),
        "speed_to_winner": _ratio(race.speed_ratio(one.name, over=verdict.winner)),
        "tokens_per_step": sum(lap.tokens for lap in laps) / sum(lap.steps for lap in laps),
        "replayed_tokens_per_step": replay(own.trace, one.topology).tokens_per_step,
        "lossless": all(lap.lossless for lap in laps),
        "divergences": sum(lap.diverged for lap in laps),
    }


def write_laps(path: Path, race: Race, answers: Sequence[Answer]) -> None:
    """One line per candidate and prompt; ``log_speedup``: natural log of its speed over N = 0's on that prompt."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(LAP_COLUMNS)
    for name, laps in race.laps.items():
        for prompt, lap in laps.items():
            gain = math.log(race.laps[BASELINE][prompt].ms_per_token / lap.ms_per_token)
            writer.writerow(
                [
                    name, race.nodes(name), answers[prompt].id, answers[prompt].category, lap.tokens, lap.steps,
                    f"{lap.seconds:.6f}", f"{lap.ms_per_token:.4f}", f"{gain:.5f}", lap.diverged, lap.lossless,
                ]
            )  # fmt: skip
    write_text(path, stream.getvalue())


def _bounds(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval.bounds)


def _ratio(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else {"value": interval.value, "ci": list(interval.bounds)}
