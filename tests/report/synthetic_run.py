"""A small made-up run folder with every file, consistent within itself: built by our own search and replay."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtp_bench.cost import CostPoint, CostTable, DeviceLimits, StepWork
from mtp_bench.decode.bench import ENGINE_BASELINE
from mtp_bench.decode.throughput import ThroughputRow
from mtp_bench.profile.bench import Predictor
from mtp_bench.profile.costs import StepCost
from mtp_bench.profile.measured import measured_document
from mtp_bench.profile.throughput import throughput_document
from mtp_bench.search.operating.operating_range import operating_range
from mtp_bench.search.operating.pareto import pareto
from mtp_bench.search.operating.schedule import schedule
from mtp_bench.search.optimize import Optimization, OptimizeOptions, optimize
from mtp_bench.search.race.candidates import BASELINE, race_candidates
from mtp_bench.search.race.run import Entrant, Lap, balanced_order, run_race
from mtp_bench.topology import StaticTree, TopologyDocument, chain
from mtp_bench.trace import AcceptanceTable, RankTrace, batch_passes, replay

DEPTH, TOP_K = 4, 10
CATEGORIES = ("coding", "math", "writing")


def make_trace(prompts: int = 24, length: int = 60, seed: int = 0) -> RankTrace:
    """Geometric ranks whose quality differs by category and falls with depth."""
    generator = np.random.default_rng(seed)
    names = [CATEGORIES[p % len(CATEGORIES)] for p in range(prompts)]
    rows = []
    for name in names:
        ease = 0.75 - 0.12 * CATEGORIES.index(name)
        chance = ease * np.array([0.85, 0.65, 0.5, 0.4])
        ranks = generator.geometric(np.broadcast_to(chance, (length, DEPTH))) - 1
        ranks[ranks >= TOP_K] = -1
        for d in range(1, DEPTH + 1):
            ranks[length - d :, d - 1] = -1
        rows.append(ranks)
    return RankTrace(
        ranks=np.concatenate(rows).astype(np.int16),
        prompt_offsets=np.arange(prompts + 1, dtype=np.int64) * length,
        top_k=TOP_K,
        prompt_ids=tuple(f"{name}-{p}" for p, name in enumerate(names)),
        categories=tuple(names),
    )


def make_points() -> list[CostPoint]:
    """Costs like those of a small CPU: a dip after one row, a jump after 16, dearer with more context."""
    points = []
    for context, base in ((256, 40.0), (1024, 47.0)):
        for rows in (1, 2, 4, 8, 15, 16, 17, 24, 32, 48, 64):
            ms = base + 0.45 * rows + (6.0 if rows > 16 else 0.0) + (3.0 if rows == 1 else 0.0)
            points.append(_point("verify", context, ms, rows=rows))
        points += [_point("draft", context, 1.1 * depth, depth=depth) for depth in range(1, DEPTH + 1)]
    return [*points, CostPoint("verify", "cpu", "bfloat16", 1, 128, 1024, status="oom")]


def _point(component: str, context: int, ms: float, *, rows: int = 0, depth: int = 0) -> CostPoint:
    return CostPoint(component, "cpu", "bfloat16", 1, rows, context, depth, ms, 0.97 * ms, 1.04 * ms, 15)


def make_ranges(trace: RankTrace) -> dict[str, dict[str, Any]]:
    """``schedule.json``, ``operating_range.json`` and ``pareto.json`` on costs that grow with the batch."""
    points = []
    for batch, context, rows in itertools.product((1, 4, 16), (256, 1024), (1, 2, 4, 8, 16, 32)):
        ms = max(40.0, 1.5 * batch * rows) + context / 200
        points.append(CostPoint("verify", "cpu", "bfloat16", batch, rows, context, 0, ms))
    cost = CostTable(tuple(points))
    options = OptimizeOptions(budget=15, context=256, trials=10)
    return {
        "schedule": schedule(trace, cost, options, (1, 16)).document(),
        "operating_range": operating_range(trace, cost, options, (1, 4, 16), (256, 600)).document(),
        "pareto": pareto(trace, cost, options, (1, 4, 16)).document(),
    }


def make_optimize(trace: RankTrace, cost: CostTable, max_nodes: int = 63) -> dict[str, Any]:
    """``optimize.json``, with an unseeded study, a context between the measured ones, and a race."""
    options = OptimizeOptions(budget=max_nodes, context=300, trials=40, seeded=False)
    found = optimize(trace, cost, options)
    measured = make_measured(found, trace, cost)
    return {"schema": "mtp-bench/optimize", "version": 1, **found.document(), "measured": measured}


def make_measured(found: Optimization, trace: RankTrace, cost: CostTable, seed: int = 0) -> dict[str, Any]:
    """The ``measured`` object of a race whose laps take what the costs say, 2% more, and noise."""
    generator = np.random.default_rng(seed)
    candidates = race_candidates(found, trace, cost, 5)
    runs = {one.name: replay(trace, one.topology) for one in candidates}
    step_s = {one.name: cost.topology_ms(one.topology, context=300, padded=False) / 1e3 for one in candidates}

    def heat(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        steps = {name: int(runs[name].steps[prompt]) for name in names}
        seconds = {name: steps[name] * step_s[name] * generator.normal(1.02, 0.02) for name in names}
        return {name: Lap(int(runs[name].tokens[prompt]), steps[name], seconds[name]) for name in names}

    entrants = [Entrant(one.name, one.topology.num_nodes, one.name == BASELINE) for one in candidates]
    race = run_race(entrants, balanced_order(trace.categories), heat)
    return measured_document(race, candidates, Predictor(trace, {}, cost, 300))


def make_bench(
    trace: RankTrace, cost: CostTable, trees: dict[str, StaticTree], seed: int = 0
) -> tuple[str, dict[str, Any]]:
    """``bench.csv`` and ``bench.json`` with measurements a few per cent off the predictions."""
    generator = np.random.default_rng(seed)
    lines = ["tree,num_nodes,depth,baseline,prompt_id,category,repeat,tokens,steps,tokens_per_step,decode_s,"
             "tokens_per_s,predicted_tokens_per_s,lossless"]  # fmt: skip
    summary: list[dict[str, Any]] = []
    for name, tree in trees.items():
        run = replay(trace, tree)
        step_s = cost.step_ms(tree.rows, depth=tree.depth) / 1e3
        seconds = run.steps * step_s * generator.normal(1.02, 0.03, trace.num_prompts)
        predicted = run.tokens / (run.steps * step_s)
        for p in range(trace.num_prompts):
            tokens, steps = int(run.tokens[p]), int(run.steps[p])
            figures = (tokens, steps, tokens / steps, seconds[p], tokens / seconds[p], predicted[p], True)
            cells = (name, tree.num_nodes, tree.depth, "", trace.prompt_ids[p], trace.categories[p], 0, *figures)
            lines.append(",".join(map(str, cells)))
        total = run.total_tokens / float(seconds.sum())
        pooled = run.total_tokens / (run.total_steps * step_s)
        figures_json = {"tokens_per_step": run.tokens_per_step, "tokens_per_s": total, "predicted_tokens_per_s": pooled}
        summary.append(
            {"tree": name, "num_nodes": tree.num_nodes, **figures_json, "prediction_error": pooled / total - 1}
        )
    plain = summary[0]["tokens_per_s"]
    for one in summary:
        one |= {"speedup": one["tokens_per_s"] / plain, "speedup_ci": [1.5, 1.9], "lossless": True, "divergences": 0}
    parts = {"draft": 2.0, "verify": 41.0, "accept": 0.2, "cache move": 0.3, "host gap": 1.1}
    for one in summary:
        one |= {"budget_ms": parts, "work": {"floor_ms": 15.0}}
    baseline = {"engine": {"tokens_per_s": plain, **{k: summary[0][k] for k in ("budget_ms", "work")}}}
    baseline |= {"hf": {"tokens_per_s": 0.96 * plain}}
    return "\n".join(lines) + "\n", {
        "schema": "mtp-bench/bench",
        "version": 1,
        "baseline": baseline,
        "trees": summary[1:],
    }


def make_throughput(trace: RankTrace, cost: CostTable, trees: dict[str, StaticTree]) -> dict[str, Any]:
    """``throughput.json`` of a machine on which a sequence more costs a tenth more."""
    costs: dict[int, dict[str, StepCost]] = {}
    rows = []
    for batch in (1, 2, 4):
        costs[batch] = {}
        for name, tree in trees.items():
            ms = cost.step_ms(tree.rows, depth=tree.depth) * (0.9 + 0.1 * batch)
            costs[batch][name] = StepCost(ms, 0.0)
            steps = replay(trace, tree).steps.tolist()
            for block in range(0, len(steps), 8):
                passes = batch_passes(steps[block : block + 8], batch)
                tokens = int(replay(trace, tree).tokens[block : block + 8].sum())
                seconds = 1.03 * passes * ms / 1e3
                figures = (8, tokens, sum(steps[block : block + 8]), passes, 0.5, seconds, 0)
                rows.append(ThroughputRow(name, batch, block // 8, 0, *figures))
    named = {name: tree for name, tree in trees.items() if name != ENGINE_BASELINE}
    work = {batch: dict.fromkeys(trees, StepWork(3e8, 1e7, 1e10)) for batch in costs}
    return throughput_document(rows, named, trace, costs, work, DeviceLimits(1e10, 1e12), block=8)


def make_training(folder: Path, steps: int = 300, seed: int = 0) -> None:
    """``loss.csv`` and ``heldout.csv``."""
    generator = np.random.default_rng(seed)
    lines = ["step,tokens,loss,loss_head0,loss_head1,learning_rate"]
    for step in range(1, steps + 1):
        loss = 5.2 + 5 * np.exp(-step / 60) + generator.normal(0, 0.15)
        heads = f"{0.5 * loss:.4f},{0.7 * loss:.4f}"
        lines.append(f"{step},{step * 4096},{loss:.4f},{heads},{1e-3 * (1 - step / steps):.6f}")
    (folder / "loss.csv").write_text("\n".join(lines) + "\n")
    ks = (1, 2, 3, 5, 10)
    lines = ["tokens_seen,head," + ",".join(f"top{k}" for k in ks) + ",n"]
    for share in range(1, 9):
        for head in range(1, DEPTH + 1):
            accuracies = [0.95 * (1 - 0.6 ** (0.9 * k / head)) * (1 - np.exp(-share / 2)) for k in ks]
            lines.append(f"{share * steps * 512},{head}," + ",".join(f"{a:.4f}" for a in accuracies) + ",5000")
    (folder / "heldout.csv").write_text("\n".join(lines) + "\n")


def write_run(folder: Path, *, max_nodes: int = 63, name: str = "<b>small & odd</b>") -> Path:
    """Write all files; ``name`` is the model's, awkward on purpose."""
    folder.mkdir(parents=True, exist_ok=True)
    trace, cost = make_trace(), CostTable(tuple(make_points()))
    trace.save(folder / "trace.npz")
    cost.to_csv(folder / "cost.csv")
    AcceptanceTable.from_trace(trace, resamples=50).to_csv(folder / "acceptance.csv")
    found = make_optimize(trace, cost, max_nodes)
    best = StaticTree.from_paths(found["paths"])
    TopologyDocument(best).write(folder / "topology.json")
    csv, summary = make_bench(trace, cost, {"none": chain(0), "chain:4": chain(4), "best": best})
    (folder / "bench.csv").write_text(csv)
    manifest = {
        "schema": "mtp-bench/run",
        "version": 1,
        "created": "2026-01-01T00:00:00Z",
        "command": "mtp-bench quickstart",
        "model": {
            "name": name,
            "sha256": "0" * 64,
            "dtype": "bfloat16",
            "attention": "sdpa",
            "device": "cpu",
            "parameters": 134515008,
        },
        "environment": {"cpu": {"name": "some CPU", "cores": 2}, "versions": {"torch": "2.13"}},
    }
    throughput = make_throughput(trace, cost, {ENGINE_BASELINE: chain(0), "chain:4": chain(4), "best": best})
    documents = {"optimize": found, "bench": summary, "throughput": throughput, "run": manifest, **make_ranges(trace)}
    for file, document in documents.items():
        (folder / f"{file}.json").write_text(json.dumps(document))
    make_training(folder)
    return folder
