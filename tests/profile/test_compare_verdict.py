"""What a comparison says in words: the best of our methods against the next, another engine apart, all in pairs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from mtp_bench.decode.bench import ENGINE_BASELINE, VLLM_BASELINE, BenchRow
from mtp_bench.profile.compare import over_others, verdict, write_decoded_csv

PROMPTS = 6
MS_PER_TOKEN = {ENGINE_BASELINE: 40.0, "medusa": 25.0, "eagle": 20.0}


def rows(ms_per_token: dict[str, float]) -> list[BenchRow]:
    """Every arm is as fast on every prompt, so that intervals are points."""
    return [
        BenchRow(arm, str(prompt), "coding", 0, 11 + prompt, 5, 0.1, (10 + prompt) * ms / 1e3, None, False)
        for prompt in range(PROMPTS)
        for arm, ms in ms_per_token.items()
    ]


def methods(ms_per_token: dict[str, float]) -> list[dict[str, Any]]:
    return [{"name": arm.upper(), "arm": arm, "tokens_per_s": 1e3 / ms} for arm, ms in ms_per_token.items()]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "EAGLE 1.25x the speed of MEDUSA on these prompts [1.25, 1.25]"),
        ({"eagle": 25.0}, "tie: MEDUSA 1.00x the speed of EAGLE on these prompts [1.00, 1.00]"),
        ({VLLM_BASELINE: 30.0}, "EAGLE 1.25x the speed of MEDUSA on these prompts [1.25, 1.25]"),
        (
            {VLLM_BASELINE: 10.0},
            "EAGLE 1.25x the speed of MEDUSA on these prompts [1.25, 1.25]; "
            "BASELINE:VLLM 2.00x the speed of EAGLE on these prompts [2.00, 2.00]",
        ),
    ],
)
def test_verdict(more: dict[str, float], text: str) -> None:
    speeds = {**MS_PER_TOKEN, **more}
    assert verdict(rows(speeds), methods(speeds), seed=0) == text


def test_the_fastest_is_held_against_all_others() -> None:
    speeds = {**MS_PER_TOKEN, VLLM_BASELINE: 10.0}
    plain, fastest = over_others(rows(speeds), methods(speeds), seed=0)
    assert (plain["arm"], fastest["arm"]) == (ENGINE_BASELINE, "eagle")
    assert {one["arm"]: one["value"] for one in plain["over"]} == {VLLM_BASELINE: pytest.approx(0.25)}
    assert {one["arm"]: one["value"] for one in fastest["over"]} == {
        "medusa": pytest.approx(1.25),
        VLLM_BASELINE: pytest.approx(0.5),
    }


def test_what_was_decoded_is_kept(tmp_path: Path) -> None:
    own = rows(MS_PER_TOKEN)
    write_decoded_csv(tmp_path / "decoded.csv", own)
    with open(tmp_path / "decoded.csv", newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == len(own)
    assert [(one["arm"], one["prompt_id"], float(one["decode_s"])) for one in lines] == [
        (one.arm, one.prompt_id, one.decode_s) for one in own
    ]
    assert sum(int(one["tokens"]) - int(one["first_tokens"]) for one in lines) == sum(
        one.tokens_in_steps for one in own
    )
