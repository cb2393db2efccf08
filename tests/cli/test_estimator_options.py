"""``optimize-tree --estimator``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acceptance_cases import hidden_difficulty_trace

from mtp_bench.cli import run
from mtp_bench.cli.robustness import _faster
from mtp_bench.search.robustness.comparison import Compared
from mtp_bench.trace import Interval

COST = "rows,median_ms\n1,10.0\n16,11.0\n64,14.0\n"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    hidden_difficulty_trace(0, prompts=10, length=60).save(tmp_path / "trace.npz")
    (tmp_path / "cost.csv").write_text(COST)
    files = ["--profile", str(tmp_path / "trace.npz"), "--cost", str(tmp_path / "cost.csv")]
    return ["optimize-tree", *files, "--trials", "0", "--budget", "31", "--out", str(tmp_path / "top.json")]


def searched(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert run([*arguments, "--json"]) == 0
    output = capsys.readouterr().out
    return json.loads(output.strip().splitlines()[-1]), output


def test_every_estimator_is_compared_and_the_chosen_one_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    default, output = searched(arguments, capsys)
    assert default["estimator"] == "trie"
    assert "trie *" in output
    assert "chosen size: 500 resamples of the prompts (seed 0)" in output
    assert "(gap " in output
    named = {one["estimator"]: one for one in default["estimators"]}
    for estimator, figures in named.items():
        document, output = searched([*arguments, "--estimator", estimator], capsys)
        assert f"{estimator} *" in output
        assert document["estimator"] == estimator
        assert document["static"]["num_nodes"] == figures["num_nodes"]
        assert document["static"]["tokens_per_step"] == pytest.approx(figures["tokens_per_step"])
        assert document["held_out"]["optimism"] == pytest.approx(figures["optimism"])
        assert ("refit: all positions: " in output) == (estimator == "refit")
    short, _ = searched([*arguments, "--independent"], capsys)
    assert short["estimator"] == "independent"
    assert short["paths"] == searched([*arguments, "--estimator", "independent"], capsys)[0]["paths"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--estimator", "magic"], "unknown estimator 'magic'"),
        (["--estimator", "refit", "--independent"], "give one of the two"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "top.json").exists()


def test_rates_alone_are_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.json").write_text(json.dumps({"kind": "per_rank", "rates": [[0.6, 0.2], [0.4, 0.1]]}))
    arguments = ["optimize-tree", "--acceptance", str(tmp_path / "rates.json"), "--trials", "0"]
    out = ["--objective", "tokens", "--budget", "3", "--out", str(tmp_path / "top.json")]
    assert run([*arguments, *out, "--estimator", "shrunk"]) == 2
    assert "cannot be shrunk" in capsys.readouterr().err
    assert run([*arguments, *out, "--independent"]) == 0


def compared(name: str, tokens_per_s: float, ratio: tuple[float, float, float] | None) -> Compared:
    interval = None if ratio is None else Interval(*ratio)
    return Compared(name, 7, 2, (7, 7), 1.9, 1.8, tokens_per_s, 1.8, 1.8, None, 0.0, None, interval)


def test_another_estimator_is_recommended_only_when_it_wins_here_and_held_out() -> None:
    first = compared("trie", 30.0, None)
    assert _faster([first, compared("refit", 31.0, (1.02, 1.01, 1.03))]) == ("refit", Interval(1.02, 1.01, 1.03))
    assert _faster([first, compared("refit", 30.0, (1.02, 1.01, 1.03))]) is None
    assert _faster([first, compared("refit", 31.0, (1.02, 0.99, 1.05))]) is None
