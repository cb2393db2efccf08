"""``optimize-tree --measure`` from the command line, on a tiny model with an EAGLE draft, decoded for real in fp32."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_models import one_thread, random_eagle, save_tiny_model, tiny_base

from mtp_bench.cli import run as run_command
from mtp_bench.heads.eagle.checkpoint import save_eagle
from mtp_bench.profile import costs, measured
from mtp_bench.search.race.run import Lap
from mtp_bench.topology import read_document

__all__ = ["one_thread"]

RACE = ["--budget", "15", "--trials", "0", "--measure", "--measure-limit", "8", "--measure-candidates", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A profiled run; steps of a tiny model spread by any factor on a busy machine, which is not looked at here."""
    folder = tmp_path_factory.mktemp("measured")
    base = tiny_base("llama")
    save_tiny_model(base, folder / "model")
    save_eagle(random_eagle(base, aux_layers=(0, 1, 2)), folder / "eagle", {"base_model_name_or_path": "model"})
    prompts = [{"turns": [f"w{i} w{2 * i} w7 w3"], "category": "xy"[i % 2], "question_id": i} for i in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "UNSTABLE_SPREAD", 1e9)
        assert not run_command([
            "profile", "--model", str(folder / "model"), "--heads", str(folder / "eagle"), "--dtype", "fp32",
            "--prompts", str(folder / "prompts.jsonl"), "--out", str(folder / "run"), "--max-new-tokens", "20",
            "--max-rows", "16", "--rounds", "3", "--context", "32", "--raw", "--dynamic-top-k", "2,3", "--depth", "3",
            "--aux-layers", "0,1,2",
        ])  # fmt: skip
        yield folder


def race(folder: Path, capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    arguments = ["optimize-tree", "--profile", str(folder / "run"), *RACE, *more, "--json"]
    assert run_command(arguments) == code
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])  # type: ignore[no-any-return]


def test_the_measured_winner_is_written_with_all_that_was_seen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = race(folder, capsys)
    result = document["measured"]
    run = folder / "run"
    stored = json.loads((run / "optimize.json").read_text())
    assert stored == {"schema": "mtp-bench/optimize", "version": 1, **document}
    by_name = {one["name"]: one for one in result["candidates"]}
    assert {"baseline", "best static", "best chain", "best dynamic"} >= {one["why"] for one in result["candidates"][:3]}
    assert 2 <= len(by_name) <= 5
    for one in by_name.values():
        assert one["lossless"]
        assert one["divergences"] == 0
        # Real decoding takes exactly the replayed steps in fp32.
        assert one["tokens_per_step"] == pytest.approx(one["replayed_tokens_per_step"], abs=1e-12)
        assert one["predicted_tokens_per_s"] > 0
        assert one["tokens_per_s_ci"][0] <= one["tokens_per_s"] <= one["tokens_per_s_ci"][1]
        assert one["outcome"] in ("finished", "slower")
        assert (one["prompts"] == result["prompts"]) >= (one["outcome"] == "finished")
    assert by_name["none"]["prompts"] == result["prompts"]
    assert by_name["none"]["speedup"]["value"] == 1
    topology = read_document(run / "topology.json")
    assert topology.topology.id == by_name[result["winner"]]["id"]
    assert topology.expected["tokens_per_second"] == by_name[result["winner"]]["tokens_per_s"]
    with open(run / "measured.csv") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == result["decodes"] == sum(one["prompts"] for one in by_name.values())
    for name, one in by_name.items():
        own = [line for line in lines if line["candidate"] == name]
        tokens, seconds = (sum(float(line[key]) for line in own) for key in ("tokens", "decode_s"))
        assert tokens / seconds == pytest.approx(one["tokens_per_s"], rel=1e-3)
    assert not (run / "race.jsonl").exists()
    assert (run / "plots" / "measured.png").exists()


def test_a_race_that_was_interrupted_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measured.decoding_heat
    decoded: list[int] = []

    def interrupted_at(limit: int) -> Any:
        def heats(*arguments: Any) -> Any:
            heat = real(*arguments)

            def one(prompt: int, names: Sequence[str]) -> Any:
                if len(decoded) == limit:
                    raise KeyboardInterrupt
                decoded.append(prompt)
                return heat(prompt, names)

            return one

        return heats

    monkeypatch.setattr(measured, "decoding_heat", interrupted_at(3))
    assert run_command(["optimize-tree", "--profile", str(folder / "run"), *RACE]) == 130
    monkeypatch.setattr(measured, "decoding_heat", interrupted_at(99))
    result = race(folder, capsys)["measured"]
    assert result["resumed_prompts"] == 3
    assert len(decoded) == len(set(decoded)) == result["prompts"]
    # What is over is measured anew.
    decoded.clear()
    assert race(folder, capsys)["measured"]["resumed_prompts"] == 0
    assert len(decoded) == result["prompts"]


def test_wrong_text_is_out_with_exit_code_3(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that were accepted unchecked would be the fastest, and must not win."""
    real = measured.engine_arms

    def wrong(base: Any, contenders: Any, answers: Any) -> Any:
        arms = real(base, contenders, answers)
        [name] = set(arms) - {"none"}
        honest = arms[name]

        def cheat(answer: Any) -> Any:
            generation = honest(answer)
            generation.tokens[-1] = (generation.tokens[-1] + 1) % 24
            generation.decode_s /= 100
            return generation

        return {**arms, name: cheat}

    monkeypatch.setattr(measured, "engine_arms", wrong)
    result = race(folder, capsys, "--kind", "chain", code=3)["measured"]
    [cheat] = [one for one in result["candidates"] if one["name"] != "none"]
    assert cheat["outcome"] == "not lossless"
    assert not cheat["lossless"]
    assert cheat["prompts"] == 1
    assert result["winner"] == "none"
    assert read_document(folder / "run" / "topology.json").topology.num_nodes == 0


def test_laps_know_whether_rounding_explains_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Row:
        tokens_in_steps, steps, decode_s, first_divergence, tie = 9, 3, 0.5, 4, True

    monkeypatch.setattr(measured, "bench_row", lambda *_: Row)
    for dtype, lossless in ((torch.bfloat16, True), (torch.float32, False)):
        base: Any = type("Base", (), {"dtype": dtype})
        assert measured._lap(base, "a", None, {"none": None}) == Lap(9, 3, 0.5, True, lossless)  # type: ignore[arg-type, dict-item]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch", "1,2"], "one request at a time"),
        (["--objective", "tokens"], "won by speed"),
        (["--profile", "RUN/trace.npz"], "nothing to decode"),
        (["--acceptance", "RUN/acceptance.csv"], "nothing to decode"),
    ],
)
def test_what_cannot_race_is_refused_before_anything_is_searched(
    folder: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "run" / "acceptance.csv").stat().st_mtime_ns, sorted((folder / "run").iterdir())
    names = [name.replace("RUN", str(folder / "run")) for name in more]
    assert run_command(["optimize-tree", "--profile", str(folder / "run"), *RACE, *names]) == 2
    assert message in capsys.readouterr().err
    assert before == ((folder / "run" / "acceptance.csv").stat().st_mtime_ns, sorted((folder / "run").iterdir()))


def test_torch_is_loaded_only_to_measure(folder: Path, tmp_path: Path) -> None:
    arguments = ["optimize-tree", "--profile", str(folder / "run"), "--trials", "0", "--out", str(tmp_path / "t.json")]
    code = f"import sys, mtp_bench.cli as c; c.run({arguments!r}); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
