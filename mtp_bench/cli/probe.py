"""``mtp-bench probe``: whether a model verifies trees correctly with an attention kernel."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mtp_bench.cli import options


def probe(
    model: options.Model = "smollm2-135m",
    topology: Annotated[str, typer.Option("--topology", help="Tree to probe with.")] = "mc_sim_7b_63",
    load_format: options.LoadFormat = "auto",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    attention: options.Attention = "auto",
    engine: options.Engine = "auto",
    seed: options.Seed = 0,
    json_output: options.Json = False,
) -> None:
    """Compare each node's logits in the tree with those of its path alone; exit code 3 if they differ."""
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.output import emit_json
    from mtp_bench.decode.probe import probe_tree
    from mtp_bench.topology import resolve

    tree = resolve(topology)
    base = load_base(
        model, dtype=dtype, device=device, attention=attention, engine=engine, load_format=load_format, seed=seed,
        device_map=device_map,
    )  # fmt: skip
    prompt = [(7 * i + 3) % base.vocab_size for i in range(24)]
    result = probe_tree(base, tree, prompt, seed=seed)
    typer.echo(
        f"{result.num_nodes} nodes with {result.attention}: worst difference {result.worst:.3g} standard deviations "
        f"(allowed {result.tolerance:g}), same greedy token at {100 * result.greedy_agreement:.1f}% of rows: passed"
    )
    if json_output:
        emit_json(asdict(result))
