"""Bench figures from hand-made rows, against numbers worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.decode.bench import ENGINE_BASELINE, HF_BASELINE, BenchRow
from mtp_bench.profile.bench import Predictor, summarize, write_bench_csv
from mtp_bench.profile.costs import StepCost
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace

CHAIN = StaticTree.from_paths([(0,), (0, 0)])
TREES = {"chain": CHAIN}
PROMPTS = ("a", "b")
# Both texts have 11 tokens, so 10 are emitted in steps. On "a" the chain accepts 2, 2, 2, then the last one alone;
# on "b" nothing.
STEPS = {"a": 4, "b": 10}
# Timed in between the decoding, on a machine that has become slower since the run's costs were measured.
TIMED = {ENGINE_BASELINE: StepCost(10.5, 0.0), "chain": StepCost(12.5, 1.25)}


def trace() -> RankTrace:
    ranks = np.full((22, 2), -1, dtype=np.int16)
    ranks[:10, 0] = 0
    ranks[:9, 1] = 0
    return RankTrace(ranks, np.array([0, 11, 22]), 4, PROMPTS, ("writing", "coding"))


def cost() -> CostTable:
    verify = [CostPoint(rows=rows, median_ms=ms, context=100) for rows, ms in ((1, 10.0), (3, 12.0), (4, 11.0))]
    return CostTable((*verify, CostPoint(component="draft", depth=2, median_ms=1.0, context=100)))


def row(
    arm: str, prompt: str, ms_per_step: float, repeat: int = 0, divergence: int | None = None, tie: bool = False
) -> BenchRow:
    steps = STEPS[prompt] if arm == "chain" else 10
    category = "writing" if prompt == "a" else "coding"
    return BenchRow(arm, prompt, category, repeat, 11, steps, 0.05, steps * ms_per_step / 1e3, divergence, tie)


def rows(divergence: int | None = None, tie: bool = False) -> list[BenchRow]:
    return [
        row(arm, prompt, {ENGINE_BASELINE: 10.0, HF_BASELINE: 20.0, "chain": 14.0}[arm], repeat, *marks)
        for repeat in range(2)
        for prompt in PROMPTS
        for arm in (ENGINE_BASELINE, HF_BASELINE, "chain")
        for marks in [(divergence, tie) if (arm, prompt, repeat) == ("chain", "b", 1) else (None, False)]
    ]


def test_figures() -> None:
    document = summarize(rows(), TREES, Predictor(trace(), TIMED, cost(), 100), exact=True)
    engine, hf = document["baseline"]["engine"], document["baseline"]["hf"]
    [chain] = document["trees"]
    assert engine["tokens"] == hf["tokens"] == chain["tokens"] == 44
    assert engine["tokens_in_steps"] == chain["tokens_in_steps"] == 40
    assert (engine["steps"], chain["steps"]) == (40, 28)
    assert engine["tokens_per_step"] == 1.0
    assert chain["tokens_per_step"] == pytest.approx(40 / 28)
    assert engine["tokens_per_s"] == pytest.approx(100.0)
    assert hf["tokens_per_s"] == pytest.approx(50.0)
    assert chain["step_ms"] == pytest.approx(14.0)
    assert chain["tokens_per_s"] == pytest.approx(1e3 * 40 / 28 / 14)
    assert chain["prefill_s"] == pytest.approx(0.2)
    assert chain["speedup"] == pytest.approx(10 * 40 / 28 / 14)
    assert chain["speedup_over_hf"]["value"] == pytest.approx(20 * 40 / 28 / 14)
    assert engine["speedup_over_hf"]["value"] == pytest.approx(2.0)
    low, high = chain["speedup_ci"]
    assert low <= chain["speedup"] <= high
    # By prompt: 10 tokens in 4 and in 10 steps of 14 ms.
    assert chain["tokens_per_s_mean_of_prompts"] == pytest.approx((10 / 0.056 + 10 / 0.14) / 2)
    assert (chain["num_nodes"], chain["depth"], chain["id"]) == (2, 2, CHAIN.id)


def test_prediction() -> None:
    document = summarize(rows(), TREES, Predictor(trace(), TIMED, cost(), 100), exact=True)
    [chain] = document["trees"]
    assert chain["replayed_steps"] == 14
    # Replay: 20 tokens in 14 steps.
    predicted = 1e3 * 20 / 14 / 13.75
    assert chain["predicted_tokens_per_s"] == pytest.approx(predicted)
    assert chain["prediction_error"] == pytest.approx(predicted / chain["tokens_per_s"] - 1)
    # By the run's costs: 12 ms and 1 ms of drafting. That 4 rows cost less than 3 is no help to an engine that runs 3.
    promised = 1e3 * 20 / 14 / 13
    assert chain["profile_tokens_per_s"] == pytest.approx(promised)
    assert chain["profile_error"] == pytest.approx(promised / chain["tokens_per_s"] - 1)
    engine = document["baseline"]["engine"]
    assert engine["predicted_tokens_per_s"] == pytest.approx(1e3 / 10.5)
    assert engine["prediction_error"] == pytest.approx(10 / 10.5 - 1)
    assert engine["profile_tokens_per_s"] == pytest.approx(100.0)
    assert engine["profile_error"] == pytest.approx(0.0)
    assert document["baseline"]["hf"]["predicted_tokens_per_s"] is None


def test_no_cost_no_prediction() -> None:
    wide = StaticTree.from_paths([(rank,) for rank in range(9)])
    for known in (None, cost()):
        predictor = Predictor(trace(), {}, known, 100)
        assert predictor.from_profile(wide) is None, "beyond the rows that were measured"
    [chain] = summarize(rows(), TREES, Predictor(trace(), {}), exact=True)["trees"]
    for name in ("predicted_tokens_per_s", "prediction_error", "profile_tokens_per_s", "profile_error"):
        assert chain[name] is None


@pytest.mark.parametrize(
    ("divergence", "tie", "exact", "lossless"),
    [
        (None, False, True, True),
        (None, False, False, True),
        (3, False, True, False),
        (3, True, True, False),
        (3, False, False, False),
        (3, True, False, True),
    ],
)
def test_lossless(divergence: int | None, tie: bool, exact: bool, lossless: bool) -> None:
    document = summarize(rows(divergence, tie), TREES, Predictor(trace(), TIMED, cost(), 100), exact=exact)
    [chain] = document["trees"]
    assert chain["lossless"] is lossless
    assert chain["divergences"] == (divergence is not None)
    assert chain["divergences_at_near_ties"] == tie
    assert chain["runs"] == 4
    assert document["baseline"]["engine"]["lossless"] is True


def test_without_hugging_face() -> None:
    own = [one for one in rows() if one.arm != HF_BASELINE]
    document = summarize(own, TREES, Predictor(trace(), TIMED, cost(), 100), exact=True)
    assert set(document["baseline"]) == {"engine"}
    assert "speedup_over_hf" not in document["trees"][0]


def test_one_prompt_has_no_interval() -> None:
    own = [one for one in rows() if one.prompt_id == "a"]
    [chain] = summarize(own, TREES, Predictor(trace().select([0]), TIMED, cost(), 100), exact=True)["trees"]
    assert chain["speedup"] == pytest.approx(2.5 * 10 / 14)
    assert chain["speedup_ci"] is None
    assert chain["tokens_per_s_ci"] is None


def test_csv(tmp_path: Path) -> None:
    write_bench_csv(tmp_path / "bench.csv", rows(3, True), TREES, Predictor(trace(), TIMED, cost(), 100))
    lines = list(csv.DictReader((tmp_path / "bench.csv").open()))
    assert len(lines) == 12
    spoiled = [line for line in lines if line["lossless"] == "False"]
    assert [(line["tree"], line["prompt_id"], line["repeat"]) for line in spoiled] == [("chain", "b", "1")]
    assert (spoiled[0]["first_divergence"], spoiled[0]["near_tie"]) == ("3", "True")
    first = next(line for line in lines if line["tree"] == "chain" and line["prompt_id"] == "a")
    assert (first["tokens"], first["steps"], first["tokens_per_step"]) == ("10", "4", "2.5000")
    assert float(first["tokens_per_s"]) == pytest.approx(10 / 0.056, abs=1e-3)
    # The prompt's own replay, not the mean of all.
    assert float(first["predicted_tokens_per_s"]) == pytest.approx(2500 / 13.75, abs=1e-3)
    assert next(line for line in lines if line["tree"] == HF_BASELINE)["predicted_tokens_per_s"] == ""
    write_bench_csv(tmp_path / "again.csv", rows(3, True), TREES, Predictor(trace(), TIMED, cost(), 100))
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "bench.csv").read_bytes()
