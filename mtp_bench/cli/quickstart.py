"""``mtp-bench quickstart``: everything once, on the packaged reference model with its shipped heads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_bench.cli import options
from mtp_bench.cli.command_line import command_line

if TYPE_CHECKING:
    from mtp_bench.runs import RunFolder
    from mtp_bench.search.optimize import Optimization

BLURRING_SHARE = 0.05  # of the processors' time, used by others


@dataclass(frozen=True)
class _Effort:
    """How much of everything a run does.

    Attributes:
        contexts: at which costs are measured.
        others: bench the tree that people take without measuring too.
    """

    prompts: int
    max_new_tokens: int
    contexts: tuple[int, ...]
    rounds: int
    bench_prompts: int
    others: bool


FULL = _Effort(prompts=108, max_new_tokens=128, contexts=(128, 512), rounds=12, bench_prompts=18, others=True)
# Its text is short: all of it lies near one context.
FAST = _Effort(prompts=36, max_new_tokens=64, contexts=(128,), rounds=7, bench_prompts=6, others=False)


def quickstart(
    fast: Annotated[bool, typer.Option("--fast", help="A shorter run with wider intervals.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    engine: options.Engine = "auto",
    budget: Annotated[int, typer.Option(min=1, help="Most nodes of a tree.")] = 63,
    seed: options.Seed = 0,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Profile, optimize, bench and report the reference model: the whole tool in one command."""
    from mtp_bench.cli.bench import bench_run, check_bench, print_bench
    from mtp_bench.cli.loading import load_base, load_heads
    from mtp_bench.cli.output import emit_json
    from mtp_bench.cli.profile import default_sweep
    from mtp_bench.models.reference import ALIAS
    from mtp_bench.profile.run import ProfileOptions, run_profile
    from mtp_bench.progress import say
    from mtp_bench.prompts.load import load_prompts
    from mtp_bench.report.write import write_report
    from mtp_bench.runs import RESULTS, RunFolder

    start = time.perf_counter()
    effort = FAST if fast else FULL
    say("1/4 profile: text, acceptance rates, costs")
    base = load_base(ALIAS, dtype=dtype, device=device, engine=engine, seed=seed, device_map=device_map)
    heads, info = load_heads(None, base)
    run = RunFolder(out or RESULTS / ("quickstart-fast" if fast else "quickstart"))
    command = command_line()
    settings = ProfileOptions(max_new_tokens=effort.max_new_tokens, seed=seed)
    sweep = default_sweep(budget + 1, list(effort.contexts), effort.rounds, seed)
    run_profile(base, heads, info, load_prompts(None, effort.prompts), run, settings, sweep, command)
    say("2/4 optimize-tree: the fastest tree for these rates and costs")
    found, document = _optimize(run, budget, seed)
    say("3/4 bench: real decoding, interleaved with the baselines")
    trees = {"winner": found.topology} if found.topology.num_nodes else {}
    if effort.others:
        trees |= _others(found)
    measured = bench_run(run, base, heads, trees, limit=effort.bench_prompts, repeats=1, hf=True, seed=seed)
    print_bench(measured)
    say("4/4 report: CSV and plots")
    write_report(run.path)
    _card(run, found, measured, time.perf_counter() - start)
    if json_output:
        emit_json({"run": str(run.path), "optimize": document, "bench": measured})
    check_bench(measured, None)


def _optimize(run: RunFolder, budget: int, seed: int) -> tuple[Optimization, dict[str, Any]]:
    from mtp_bench.cli.acceptance import read_measured
    from mtp_bench.cli.optimize_tree import search_and_write

    measured = read_measured(str(run.path), None, None)
    return search_and_write(measured, budget=budget, context=measured.mean_context, seed=seed)


def _others(found: Optimization) -> dict[str, Any]:
    """The tree people would take without measuring, benched beside the winner: Medusa's published default."""
    from mtp_bench.topology import resolve

    published = resolve("mc_sim_7b_63")
    fits = published.depth <= found.exact.max_depth and published.num_nodes <= found.exact.max_nodes
    return {"mc_sim_7b_63": published} if fits else {}


def _card(run: RunFolder, found: Optimization, measured: dict[str, Any], seconds: float) -> None:
    from mtp_bench.cli.decoding import other_work_in_words

    engine = measured["baseline"]["engine"]
    winner = next((tree for tree in measured["trees"] if tree["tree"] == "winner"), None)
    lines = ["", "-" * 78]
    if found.exact.do_not_speculate or winner is None:
        lines.append("Found: do not speculate here; plain decoding is the fastest.")
    else:
        interval = winner["speedup_ci"]
        lines += [
            f"Found: a tree of {winner['num_nodes']} nodes, depth {winner['depth']}, emits "
            f"{winner['tokens_per_step']:.2f} tokens_per_step.",
            f"Measured: {winner['tokens_per_s']:.1f} tokens/s against {engine['tokens_per_s']:.1f} of plain decoding: "
            f"{winner['speedup']:.2f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "") + ".",
        ]
        if "speedup_over_hf" in winner:
            lines.append(f"Over Hugging Face generate: {winner['speedup_over_hf']['value']:.2f}x.")
        lines += [
            f"How sure: predicted {winner['predicted_tokens_per_s']:.1f} tokens/s "
            f"({100 * winner['prediction_error']:+.1f}% off the measurement); "
            f"{winner['divergences']} of {winner['runs']} outputs differ from plain greedy decoding"
            + (f", {winner['divergences_at_near_ties']} at a near-tie." if winner["divergences"] else "."),
        ]
        if measured["other_work"]:
            blurs = ": that blurs these figures" if sum(measured["other_work"].values()) >= BLURRING_SHARE else ""
            lines.append(f"Meanwhile {other_work_in_words(measured['other_work'])}{blurs}.")
    lines += [
        f"Files: {run.path}/ (report.html, plots/, *.csv, topology.json)",
        "Next, with your own model and heads:",
        "  mtp-bench profile --model vicuna-7b --heads ckpt/",
        "  mtp-bench optimize-tree --budget 63 && mtp-bench bench && mtp-bench export --to medusa",
        f"({seconds / 60:.1f} minutes)",
        "-" * 78,
    ]
    typer.echo("\n".join(lines))
