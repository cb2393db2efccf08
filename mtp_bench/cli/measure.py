"""``optimize-tree --measure``: the candidates near the predicted best race each other; the measured winner is taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from mtp_bench.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.decode.answers import Answer
    from mtp_bench.models.base import BaseModel
    from mtp_bench.search.evaluate import Evaluation
    from mtp_bench.search.optimize import Optimization
    from mtp_bench.search.race.candidates import Candidate
    from mtp_bench.search.race.run import Heat, Race, RaceRules


@dataclass(frozen=True)
class MeasureOptions:
    """How to race.

    Attributes:
        limit: most prompts, balanced by category.
        candidates: most candidates besides N = 0.
        model, heads: in place of the run's, where those have moved.
    """

    limit: int = 18
    candidates: int = 6
    model: str | None = None
    heads: str | None = None
    device: str = "auto"
    seed: int = 0
    device_map: str | None = None


def check_measurable(
    measured: Measured, batches: tuple[int, ...], contexts: tuple[int, ...], objective: str | None
) -> None:
    """Before anything is searched.

    Raises:
        InputError: there is no run to decode, no costs to choose candidates by, or something else than the speed of
            one request is asked for.
    """
    from mtp_bench.trace import RankTrace

    if measured.run is None or not isinstance(measured.acceptance, RankTrace):
        raise InputError(
            "there is nothing to decode", where="--measure", fix="give --profile RUN, a folder that profile wrote"
        )
    if measured.cost is None:
        raise InputError(
            "without costs no speed is predicted", where="--measure", fix="run mtp-bench measure-cost, or give --cost"
        )
    if batches != (1,):
        raise InputError(
            "candidates are decoded one request at a time", where="--batch", fix="use bench --batch for throughput"
        )
    if len(contexts) > 1:
        raise InputError("a run is decoded at its own contexts", where="--context", fix="give one, or none")
    if objective not in (None, "speed"):
        raise InputError("a race is won by speed", where="--objective", fix="leave out --objective or --measure")


def measure_and_write(
    found: Optimization, document: dict[str, Any], measured: Measured, options: MeasureOptions, out: Path | None
) -> dict[str, Any]:
    """Race, print, and write measured.csv, the topology and, unless ``out`` is given, the run's optimize.json."""
    from mtp_bench.cli.decoding import bench_material, engine_of_run, heads_of_run, short_dtype
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.winner import write_winner
    from mtp_bench.profile.bench import Predictor
    from mtp_bench.profile.environment import environment, model_facts, timestamp
    from mtp_bench.profile.measured import decoding_heat, measured_document, write_laps
    from mtp_bench.progress import warn
    from mtp_bench.report.measured import write_measured
    from mtp_bench.search.race.candidates import race_candidates
    from mtp_bench.search.race.log import RaceLog
    from mtp_bench.search.race.run import RaceRules

    run = measured.run
    assert run is not None  # checked by check_measurable
    manifest = run.read_manifest()
    facts = manifest["model"]
    candidates = race_candidates(found, measured.acceptance, measured.cost, options.candidates)  # type: ignore[arg-type]
    trace, answers, context = bench_material(run, options.limit)
    base = load_base(
        options.model or facts["name"], dtype=short_dtype(facts["dtype"]), device=options.device,
        attention=facts["attention"], engine=engine_of_run(facts, options.device_map), seed=options.seed,
        device_map=options.device_map,
    )  # fmt: skip
    here = model_facts(base)
    if (here["device"], here.get("device_map")) != (facts["device"], facts.get("device_map")):
        how = "; the layers are split otherwise" if here["device"] == facts["device"] else ""
        warn(f"the run's costs are those of {facts['device']}, candidates race on {here['device']}{how}")
    heads = heads_of_run(manifest, base, options.heads)
    rules = RaceRules(seed=options.seed)
    used = [options.heads, manifest["heads"]["hash"]]
    log = RaceLog(run.race, _key(base, used, candidates, answers, rules))
    race = _race(candidates, answers, log.keeping(decoding_heat(base, heads, candidates, answers)), rules, log.resumed)
    result = measured_document(race, candidates, Predictor(trace, {}, measured.cost, context))
    result |= {
        "created": timestamp(), "context": context, "resumed_prompts": log.resumed, "model": here,
        "environment": environment(base),
    }  # fmt: skip
    document = {**document, "measured": result}
    write_laps(run.measured_csv, race, answers)
    winner, figures = next(
        pair for pair in zip(candidates, result["candidates"], strict=True) if pair[0].name == result["winner"]
    )
    expected = _as_measured(winner.predicted, figures)
    write_winner(measured, winner.topology, expected, found.exact.limits, document, out)
    write_measured(result, run.path)
    log.discard()
    _print(result)
    typer.echo(f"topology: {document['topology']}")
    return document


