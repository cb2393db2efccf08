"""A whole run with Medusa heads and one with an EAGLE draft on a tiny model, from the command line to ``compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_hydra import hydra_tensors, write_hydra
from tiny_models import one_thread, random_eagle, random_heads, save_tiny_model, tiny_base
from typer.testing import CliRunner

from mtp_bench import cli
from mtp_bench.cli import app
from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.heads.eagle.checkpoint import save_eagle
from mtp_bench.heads.medusa.writers import save_vllm
from mtp_bench.profile import costs

__all__ = ["one_thread"]

PROFILE = ["--limit", "6", "--max-new-tokens", "20", "--max-rows", "16", "--rounds", "3", "--context", "32", "--raw"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module", autouse=True)
def any_spread_will_do() -> Iterator[None]:
    """Steps of a tiny model take a millisecond, which a busy machine doubles; its figures are not looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "UNSTABLE_SPREAD", 1e9)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, any_spread_will_do: None) -> Path:
    """Model, heads, prompts, and a profiled and optimized run of each kind of heads."""
    folder = tmp_path_factory.mktemp("pipeline")
    base = tiny_base("llama")
    save_tiny_model(base, folder / "model")
    save_vllm(
        random_heads(base), folder / "medusa", {"base_model_name_or_path": "model", "vocab_size": base.vocab_size}
    )
    save_eagle(random_eagle(base, aux_layers=(0, 1, 2)), folder / "eagle", {"base_model_name_or_path": "model"})
    (folder / "prompts.jsonl").write_text(
        "\n".join(
            json.dumps({"turns": [f"w{i} w{2 * i} w7 w3"], "category": "xy"[i % 2], "question_id": i}) for i in range(6)
        )
    )
    for name, more in (("medusa", []), ("eagle", ["--dynamic-top-k", "2,3", "--depth", "3", "--aux-layers", "0,1,2"])):
        run(
            "profile", "--model", str(folder / "model"), "--heads", str(folder / name), "--dtype", "fp32",
            "--prompts", str(folder / "prompts.jsonl"), "--out", str(folder / "runs" / name), *PROFILE, *more,
        )  # fmt: skip
        run("optimize-tree", "--profile", str(folder / "runs" / name), "--budget", "15", "--trials", "20")
    return folder


def test_an_eagle_run_has_everything_of_a_medusa_run(folder: Path) -> None:
    for name in ("medusa", "eagle"):
        files = {path.name for path in (folder / "runs" / name).iterdir()}
        assert files >= {"run.json", "trace.npz", "acceptance.csv", "cost.csv", "topology.json", "optimize.json"}
    found = json.loads((folder / "runs" / "eagle" / "optimize.json").read_text())
    assert {one["kind"] for one in found["kinds"]} == {"static", "dynamic", "chain"}
    assert found["dynamic"]["optuna"]["trials"] == 20
    manifest = json.loads((folder / "runs" / "eagle" / "run.json").read_text())
    assert manifest["live_check"]["exact"]
    assert manifest["heads"]["method"] == "eagle3"
    assert manifest["heads"]["facts"]["depth"] == 3


def test_hydra_heads_with_a_prefix_layer_are_profiled_and_benched(folder: Path) -> None:
    base = tiny_base("llama")
    heads = write_hydra(folder / "hydra", hydra_tensors(base, "prefix-mlp"), "prefix-mlp")
    assert "kind: prefix-mlp" in run("inspect", str(heads))
    run(
        "profile", "--model", str(folder / "model"), "--heads", str(heads), "--dtype", "fp32",
        "--prompts", str(folder / "prompts.jsonl"), "--out", str(folder / "runs" / "hydra"), *PROFILE,
    )  # fmt: skip
    manifest = json.loads((folder / "runs" / "hydra" / "run.json").read_text())
    assert manifest["live_check"]["exact"]
    assert manifest["heads"]["facts"]["kind"] == "prefix-mlp"
    profile = ["--profile", str(folder / "runs" / "hydra")]
    run("optimize-tree", *profile, "--budget", "15", "--trials", "0")
    output = run("bench", *profile, "--limit", "3", "--repeats", "1", "--no-hf", "--json")
    [tree] = json.loads(output.splitlines()[-1])["trees"]
    assert tree["lossless"]
    assert tree["steps"] == tree["replayed_steps"]


