"""What ``mtp-bench bench --batch 1,4,8`` does: decode in batches, and hold predictions against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mtp_bench.decode.answers import Answer
    from mtp_bench.runs import RunFolder

# Prompts per queue, as a multiple of the largest batch: few enough for pairs, enough that slots are mostly busy.
QUEUE = 2
# Steps timed beside each request that ends: few, since many requests end in a queue, and they are spread over it.
TIMED = 2


def throughput_run(
    run: RunFolder, base: Any, heads: Any, trees: Any, batches: tuple[int, ...], *, limit: int, repeats: int, seed: int
) -> dict[str, Any]:
    """Decode a run's prompts at every batch size; writes throughput.json, its CSV and plot; return the document."""
    from mtp_bench.cli.decoding import bench_material
    from mtp_bench.decode.bench import ENGINE_BASELINE, Contender
    from mtp_bench.decode.throughput import run_throughput
    from mtp_bench.files import write_json
    from mtp_bench.models.graph import compile_seconds
    from mtp_bench.profile.accounting import measure_limits, step_work
    from mtp_bench.profile.costs import StepTimer
    from mtp_bench.profile.environment import environment, model_facts, timestamp
    from mtp_bench.profile.other_work import Meanwhile
    from mtp_bench.profile.throughput import throughput_document
    from mtp_bench.progress import progress, running_totals
    from mtp_bench.report.throughput import write_throughput
    from mtp_bench.topology import StaticTree

    trace, answers, context = bench_material(run, max(limit, max(batches)))
    contenders = {name: Contender(tree, heads) for name, tree in trees.items()}
    everyone = {ENGINE_BASELINE: (None, StaticTree(())), **{name: (heads, tree) for name, tree in trees.items()}}
    limits = measure_limits(base.device, base.dtype)
    work = {
        batch: {n: step_work(base, some, tree, batch=batch, context=context) for n, (some, tree) in everyone.items()}
        for batch in batches
    }
    block = QUEUE * max(batches)
    longest = {batch: _longest_context(answers, batch, block) for batch in batches}
    timers = {
        batch: StepTimer(base, everyone, longest[batch], batch=batch, in_a_row=TIMED, seed=seed) for batch in batches
    }
    meanwhile = Meanwhile()
    planned = len(everyone) * len(batches) * len(answers) * repeats
    with progress("decoding in batches", planned, "answers") as advance:
        rows = run_throughput(
            base, contenders, answers, batches, block=block, repeats=repeats, seed=seed,
            beside=lambda arm, batch: timers[batch].round(arm), on_progress=running_totals(advance),
        )  # fmt: skip
    costs = {batch: timer.costs() for batch, timer in timers.items()}
    document = throughput_document(rows, trees, trace, costs, work, limits, block=block, seed=seed)
    document |= {
        "created": timestamp(), "prompts": len(answers), "context": context, "longest_context": longest,
        "model": model_facts(base),
        "environment": environment(base), "other_work": meanwhile.other_work(),
        "compile_s": compile_seconds(),
    }  # fmt: skip
    write_json(run.throughput, document)
    write_throughput(document, run.path)
    return document


def _longest_context(answers: list[Answer], batch: int, block: int) -> int:
    """Tokens that a pass of the batch attends over: its longest request's context, on average over all queues."""
    from mtp_bench.trace import mean_longest_context

    queues = [answers[start : start + block] for start in range(0, len(answers), block)]
    return round(
        sum(
            mean_longest_context([len(a.prompt) for a in queue], [len(a.tokens) - 1 for a in queue], batch)
            for queue in queues
        )
        / len(queues)
    )


def print_throughput(document: dict[str, Any]) -> None:
    """The table for people."""
    from rich.console import Console
    from rich.table import Table

    from mtp_bench.cli.decoding import print_conditions

    table = Table(
        "batch", "tree", "N", "tokens_per_step", "pass ms", "tokens/s", "predicted", "speedup", "GB/s", "floor"
    )
    for one in document["points"]:
        interval = one["speedup_ci"]
        speedup = f"{one['speedup']:.3f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
        table.add_row(
            str(one["batch"]),
            one["tree"],
            str(one["num_nodes"]),
            f"{one['tokens_per_step']:.3f}",
            f"{one['pass_ms']:.2f}",
            f"{one['tokens_per_s']:.1f}",
            f"{one['predicted_tokens_per_s']:.1f} ({100 * one['prediction_error']:+.1f}%)",
            speedup,
            f"{one['work']['bytes_per_s'] / 1e9:.1f}",
            f"{100 * one['work']['share_of_floor']:.0f}%",
        )
    Console(width=150, highlight=False).print(table)
    typer.echo(
        f"{document['prompts']} prompts in queues of {document['block']}; tokens/s of all requests together, prefill "
        "apart; floor: the least time for the step's bytes and operations, as a share of the time it took"
    )
    print_conditions(document)
    best = max(document["points"], key=lambda one: one["tokens_per_s"])
    typer.echo(f"highest throughput: {best['tokens_per_s']:.1f} tokens/s, {best['tree']} at batch {best['batch']}")
