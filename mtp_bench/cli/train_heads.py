"""``mtp-bench train-heads``: self-distillation and training of draft heads for a base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtp_bench.cli import options
from mtp_bench.errors import InputError


def train_heads(
    model: options.Model = "smollm2-135m",
    method: Annotated[str, typer.Option(help="medusa (Medusa-1: base frozen).")] = "medusa",
    out: Annotated[Path, typer.Option("--out", help="Folder for the heads and the training record.")] = Path("heads"),
    answers: Annotated[
        Path | None, typer.Option("--answers", help="Train on these answers (answers.jsonl of an earlier run).")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="Training prompts (file); generated ones when left out.")
    ] = None,
    train_prompts: Annotated[int, typer.Option(min=2, help="How many generated prompts to answer.")] = 10_000,
    limit: options.Limit = None,
    max_new_tokens: options.MaxNewTokens = 192,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Train on so many tokens of text at most.")] = None,
    heads: Annotated[int, typer.Option("--heads", min=1, help="Number of heads.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Residual blocks per head.")] = 1,
    lm_head: Annotated[str, typer.Option(help="base (borrowed), shared (one trained) or own (one per head).")] = "base",
    draft_vocab: Annotated[int, typer.Option(min=0, help="Most frequent tokens to draft from; 0 = all.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    decay: Annotated[float, typer.Option(help="Weight of head k in the loss is decay^k.")] = 0.8,
    teacher_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the base model's distribution in the targets.")
    ] = 0.0,
    epochs: Annotated[float, typer.Option(help="Passes over the text.")] = 2.0,
    batch_positions: Annotated[int, typer.Option(min=1, help="Text positions per training step.")] = 2048,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts answered together.")] = 128,
    layout: Annotated[str, typer.Option(help="vllm or version2.")] = "vllm",
    store_base_rows: Annotated[
        bool, typer.Option(help="Store the borrowed LM rows, so that vLLM can load the file; larger.")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    raw: options.Raw = False,
    seed: options.Seed = 0,
    json_output: options.Json = False,
) -> None:
    """Answer prompts with the base model, then teach heads to guess those answers; resumes where it was stopped."""
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.output import emit_json
    from mtp_bench.progress import say
    from mtp_bench.train.medusa import MedusaRecipe
    from mtp_bench.train.run import TrainingPlan, run_training

    if method != "medusa":
        raise InputError(f"unknown method {method!r}", where="--method", fix="use medusa")
    if lm_head not in ("base", "shared", "own"):
        raise InputError(f"unknown LM head {lm_head!r}", where="--lm-head", fix="use base, shared or own")
    if layout not in ("vllm", "version2"):
        raise InputError(f"unknown layout {layout!r}", where="--layout", fix="use vllm or version2")
    recipe = MedusaRecipe(
        num_heads=heads, num_layers=layers, lm_head=lm_head, draft_vocab=draft_vocab, learning_rate=learning_rate,
        decay=decay, teacher_share=teacher_share, epochs=epochs, batch=batch_positions, seed=seed,
    )  # fmt: skip
    base = load_base(model, dtype=dtype, device=device, seed=seed)
    plan = TrainingPlan(
        out=out,
        answers=answers,
        prompts=prompts,
        num_prompts=train_prompts,
        limit=limit,
        max_new_tokens=max_new_tokens,
        max_tokens=max_tokens,
        batch=batch,
        raw=raw,
        layout=layout,
        store_base_rows=store_base_rows,
    )
    record = run_training(base, recipe, plan)
    for row in record["held_out"]:
        say(f"head {row['head']}: held-out top-1 {row['top1']:.3f}, top-5 {row['top5']:.3f}")
    say(f"heads, training record and plots: {out}")
    if json_output:
        emit_json(record)
