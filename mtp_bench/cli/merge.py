"""``mtp-bench merge``: one run from the shards of a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtp_bench.cli import options


def merge(
    shards: Annotated[list[str], typer.Argument(help="Run folders that profile --shard i/n wrote.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the merged run.")],
    json_output: options.Json = False,
) -> None:
    """Merge shards: the same trace, acceptance.csv and text as one unsharded profile gives, in any order of shards."""
    from mtp_bench.cli.output import emit_json
    from mtp_bench.progress import say
    from mtp_bench.runs import RunFolder, open_run
    from mtp_bench.trace.shards import merge_runs

    trace = merge_runs([open_run(name) for name in shards], RunFolder(out))
    say(f"merged {len(shards)} shards, {trace.num_prompts} answers, {trace.num_positions} positions: {out}")
    if json_output:
        emit_json({"run": str(out), "prompts": trace.num_prompts, "positions": trace.num_positions})