def test_a_dynamic_winner_is_benched_evaluated_and_reported(folder: Path) -> None:
    profile = ["--profile", str(folder / "runs" / "eagle")]
    run("optimize-tree", *profile, "--budget", "15", "--trials", "0", "--kind", "dynamic")
    topology = json.loads((folder / "runs" / "eagle" / "topology.json").read_text())
    assert topology["kind"] == "dynamic_tree"
    output = run("bench", *profile, "--limit", "3", "--repeats", "1", "--no-hf", "--json")
    [tree] = json.loads(output.splitlines()[-1])["trees"]
    assert tree["lossless"]
    assert tree["steps"] == tree["replayed_steps"]
    assert tree["predicted_tokens_per_s"] > 0
    assert tree["budget_ms"]["draft"] > 0
    assert tree["work"]["floor_ms"] > 0
    output = run("evaluate", "dynamic:2,2,4", "chain:2", *profile, "--json")
    assert len(json.loads(output.splitlines()[-1])["trees"]) == 2
    run("report", str(folder / "runs" / "eagle"))


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_throughput_over_batch_sizes(folder: Path, name: str) -> None:
    path = folder / "runs" / name
    options = ["--limit", "6", "--repeats", "1", "--topology", "chain:2", "--topology", "none", "--batch", "3,1"]
    output = run("bench", "--profile", str(path), *options, "--json")
    points = json.loads(output.splitlines()[-1])["points"]
    assert [(one["batch"], one["num_nodes"]) for one in points] == [(1, 0), (1, 2), (1, 0), (3, 0), (3, 2), (3, 0)]
    for one in points:
        assert one["passes"] == one["predicted_passes"]
        assert one["differing"] == 0
        assert one["predicted_tokens_per_s"] > 0
        assert one["work"]["share_of_copy_bandwidth"] > 0
    assert (path / "throughput.csv").read_text().count("\n") == 1 + len(points)
    run("report", str(path))
    assert "Throughput against batch size" in (path / "report.html").read_text()


def test_costs_of_several_batch_sizes_choose_other_trees(folder: Path) -> None:
    out = folder / "runs" / "costs"
    options = ["--model", str(folder / "model"), "--heads", str(folder / "medusa"), "--dtype", "fp32", "--rounds", "3"]
    run("measure-cost", *options, "--batch", "1,3", "--max-rows", "16", "--context", "32", "--out", str(out))
    table = CostTable.from_csv(out / "cost.csv")
    assert table.batches == (1, 3)
    for batch in ("1", "3"):
        arguments = ["--profile", str(folder / "runs" / "medusa"), "--cost", str(out / "cost.csv"), "--budget", "15"]
        output = run(
            "optimize-tree", *arguments, "--batch", batch, "--trials", "0", "--out", str(out / "t.json"), "--json"
        )
        assert json.loads(output.splitlines()[-1])["batch"] == int(batch)
    arguments += ["--batch", "1,3", "--out", str(out / "schedule.json"), "--json"]
    document = json.loads(run("optimize-tree", *arguments).splitlines()[-1])
    assert [cell["batch"] for cell in document["cells"]] == [1, 2, 3]
    assert document["batch_schedule"][-1]["max_batch_size"] == 3
    assert json.loads((out / "schedule.json").read_text()) == document
    assert (out / "plots" / "schedule.png").exists()


def test_a_schedule_needs_costs_of_its_batch_sizes(folder: Path) -> None:
    with pytest.raises(InputError, match="no costs for batch 4: measured from 1 to 1"):
        run("optimize-tree", "--profile", str(folder / "runs" / "medusa"), "--batch", "1,4")


def test_batch_sizes_must_be_numbers(folder: Path) -> None:
    for text, message in (("1,many", "no list of batch sizes"), ("0,4", "batch sizes start at 1, not 0")):
        with pytest.raises(InputError, match=message):
            run("bench", "--profile", str(folder / "runs" / "medusa"), "--batch", text)


