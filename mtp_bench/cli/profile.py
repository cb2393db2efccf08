"""``mtp-bench profile``: acceptance rates and verification costs of a model with its heads on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.cli.command_line import command_line
from mtp_bench.errors import InputError

DYNAMIC_TOP_KS = (2, 4, 8)

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
    costs: Annotated[bool, typer.Option("--costs/--no-costs", help="Whether to measure costs.")] = True,
    top_k: Annotated[int, typer.Option(min=1, help="Ranks recorded per head.")] = 10,
    dynamic_top_k: Annotated[
        str | None,
        typer.Option(help="EAGLE: record and cost dynamic trees with these top_k (2,4,8 when left out; 0 = none)."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts answered together when text is made.")] = 32,
    shard: Annotated[str, typer.Option(help="i/n: profile only every n-th prompt from the i-th (0-based) on.")] = "0/1",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
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

    part = parse_shard(shard)
    # Before the model is loaded, so that a broken file is refused at once.
    prompt_set = load_prompts(prompts, limit)
    base = load_base(model, dtype=dtype, device=device, attention=attention, engine=engine, seed=seed)
    loaded, info = load_heads(heads, base, aux_layers=aux_layers, depth=depth)
    run = RunFolder(out or default_folder(RESULTS, base, part))
    dynamic = _dynamic_top_ks(dynamic_top_k, info.method)
    sweep = replace(default_sweep(max_rows, context, rounds, seed), dynamic_top_ks=dynamic)
    settings = ProfileOptions(
        max_new_tokens=max_new_tokens, batch=batch, top_k=top_k, dynamic_top_ks=dynamic, raw=raw, shard=part, seed=seed
    )
    command = command_line()
    manifest = run_profile(base, loaded, info, prompt_set, run, settings, sweep if costs else None, command)
    say(f"profile: {run.path}\n  next: mtp-bench optimize-tree --profile {run.path}")
    if json_output:
        emit_json({"run": str(run.path), **manifest})


def default_sweep(max_rows: int, contexts: list[int] | None, rounds: int, seed: int) -> SweepOptions:
    """Costs of up to ``max_rows`` rows at two contexts unless others are named."""
    from mtp_bench.profile.costs import SweepOptions, default_rows

    return SweepOptions(rows=default_rows(max_rows), contexts=tuple(contexts or (128, 512)), rounds=rounds, seed=seed)


def _dynamic_top_ks(text: str | None, method: str) -> tuple[int, ...]:
    """``2,4,8`` -> numbers; by default those for EAGLE drafts, none for Medusa heads, which cannot draft them.

    Raises:
        InputError: not a list of whole numbers, or asked for with Medusa heads.
    """
    if text is None:
        return DYNAMIC_TOP_KS if method.startswith("eagle") else ()
    if not all(part.isascii() and part.isdigit() for part in text.split(",")):
        raise InputError(f"{text!r} is no list of numbers", where="--dynamic-top-k", fix="write e.g. 2,4,8")
    found = tuple(sorted({int(part) for part in text.split(",")} - {0}))
    if found and not method.startswith("eagle"):
        raise InputError(
            f"{method.capitalize()} heads cannot draft dynamic trees", where="--dynamic-top-k", fix="leave it out"
        )
    return found


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n`` -> (i, n).

    Raises:
        InputError: not of that form, or i outside 0..n-1.
    """
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(f"not a shard: {text!r}", where="--shard", fix="give i/n with 0 <= i < n, such as 0/4")