def _key(base: BaseModel, heads: object, candidates: list[Candidate], answers: list[Answer], rules: RaceRules) -> str:
    """Names the race: laps of another model, device, set of candidates or of prompts are not taken up."""
    from mtp_bench.files import sha256_json
    from mtp_bench.profile.environment import model_facts

    texts = [[answer.id, answer.prompt, answer.tokens] for answer in answers]
    return sha256_json([model_facts(base), heads, [one.topology.id for one in candidates], texts, asdict(rules)])


def _race(candidates: list[Candidate], answers: list[Answer], heat: Heat, rules: RaceRules, resumed: int) -> Race:
    from mtp_bench.progress import progress, say
    from mtp_bench.search.race.candidates import BASELINE
    from mtp_bench.search.race.run import Entrant, balanced_order, run_race

    if resumed:
        say(f"going on with a race of which {resumed} prompts are decoded")
    entrants = [Entrant(one.name, one.topology.num_nodes, one.name == BASELINE) for one in candidates]
    order = balanced_order([answer.category for answer in answers], rules.seed)
    with progress(f"race of {len(candidates)}", len(order), "prompts") as advance:
        return run_race(entrants, order, heat, rules, on_heat=lambda _: advance(1))


def _as_measured(predicted: Evaluation, figures: dict[str, Any]) -> dict[str, Any]:
    """Replayed tokens per step of the whole run, speeds as they were measured."""
    from mtp_bench.cli.winner import expected_figures

    expected = expected_figures(predicted)
    steps = expected.get("step_seconds", {})
    expected["step_seconds"] = {"measured": figures["tokens_per_step"] / figures["tokens_per_s"], **steps}
    expected["tokens_per_second"] = figures["tokens_per_s"]
    # A predicted speedup must not stand beside measured speeds.
    expected.pop("speedup_vs_autoregressive", None)
    if figures["speedup"] is not None:
        expected["speedup_vs_autoregressive"] = figures["speedup"]["value"]
    return expected


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "candidate", "why", "N", "predicted", "measured tokens/s", "predicted speedup", "measured speedup",
        "to the winner", "prompts", "outcome",
    )  # fmt: skip
    for one in result["candidates"]:
        expected = one["predicted_tokens_per_s"], one["predicted_speedup"]
        table.add_row(
            one["name"], one["why"], str(one["num_nodes"]), "-" if expected[0] is None else f"{expected[0]:.2f}",
            _with_bounds(one["tokens_per_s"], one["tokens_per_s_ci"], 2),
            "-" if expected[1] is None else f"{expected[1]:.3f}x", _ratio(one["speedup"]),
            _ratio(one["speed_to_winner"]), f"{one['prompts']} of {result['prompts']}", one["outcome"],
        )  # fmt: skip
    Console(width=170, highlight=False).print(table)
    typer.echo(f"measured winner: {result['winner']}, {result['decided_by']}")
    if result["runner_up"] is not None:
        ratio, place = _ratio(result["runner_up_to_winner"]), "runner-up"
        if result["runner_up"] == result["fastest"]:
            place = "fastest, but not by the interval"
        typer.echo(f"{place}: {result['runner_up']}, {ratio} of the winner's speed on the prompts that both decoded")
    saved = 1 - result["decodes"] / result["decodes_without_stopping"]
    typer.echo(
        f"{result['decodes']} answers decoded; stopping losers early (Optuna's WilcoxonPruner) saved {100 * saved:.0f}%"
    )


def _ratio(ratio: dict[str, Any] | None) -> str:
    return "-" if ratio is None else _with_bounds(ratio["value"], ratio["ci"], 3)


def _with_bounds(value: float, bounds: list[float] | None, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text if bounds is None else f"{text} [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"


def check_measured(document: dict[str, Any]) -> None:
    """Raise CheckFailed when a candidate's output was wrong."""
    broken = [one["name"] for one in document["measured"]["candidates"] if not one["lossless"]]
    if broken:
        raise CheckFailed(
            f"output differs from plain greedy decoding beyond near-ties: {', '.join(broken)}",
            where="optimize-tree --measure",
            fix="see diverged in measured.csv; try a run of --dtype fp32, where output must be identical",
        )