def test_compare(folder: Path) -> None:
    runs = [str(folder / "runs" / name) for name in ("medusa", "eagle")]
    out = folder / "compare"
    output = run("compare", *runs, "--limit", "4", "--repeats", "1", "--out", str(out), "--json")
    document = json.loads(output.splitlines()[-1])
    methods = {one["arm"]: one for one in document["methods"]}
    assert set(methods) == {
        "baseline:engine", "baseline:hf-generate", "baseline:hf-prompt-lookup", "medusa", "eagle"
    }  # fmt: skip
    assert all(one["lossless"] for one in methods.values())
    assert set(methods["eagle"]["by_category"]) == {"x", "y"}
    for one in (methods["medusa"], methods["eagle"]):
        assert (one["draft_ms"] > 0) == (one["num_nodes"] > 0)
        assert one["verify_ms"] > 0
        expected = 1e3 * one["tokens_per_step"] / (one["draft_ms"] + one["verify_ms"])
        # Replay equals live decoding in fp32, but for the tokens of a last step beyond the end.
        assert one["predicted_tokens_per_s"] == pytest.approx(expected, rel=0.1)
    assert methods["baseline:engine"]["predicted_tokens_per_s"] > 0
    assert methods["baseline:engine"]["speedup"]["value"] == 1.0
    assert "the speed of" in document["verdict"]
    assert {one["method"] for one in document["same_size"]} == {"medusa", "eagle3"}
    names = {path.name for path in (out / "plots").iterdir()}
    assert {"speeds.png", "categories.png", "sizes.png", "transfer.png"} <= names
    assert (out / "compare.csv").read_text().count("\n") == 6
    assert (out / "decoded.csv").read_text().count("\n") == 1 + 4 * len(methods)


