"""``mtp-bench compare``: runs of several kinds of heads, decoded for real on the same prompts, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_bench.cli import options
from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtp_bench.heads.kinds import AnyHeads
    from mtp_bench.models.base import BaseModel
    from mtp_bench.profile.compare import Entrant
    from mtp_bench.topology import Topology


def compare(
    runs: Annotated[list[str], typer.Argument(help="Profiled runs of one base model, each with a topology.json.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Prompts to decode, balanced by category.")] = 18,
    repeats: Annotated[int, typer.Option(min=1, help="Times each prompt is decoded by each arm.")] = 2,
    hf: Annotated[bool, typer.Option("--hf/--no-hf", help="Also time Hugging Face generate.")] = True,
    static: Annotated[
        bool, typer.Option("--hf-static/--no-hf-static", help="Also time generate with its static cache.")
    ] = False,
    lookup: Annotated[bool, typer.Option("--lookup/--no-lookup", help="Also time its prompt-lookup decoding.")] = True,
    vllm: options.Vllm = None,
    vllm_lookup: options.VllmLookup = False,
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    engine: options.RunEngine = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("results/compare"),
    json_output: options.Json = False,
) -> None:
    """Decode the same prompts with every run's heads and winning topology, interleaved; table, plots and verdict."""
    import torch

    from mtp_bench.cli.decoding import choose_prompts, engine_of_run, heads_of_run, short_dtype
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.output import emit_json
    from mtp_bench.decode.bench import ENGINE_BASELINE, Contender, run_bench
    from mtp_bench.decode.vllm.client import vllm_arms
    from mtp_bench.files import write_json
    from mtp_bench.models.graph import compile_seconds
    from mtp_bench.profile.compare import check_comparable, compare_document, write_decoded_csv
    from mtp_bench.profile.costs import StepTimer
    from mtp_bench.profile.environment import environment, model_facts, timestamp
    from mtp_bench.profile.other_work import Meanwhile
    from mtp_bench.profile.run import load_answers
    from mtp_bench.progress import progress, running_totals
    from mtp_bench.report.compare import write_comparison
    from mtp_bench.topology import StaticTree

    entrants = [_entrant(name) for name in runs]
    check_comparable(entrants)
    first = entrants[0]
    facts = first.manifest["model"]
    base = load_base(
        facts["name"], dtype=short_dtype(facts["dtype"]), device=device, attention=facts["attention"],
        engine=engine or engine_of_run(facts, device_map), seed=seed, device_map=device_map,
    )  # fmt: skip
    contenders = {one.label: Contender(one.topology, heads_of_run(dict(one.manifest), base, None)) for one in entrants}
    chosen = choose_prompts(first.trace, limit)
    answers = [load_answers(first.run, first.trace)[index] for index in chosen]
    context = round(sum(len(a.prompt) + len(a.tokens) / 2 for a in answers) / len(answers))
    entries: dict[str, tuple[AnyHeads | None, Topology]] = {ENGINE_BASELINE: (None, StaticTree(()))}
    entries |= {name: (one.heads, one.topology) for name, one in contenders.items()}
    timer = StepTimer(base, entries, context, seed=seed)
    with vllm_arms(base, vllm, answers, lookup=vllm_lookup) as workers:
        meanwhile = Meanwhile()
        arms = 1 + hf + static + lookup + len(workers) + len(contenders)
        with progress("compare", arms * len(answers) * repeats, "answers") as advance:
            rows = run_bench(
                base, contenders, answers, repeats=repeats, with_hf=hf, with_lookup=lookup, with_static=static,
                more={name: worker.arm for name, worker in workers.items()},
                seed=seed, between=timer.round, on_progress=running_totals(advance),
            )  # fmt: skip
        other_work = meanwhile.other_work()
    exact = base.dtype == torch.float32
    document = compare_document(rows, entrants, chosen, context, timer.costs(), exact=exact, seed=seed)
    _account(document, base, entries, context)
    document |= {
        "created": timestamp(), "repeats": repeats, "runs": [str(one.run.path) for one in entrants],
        "model": model_facts(base), "environment": environment(base), "other_work": other_work,
        "compile_s": compile_seconds(), "vllm": {name: worker.facts for name, worker in workers.items()},
    }  # fmt: skip
    write_decoded_csv(out / "decoded.csv", rows)
    write_json(out / "compare.json", document)
    write_comparison(document, out)
    print_comparison(document)
    typer.echo(f"table, plots and data: {out}")
    if json_output:
        emit_json(document)


