"""``mtp-bench bench``: decode for real, interleaved with the baselines, and hold the prediction against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_bench.cli import options
from mtp_bench.cli.decoding import (
    bench_material,
    engine_of_run,
    heads_of_run,
    print_conditions,
    ratio_in_words,
    short_dtype,
)
from mtp_bench.errors import InputError

DRIFT = 0.05
# Baselines as the document and people call them.
BASELINES = {
    "engine": "this engine, N = 0",
    "hf": "Hugging Face generate",
    "vllm": "vLLM",
    "vllm_lookup": "vLLM's prompt lookup",
}

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtp_bench.decode.answers import Answer
    from mtp_bench.decode.bench import Contender
    from mtp_bench.models.base import BaseModel
    from mtp_bench.runs import RunFolder
    from mtp_bench.topology import Topology


def bench(
    profile: options.Profile = None,
    topology: options.Topologies = None,
    model: Annotated[str | None, typer.Option("--model", help="The run's model when left out.")] = None,
    heads: options.Heads = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Prompts to decode, balanced by category.")] = 27,
    repeats: Annotated[int, typer.Option(min=1, help="Times each prompt is decoded by each arm.")] = 2,
    hf: Annotated[bool, typer.Option("--hf/--no-hf", help="Also time Hugging Face generate.")] = True,
    vllm: options.Vllm = None,
    vllm_lookup: options.VllmLookup = False,
    batch: Annotated[
        str, typer.Option(help="Batch sizes (1,4,8): more than 1 measures throughput, with requests refilled.")
    ] = "1",
    fail_under: Annotated[
        float | None, typer.Option(help="Exit code 3 if the best tree's speedup is below this.")
    ] = None,
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    attention: Annotated[str | None, typer.Option("--attention", help="The run's when left out.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="The run's when left out.")] = None,
    engine: options.RunEngine = None,
    seed: options.Seed = 0,
    json_output: options.Json = False,
) -> None:
    """Decode a run's prompts with the winning tree (or --topology ...), the N = 0 baseline and HF generate."""
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.output import emit_json
    from mtp_bench.cli.throughput import print_throughput, throughput_run
    from mtp_bench.runs import open_run
    from mtp_bench.topology import resolve_topology

    batches = options.parse_batches(batch)
    if vllm is not None and batches != (1,):
        raise InputError("vLLM is timed on one request at a time", where="--vllm", fix="leave it or --batch out")
    run = open_run(profile)
    manifest = run.read_manifest()
    specs = list(topology or [str(run.topology)])
    trees = {_label(spec, run): resolve_topology(spec) for spec in specs}
    facts = manifest["model"]
    base = load_base(
        model or facts["name"], dtype=dtype or short_dtype(facts["dtype"]), device=device,
        attention=attention or facts["attention"], engine=engine or engine_of_run(facts, device_map), seed=seed,
        device_map=device_map,
    )  # fmt: skip
    drafting = heads_of_run(manifest, base, heads)
    if batches != (1,):
        document = throughput_run(run, base, drafting, trees, batches, limit=limit, repeats=repeats, seed=seed)
        print_throughput(document)
        if json_output:
            emit_json(document)
        return
    document = bench_run(
        run, base, drafting, trees, limit=limit, repeats=repeats, hf=hf, seed=seed, vllm=vllm, vllm_lookup=vllm_lookup
    )
    print_bench(document)
    if json_output:
        emit_json(document)
    check_bench(document, fail_under)