@pytest.fixture
def vllm(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options for a stand-in that recites the runs' answers."""
    lines = (folder / "runs" / "medusa" / "answers.jsonl").read_text().splitlines()[1:]
    answers = [[one["prompt"], one["tokens"]] for one in map(json.loads, lines)]
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    monkeypatch.setenv("STAND_IN_ANSWERS", str(tmp_path / "answers.json"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "decode" / "stand_in"))
    return ["--vllm", sys.executable, "--vllm-lookup"]


def test_compare_with_vllm(folder: Path, tmp_path: Path, vllm: list[str]) -> None:
    out = tmp_path / "compare"
    medusa = str(folder / "runs" / "medusa")
    output = run("compare", medusa, "--limit", "4", "--repeats", "1", *vllm, "--out", str(out), "--json")
    document = json.loads(output.splitlines()[-1])
    methods = {one["arm"]: one for one in document["methods"]}
    plain, lookup = methods["baseline:vllm"], methods["baseline:vllm-prompt-lookup"]
    assert (plain["name"], lookup["name"]) == ("vLLM", "vLLM prompt lookup")
    for one in (plain, lookup):
        assert (one["lossless"], one["divergences"], one["tokens"]) == (True, 0, methods["medusa"]["tokens"])
    assert plain["tokens_per_step"] == 1.0 < lookup["tokens_per_step"]
    assert document["over_others"][0]["arm"] == "baseline:engine"
    others = {"baseline:hf-generate", "baseline:hf-prompt-lookup", plain["arm"], lookup["arm"]}
    for one in document["over_others"]:
        assert {other["arm"] for other in one["over"]} == others
        for other in one["over"]:
            expected = methods[one["arm"]]["tokens_per_s"] / methods[other["arm"]]["tokens_per_s"]
            assert other["value"] == pytest.approx(expected)
    assert document["vllm"]["baseline:vllm"]["vllm"] == "0.0.stand-in"
    assert document["vllm"]["baseline:vllm-prompt-lookup"]["lookup_tokens"] == 10
    assert "vLLM 0.0.stand-in with torch 0.0+stand.in, float32" in output
    table = (out / "compare.csv").read_text()
    assert "\nvLLM," in table
    assert "\nvLLM prompt lookup," in table


def test_bench_with_vllm(folder: Path, vllm: list[str]) -> None:
    medusa = ["--profile", str(folder / "runs" / "medusa")]
    output = run("bench", *medusa, "--limit", "3", "--repeats", "1", *vllm, "--json")
    document = json.loads(output.splitlines()[-1])
    engine, [tree] = document["baseline"]["engine"], document["trees"]
    for key in ("hf", "vllm", "vllm_lookup"):
        other = document["baseline"][key]
        assert other["lossless"]
        assert engine[f"speedup_over_{key}"]["value"] == pytest.approx(engine["tokens_per_s"] / other["tokens_per_s"])
        assert tree[f"speedup_over_{key}"]["value"] == pytest.approx(tree["tokens_per_s"] / other["tokens_per_s"])
    assert document["vllm"]["baseline:vllm"]["vllm"] == "0.0.stand-in"
    assert "baseline: vLLM's prompt lookup: " in output
    assert " of vLLM's speed" in output
    with pytest.raises(InputError, match="one request at a time"):
        run("bench", *medusa, "--batch", "1,2", *vllm)


def test_vllm_that_is_not_there_ends_a_command_with_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = ["bench", "--profile", str(folder / "runs" / "medusa"), "--limit", "2", "--vllm", sys.executable]
    assert cli.run(command) == 2
    error = capsys.readouterr().err
    assert "No module named 'vllm'" in error
    assert "-> install vLLM's CPU build" in error


def test_runs_that_cannot_be_compared_are_refused(folder: Path, tmp_path: Path) -> None:
    run(
        "profile", "--model", str(folder / "model"), "--heads", str(folder / "medusa"), "--dtype", "fp32", "--no-costs",
        "--prompts", str(folder / "prompts.jsonl"), "--out", str(tmp_path / "short"), *PROFILE[:2],
        "--max-new-tokens", "12", "--raw",
    )  # fmt: skip
    with pytest.raises(InputError, match="the run has no topology yet"):
        run("compare", str(folder / "runs" / "medusa"), str(tmp_path / "short"))
    run("optimize-tree", "--profile", str(tmp_path / "short"), "--trials", "0")
    with pytest.raises(InputError, match="not the same prompts and text"):
        run("compare", str(folder / "runs" / "medusa"), str(tmp_path / "short"))
    with pytest.raises(InputError, match="two runs have the same folder name"):
        run("compare", str(folder / "runs" / "medusa"), str(folder / "runs" / "medusa"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize-tree", "--kind", "magic"], "unknown kind"),
        (["optimize-tree", "--profile", "RUNS/medusa", "--kind", "dynamic"], "no topology of this kind"),
        (["optimize-tree", "--profile", "RUNS/medusa", "--batch", "1,2", "--storage", "journal:x"], "only the study"),
        (
            ["optimize-tree", "--profile", "RUNS/medusa", "--rules", "uniform", "--storage", "journal:x"],
            "only the study",
        ),
        (["profile", "--model", "MODEL", "--heads", "MEDUSA", "--dynamic-top-k", "4"], "cannot draft dynamic trees"),
        (["profile", "--model", "MODEL", "--heads", "EAGLE", "--dynamic-top-k", "a"], "no list of numbers"),
        (["profile", "--model", "MODEL", "--heads", "EAGLE", "--dynamic-top-k", "4,9000"], "top_k 9,000 is larger"),
        (["measure-cost", "--model", "MODEL", "--heads", "EAGLE", "--dynamic-top-k", "9000"], "top_k 9,000 is larger"),
        (["profile", "--model", "MODEL", "--heads", "MEDUSA", "--top-k", "9000"], "top_k 9,000 is larger"),
        (["profile", "--model", "MODEL", "--heads", "EAGLE", "--aux-layers", "0,1"], "2 layers are named"),
        (["profile", "--model", "MODEL", "--heads", "EAGLE", "--aux-layers", "0,1,9"], "layer 9 does not exist"),
        (
            ["profile", "--model", "MODEL", "--heads", "MEDUSA", "--aux-layers", "0,1,2"],
            "only an EAGLE-3 draft",
        ),
        (["profile", "--model", "EAGLE"], "this is an EAGLE draft layer, not a base model"),
        (["profile", "--model", "MODEL", "--heads", "MEDUSA", "--depth", "2"], "as many as there are"),
        (["train-heads", "--method", "eagle3", "--layout", "vllm"], "unknown value 'vllm'"),
        (["train-heads", "--method", "eagle3", "--layers", "2"], "--method eagle3 has no use for it"),
        (["train-heads", "--method", "medusa", "--unroll", "2"], "--method medusa has no use for it"),
        (["train-heads", "--model", "MODEL", "--method", "eagle3", "--init", "MEDUSA"], "they are medusa heads"),
        (["train-heads", "--init", "MEDUSA", "--heads", "2"], "the heads given with --init have decided that"),
        (["profile", "--model", "MODEL", "--heads", "MEDUSA", "--engine", "magic"], "unknown engine 'magic'"),
    ],
)
def test_wrong_input(folder: Path, arguments: list[str], message: str) -> None:
    places = {"MODEL": folder / "model", "MEDUSA": folder / "medusa", "EAGLE": folder / "eagle"}
    places |= {"RUNS/medusa": folder / "runs" / "medusa"}
    with pytest.raises(InputError, match=message):
        run(*[str(places.get(argument, argument)) for argument in arguments])
