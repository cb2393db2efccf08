"""``mtp-bench profile``: acceptance rates and verification costs of a model with its heads on this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.cli.command_line import command_line
from mtp_bench.cli.shards import HELP as SHARD_HELP
from mtp_bench.cli.shards import choose_shard

if TYPE_CHECKING:
    from mtp_bench.profile.costs import SweepOptions


def profile(
    model: options.Model = "smollm2-135m",
    heads: options.Heads = None,
    aux_layers: options.AuxLayers = None,
    depth: options.Depth = None,
    prompts: options.Prompts = None,
    limit: options.Limit = None,
    max_new_tokens: options.MaxNewTokens = 128,
    max_rows: Annotated[int, typer.Option(min=2, help="Measure costs up to so many rows (nodes + 1).")] = 64,
    context: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="Cached tokens to measure costs at; may repeat.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Timings per cost.")] = 20,
    costs: Annotated[
        bool, typer.Option("--costs/--no-costs", help="Whether to measure costs; only the first shard does.")
    ] = True,
    top_k: Annotated[int, typer.Option(min=1, help="Ranks recorded per head.")] = 10,
    dynamic_top_k: options.DynamicTopK = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts answered together when text is made.")] = 32,
    shard: Annotated[str | None, typer.Option(help=SHARD_HELP)] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    attention: options.Attention = "auto",
    engine: options.Engine = "auto",
    raw: options.Raw = False,
    seed: options.Seed = 0,
    out: options.Out = None,
    json_output: options.Json = False,
) -> None:
    """Record how often drafted tokens are accepted and what verifying them costs; resumes where it was stopped."""
    from mtp_bench.cli.loading import load_base, load_heads
    from mtp_bench.cli.output import emit_json
    from mtp_bench.profile.run import ProfileOptions, default_folder, run_profile
    from mtp_bench.progress import say
    from mtp_bench.prompts.load import load_prompts
    from mtp_bench.runs import RESULTS, RunFolder

    part = choose_shard(shard, os.environ)
    if part.local_rank is not None:
        say(f"shard {part.index}/{part.count}, as the launcher's environment says (--shard 0/1: all prompts)")
    # Before the model is loaded, so that a broken file is refused at once.
    prompt_set = load_prompts(prompts, limit)
    base = load_base(
        model, dtype=dtype, device=device if device_map else part.device(device), attention=attention, engine=engine,
        seed=seed, device_map=device_map,
    )  # fmt: skip
    loaded, info = load_heads(heads, base, aux_layers=aux_layers, depth=depth)
    run = RunFolder(part.folder(out) if out else default_folder(RESULTS, base, part.part))
    dynamic = options.parse_dynamic_top_ks(dynamic_top_k, info.method)
    vocabulary = info.draft_vocab_size or base.vocab_size
    options.check_top_k(top_k, "--top-k", vocabulary)
    options.check_top_k(max(dynamic, default=0), "--dynamic-top-k", vocabulary)
    sweep = replace(default_sweep(max_rows, context, rounds, seed), dynamic_top_ks=dynamic)
    settings = ProfileOptions(
        max_new_tokens=max_new_tokens, batch=batch, top_k=top_k, dynamic_top_ks=dynamic, raw=raw, shard=part.part,
        seed=seed,
    )  # fmt: skip
    command = command_line()
    # One measurement is enough, and shards that share a machine would disturb each other's.
    measured = sweep if costs and part.index == 0 else None
    with run.exclusive():
        manifest = run_profile(base, loaded, info, prompt_set, run, settings, measured, command)
    following = f"optimize-tree --profile {run.path}" if part.count == 1 else "merge SHARD... --out FOLDER"
    say(f"profile: {run.path}\n  next: mtp-bench {following}")
    if json_output:
        emit_json({"run": str(run.path), **manifest})


def default_sweep(max_rows: int, contexts: list[int] | None, rounds: int, seed: int) -> SweepOptions:
    """Costs of up to ``max_rows`` rows at two contexts unless others are named."""
    from mtp_bench.profile.costs import SweepOptions, default_rows

    return SweepOptions(rows=default_rows(max_rows), contexts=tuple(contexts or (128, 512)), rounds=rounds, seed=seed)