def bench_run(
    run: RunFolder, base: Any, heads: Any, trees: Any, *, limit: int, repeats: int, hf: bool, seed: int,
    vllm: str | None = None, vllm_lookup: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Bench ``trees`` on a run's prompts; writes bench.csv and bench.json; return the document."""
    import torch

    from mtp_bench.cost import CostTable
    from mtp_bench.decode.bench import ENGINE_BASELINE, Contender, run_bench
    from mtp_bench.decode.vllm.client import vllm_arms
    from mtp_bench.files import write_json
    from mtp_bench.models.graph import compile_seconds
    from mtp_bench.profile.bench import Predictor, summarize, write_bench_csv
    from mtp_bench.profile.costs import StepTimer
    from mtp_bench.profile.environment import environment, model_facts, timestamp
    from mtp_bench.profile.other_work import Meanwhile
    from mtp_bench.progress import progress, running_totals, warn
    from mtp_bench.topology import StaticTree

    trace, answers, context = bench_material(run, limit)
    measured_with = run.read_manifest()["model"].get("engine", "eager")
    cost = CostTable.from_csv(run.cost) if run.cost.exists() else None
    if cost is not None and measured_with != base.engine:
        warn(f"the run's costs are those of the {measured_with} engine: predicted only by steps timed now")
        cost = None
    everyone: dict[str, tuple[Any, Topology]] = {ENGINE_BASELINE: (None, StaticTree(()))}
    timer = StepTimer(base, everyone | {name: (heads, tree) for name, tree in trees.items()}, context, seed=seed)
    contenders = {name: Contender(tree, heads) for name, tree in trees.items()}
    with vllm_arms(base, vllm, answers, lookup=vllm_lookup) as workers:
        meanwhile = Meanwhile()
        arms = 1 + hf + len(workers) + len(trees)
        with progress("bench", arms * len(answers) * repeats, "answers") as advance:
            rows = run_bench(
                base, contenders, answers, repeats=repeats, with_hf=hf, seed=seed, between=timer.round,
                more={name: worker.arm for name, worker in workers.items()}, on_progress=running_totals(advance),
            )  # fmt: skip
        other_work = meanwhile.other_work()
    predictor = Predictor(trace, timer.costs(), cost, context)
    document = summarize(rows, trees, predictor, exact=base.dtype == torch.float32, seed=seed)
    _account(document, base, contenders, answers, context)
    document |= {
        "created": timestamp(), "prompts": len(answers), "repeats": repeats, "context": context,
        "model": model_facts(base), "environment": environment(base), "other_work": other_work,
        "compile_s": compile_seconds(), "vllm": {name: worker.facts for name, worker in workers.items()},
    }  # fmt: skip
    write_bench_csv(run.bench_csv, rows, trees, predictor)
    write_json(run.bench_json, document)
    return document


def _account(
    document: dict[str, Any], base: BaseModel, contenders: Mapping[str, Contender], answers: list[Answer], context: int
) -> None:
    """Add to every arm of ours what its steps move and compute, and where their time goes."""
    from mtp_bench.decode.bench import ENGINE_BASELINE, Contender
    from mtp_bench.decode.budget import step_budget
    from mtp_bench.profile.accounting import measure_limits, step_work
    from mtp_bench.progress import say
    from mtp_bench.topology import StaticTree

    say("where a step's time goes ...")
    limits = measure_limits(base.device, base.dtype)
    document["limits"] = {"copy_bytes_per_s": limits.copy_bytes_per_s, "flops_per_s": limits.flops_per_s}
    everyone = {ENGINE_BASELINE: Contender(StaticTree(()), None), **contenders}
    longest = max(answers, key=lambda answer: len(answer.tokens))
    arms = {ENGINE_BASELINE: document["baseline"]["engine"], **{tree["tree"]: tree for tree in document["trees"]}}
    for name, one in everyone.items():
        work = step_work(base, one.heads, one.topology, batch=1, context=context)
        arms[name]["work"] = work.figures(arms[name]["step_ms"], limits)
    # A graph is one piece: its parts run eagerly would not be its parts.
    if base.engine != "graph":
        for name, parts in step_budget(base, everyone, longest).items():
            arms[name]["budget_ms"] = parts


def print_bench(document: dict[str, Any]) -> None:
    """The table for people."""
    for label, arm in document["baseline"].items():
        text = f"baseline: {BASELINES[label]}: {arm['tokens_per_s']:.2f} tokens/s, step {arm['step_ms']:.2f} ms"
        text += _prediction(arm)
        text += _over_others(arm, "of {}'s speed")
        typer.echo(text)
        _print_account(arm)
    for tree in document["trees"]:
        text = (
            f"{tree['tree']} ({tree['num_nodes']} nodes): {tree['tokens_per_s']:.2f} tokens/s, "
            f"{tree['tokens_per_step']:.3f} tokens_per_step, step {tree['step_ms']:.2f} ms"
        )
        typer.echo(text + _prediction(tree))
        over_engine = {"value": tree["speedup"], "ci": tree["speedup_ci"]}
        text = f"  speedup {ratio_in_words(over_engine)} over this engine at N = 0" + _over_others(tree, "over {}")
        typer.echo(text)
        typer.echo(
            f"  {'lossless' if tree['lossless'] else 'NOT LOSSLESS'}: {tree['divergences']} of {tree['runs']} runs "
            f"diverge, {tree['divergences_at_near_ties']} of them at a near-tie"
        )
        _print_account(tree)
    promised = document["baseline"]["engine"].get("profile_error")
    if promised is not None and abs(promised) > DRIFT:
        change = "slower" if promised > 0 else "faster"
        typer.echo(
            f"plain decoding was {100 * abs(promised):.0f}% {change} than the run's costs say: the machine has changed"
        )
    print_conditions(document)


def _over_others(arm: dict[str, Any], form: str) -> str:
    """How fast it is against the other engines; ``form`` takes an engine's name."""
    over = {BASELINES[label]: arm.get(f"speedup_over_{label}") for label in BASELINES}
    return "".join(f", {ratio_in_words(ratio)} {form.format(name)}" for name, ratio in over.items() if ratio)


def _prediction(arm: dict[str, Any]) -> str:
    text = ""
    if arm["predicted_tokens_per_s"]:
        text += f", predicted {arm['predicted_tokens_per_s']:.2f} ({100 * arm['prediction_error']:+.1f}%)"
    if arm.get("profile_tokens_per_s"):
        text += f", by the run's costs {arm['profile_tokens_per_s']:.2f} ({100 * arm['profile_error']:+.1f}%)"
    return text


def _print_account(arm: dict[str, Any]) -> None:
    if "work" not in arm:
        return
    work = arm["work"]
    typer.echo(
        f"  {work['bytes_per_step'] / 1e6:.0f} MB and {work['flops_per_step'] / 1e9:.2f} GFLOP per step: "
        f"{work['bytes_per_s'] / 1e9:.1f} GB/s, {100 * work['share_of_copy_bandwidth']:.0f}% of this device's copy "
        f"bandwidth (least time {work['floor_ms']:.1f} ms)"
    )
    if "budget_ms" in arm:
        typer.echo("  step: " + ", ".join(f"{part} {ms:.2f}" for part, ms in arm["budget_ms"].items()) + " ms")


def check_bench(document: dict[str, Any], fail_under: float | None) -> None:
    """Raise CheckFailed when a tree is not lossless, or none reaches ``fail_under``."""
    from mtp_bench.errors import CheckFailed

    broken = [tree["tree"] for tree in document["trees"] if not tree["lossless"]]
    if broken:
        raise CheckFailed(
            f"output differs from plain greedy decoding beyond near-ties: {', '.join(broken)}",
            where="bench",
            fix="see first_divergence in bench.csv; try --dtype fp32, where output must be identical",
        )
    best = max((tree["speedup"] for tree in document["trees"]), default=0.0)
    if fail_under is not None and best < fail_under:
        raise CheckFailed(f"the best tree's speedup is {best:.3f}x", where=f"--fail-under {fail_under}")


def _label(spec: str, run: RunFolder) -> str:
    from pathlib import Path

    path = Path(spec)
    if path == run.topology:
        return "winner"
    return path.stem if path.suffix == ".json" else spec