def _account(
    document: dict[str, Any], base: BaseModel, entries: Mapping[str, tuple[AnyHeads | None, Topology]], context: int
) -> None:
    """Add what the steps of our own arms move and compute, held against what the device can."""
    from dataclasses import asdict

    from mtp_bench.profile.accounting import measure_limits, step_work

    limits = measure_limits(base.device, base.dtype)
    document["limits"] = asdict(limits)
    for method in document["methods"]:
        if method["arm"] in entries:
            heads, topology = entries[method["arm"]]
            work = step_work(base, heads, topology, batch=1, context=context)
            method["work"] = work.figures(method["step_ms"], limits)


def _entrant(name: str) -> Entrant:
    """A run with its trace, costs and winning topology.

    Raises:
        InputError: something of it is missing.
    """
    from mtp_bench.cost import CostTable
    from mtp_bench.profile.compare import Entrant
    from mtp_bench.runs import open_run
    from mtp_bench.topology import read_document
    from mtp_bench.trace import RankTrace

    run = open_run(name)
    if not run.topology.exists():
        raise InputError(
            "the run has no topology yet", where=str(run.path), fix=f"run mtp-bench optimize-tree --profile {name}"
        )
    cost = CostTable.from_csv(run.cost) if run.cost.exists() else None
    topology = read_document(run.topology).topology
    return Entrant(run.path.name, run, run.read_manifest(), topology, RankTrace.load(run.trace), cost)


def print_comparison(document: dict[str, Any]) -> None:
    """The table and the verdict."""
    from rich.console import Console
    from rich.table import Table

    from mtp_bench.cli.decoding import print_conditions, ratio_in_words

    columns = (
        "",
        "topology",
        "tokens_per_step",
        "draft ms",
        "step ms",
        "tokens/s",
        "speedup",
        "predicted",
        "heads",
        "GB/s",
    )
    table = Table(*columns)
    for one in sorted(document["methods"], key=lambda method: -method["tokens_per_s"]):
        interval = one["speedup"]["ci"]
        speedup = f"{one['speedup']['value']:.3f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
        error = one["prediction_error"]
        table.add_row(
            one["name"].split(" (")[0] if one["method"] != "none" else one["name"],
            one["topology"],
            f"{one['tokens_per_step']:.3f}",
            "" if one.get("draft_ms") is None else f"{one['draft_ms']:.2f}",
            f"{one['step_ms']:.2f}",
            f"{one['tokens_per_s']:.2f}",
            speedup,
            "" if error is None else f"{100 * error:+.1f}%",
            f"{one['heads_bytes'] / 1e6:.1f} MB" if "heads_bytes" in one else "",
            f"{one['work']['bytes_per_s'] / 1e9:.1f}" if "work" in one else "",
        )
    Console(width=150, highlight=False).print(table)
    typer.echo(document["verdict"])
    for one in document["over_others"]:
        ratios = ", ".join(f"{ratio_in_words(other)} {other['name']}" for other in one["over"])
        if ratios:
            typer.echo(f"{one['name']}: {ratios}")
    typer.echo(f"this device copies {document['limits']['copy_bytes_per_s'] / 1e9:.1f} GB/s")
    print_conditions(document)
    broken = [one["name"] for one in document["methods"] if not one["lossless"]]
    if broken:
        typer.echo(f"NOT LOSSLESS beyond near-ties: {', '.join(broken)}")
