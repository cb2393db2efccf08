"""One GPU in under ten minutes: what steps cost there, how near the hardware's limit, and the trees that pay.

    python3 tests/benchmarks/gpu.py --out results/h200

For each model shape (random weights: costs do not depend on them) and engine it sweeps rows and batch sizes at one
context, measures the share of the copy bandwidth that plain decoding reaches, and finds the best tree for Medusa's
published Vicuna-7B head accuracies at every batch size. Then the reference model is profiled and benched for real with
its shipped heads. Writes ``cost.csv`` per model and engine, ``gpu.json``, and a run folder. Needs no network and no
optuna. On a CPU (``--models smollm2-135m --rows 1,4 --batch 1``) it runs too, which is how it is tested.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.files import write_json
from mtp_bench.models.base import BaseModel
from mtp_bench.models.load import LoadOptions, load_base_model
from mtp_bench.profile.accounting import measure_limits, step_work
from mtp_bench.profile.costs import SweepOptions, sweep_costs
from mtp_bench.profile.environment import device_environment, model_facts, timestamp
from mtp_bench.search.exact.search import exact_search
from mtp_bench.search.values.sources import MarginalSource
from mtp_bench.topology import StaticTree

MODELS = "vicuna-7b,vicuna-13b,llama-3.1-8b,qwen3-8b"
ROWS = "1,2,4,8,16,32,64,128,256"
ACCURACIES = Path(__file__).parents[1] / "data" / "medusa_head_accuracy.json"
SCHEMA = "mtp-bench/gpu"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write, print; what was measured is written after every model."""
    options = _parser().parse_args(arguments)
    started = time.perf_counter()
    device = torch.device(options.device)
    document: dict[str, Any] = {"schema": SCHEMA, "version": 1, "created": timestamp(), "models": []}
    document["environment"] = device_environment(device)
    for name in options.models.split(","):
        for engine in options.engines.split(","):
            left_s = 60 * options.minutes - (time.perf_counter() - started)
            if left_s < 0:
                print(f"no time left for {name} {engine}")
                continue
            document["models"].append(_measured(name, engine, device, options))
            write_json(options.out / "gpu.json", document)
            print(json.dumps(document["models"][-1], indent=1))
        _free()
    if options.reference:
        _reference_run(options)
    print(f"{time.perf_counter() - started:.0f} s in all; {options.out}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cuda = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--engines", default="graph,eager" if cuda else "eager")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--batch", default="1,4,16")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=7.0, help="begin no further model after so long")
    parser.add_argument("--reference", action=argparse.BooleanOptionalAction, default=True)
    return parser


def _measured(name: str, engine: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Costs of one model with one engine, its share of the bandwidth, and the best trees."""
    load = LoadOptions(dtype="bf16", device=str(device), attention="auto", engine=engine, dummy=True, seed=0)
    base = load_base_model(name, load)
    rows = _numbers(options.rows)
    points = []
    for batch in _numbers(options.batch):
        # The same work for every batch size: fewer rows each for larger batches.
        some = tuple(n for n in rows if n * batch <= max(rows) or n == 1)
        sweep = SweepOptions(rows=some, contexts=(options.context,), batch=batch, rounds=options.rounds)
        try:
            points += sweep_costs(base, None, sweep)
        except InputError as error:
            print(f"{name} {engine} batch {batch}: {error}")
    table = CostTable(tuple(points))
    table.to_csv(options.out / f"cost-{name}-{engine}.csv")
    return {
        "model": model_facts(base),
        "context": options.context,
        "rows": {str(batch): _by_rows(table, batch) for batch in table.batches},
        **_bandwidth(base, table, options.context),
        "optimum": {str(batch): _optimum(table, batch, options.context) for batch in table.batches},
    }


def _by_rows(table: CostTable, batch: int) -> dict[str, dict[str, float]]:
    ok = [point for point in table.points if point.ok and point.batch == batch]
    one = next(point.median_ms for point in ok if point.rows == 1)
    return {str(p.rows): {"median_ms": p.median_ms, "over_one_row": p.median_ms / one} for p in ok}


def _bandwidth(base: BaseModel, table: CostTable, context: int) -> dict[str, Any]:
    """What plain decoding at batch 1 achieves."""
    limits = measure_limits(base.device, base.dtype)
    work = step_work(base, None, StaticTree(()), batch=1, context=context)
    figures = work.figures(table.step_ms(1, context=context), limits) if 1 in table.batches else {}
    return {"limits": dataclasses.asdict(limits), "plain_decoding": figures}


def _optimum(table: CostTable, batch: int, context: int) -> dict[str, Any]:
    """The best tree for the published accuracies; the heads' own cost is not in it."""
    cumulative = np.array(json.loads(ACCURACIES.read_text(encoding="utf-8"))["vicuna"]["7b"])
    rates = np.diff(cumulative, axis=1, prepend=0.0)
    found = exact_search(MarginalSource(rates), table, max_nodes=255, context=context, batch=batch)
    best = found.best
    return {"num_nodes": best.num_nodes, "depth": best.depth, "tokens_per_step": best.tokens_per_step,
            "speedup": best.speedup, "notes": list(found.notes)}  # fmt: skip


def _reference_run(options: argparse.Namespace) -> None:
    """Profile and bench the reference model with its shipped heads."""
    from mtp_bench.cli import run

    out = str(options.out / "smollm2-135m")
    profile = ["profile", "--device", options.device, "--limit", "27", "--out", out, "--max-rows", "64"]
    if run(profile) == 0:
        run(["bench", "--profile", out, "--device", options.device, "--topology", "mc_sim_7b_63", "--limit", "9"])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _free() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
