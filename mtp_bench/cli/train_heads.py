"""``mtp-bench train-heads``: self-distillation and training of draft heads for a base model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_bench.cli import options
from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.heads.kinds import AnyHeads
    from mtp_bench.models.base import BaseModel
    from mtp_bench.train.run import Recipe

METHODS = ("medusa", "eagle", "eagle3")
# What the heads that training goes on from have decided already.
SHAPE = ("heads", "layers", "lm_head", "intermediate_size", "draft_vocab")
LAYOUTS = {"medusa": ("vllm", "version2"), "eagle": ("eagle", "speculators"), "eagle3": ("eagle3", "speculators")}


# Options that mean something to some methods only.
OPTIONS_OF = {
    "heads": ("medusa",),
    "layers": ("medusa",),
    "lm_head": ("medusa",),
    "teacher_share": ("medusa",),
    "store_base_rows": ("medusa",),
    "unroll": ("eagle", "eagle3"),
    "intermediate_size": ("eagle", "eagle3"),
}


def train_heads(
    context: typer.Context,
    model: options.Model = "smollm2-135m",
    method: Annotated[
        str, typer.Option(help="medusa (Medusa-1: base frozen), eagle (EAGLE-1/2) or eagle3.")
    ] = "medusa",
    out: Annotated[Path, typer.Option("--out", help="Folder for the heads and the training record.")] = Path("heads"),
    init: Annotated[
        str | None, typer.Option("--init", help="Go on from these heads (folder or shipped name) with fresh rates.")
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option("--answers", help="Train on these answers (answers.jsonl of an earlier run); may repeat."),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="Training prompts (file); generated ones when left out.")
    ] = None,
    train_prompts: Annotated[int, typer.Option(min=0, help="How many generated prompts to answer.")] = 5_000,
    self_written: Annotated[
        int, typer.Option(min=0, help="How many prompts the base model itself writes, to be answered too.")
    ] = 5_000,
    limit: options.Limit = None,
    max_new_tokens: options.MaxNewTokens = 192,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Train on so many tokens of text at most.")] = None,
    heads: Annotated[int, typer.Option("--heads", min=1, help="medusa: number of heads.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="medusa: residual blocks per head.")] = 1,
    lm_head: Annotated[
        str, typer.Option(help="medusa: base (borrowed), shared (one trained) or own (one per head).")
    ] = "base",
    unroll: Annotated[int, typer.Option(min=1, help="eagle, eagle3: tokens drafted in a row while training.")] = 4,
    intermediate_size: Annotated[int, typer.Option(min=0, help="eagle, eagle3: of the MLP; 0 = the base's.")] = 0,
    draft_vocab: Annotated[int, typer.Option(min=0, help="Most frequent tokens to draft from; 0 = all.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 1e-3,
    muon_rate: Annotated[
        float, typer.Option(min=0.0, help="Peak rate of Muon, for the matrices inside the heads; 0 = AdamW for all.")
    ] = 0.02,
    decay: Annotated[float, typer.Option(help="Weight of head (or depth) k in the loss is decay^k.")] = 0.8,
    teacher_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="medusa: share of the base model's distribution in the targets.")
    ] = 0.0,
    epochs: Annotated[float, typer.Option(help="Passes over the text.")] = 2.0,
    batch_positions: Annotated[int, typer.Option(min=1, help="Text positions per training step.")] = 2048,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts answered together.")] = 128,
    layout: Annotated[
        str | None, typer.Option(help="medusa: vllm or version2; eagle, eagle3: the authors' or speculators.")
    ] = None,
    store_base_rows: Annotated[
        bool, typer.Option(help="medusa: store the borrowed LM rows, so that vLLM can load the file; larger.")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    device_map: options.DeviceMap = None,
    raw: options.Raw = False,
    seed: options.Seed = 0,
    json_output: options.Json = False,
) -> None:
    """Answer prompts with the base model, then teach heads to guess those answers; resumes where it was stopped."""
    from mtp_bench.cli.loading import load_base
    from mtp_bench.cli.output import emit_json
    from mtp_bench.progress import say
    from mtp_bench.train.eagle import EagleRecipe
    from mtp_bench.train.medusa import MedusaRecipe
    from mtp_bench.train.run import TrainingPlan, run_training

    _one_of("--method", method, METHODS)
    _refuse_foreign(context, method)
    if init is not None:
        _refuse_shape(context)
    _one_of("--lm-head", lm_head, ("base", "shared", "own"))
    _one_of("--layout", layout or LAYOUTS[method][0], LAYOUTS[method])
    recipe: Recipe
    if method == "medusa":
        recipe = MedusaRecipe(
            num_heads=heads, num_layers=layers, lm_head=lm_head, draft_vocab=draft_vocab, learning_rate=learning_rate,
            muon_rate=muon_rate, decay=decay, teacher_share=teacher_share, epochs=epochs,
            batch=batch_positions, seed=seed,
        )  # fmt: skip
    else:
        recipe = EagleRecipe(
            variant="eagle" if method == "eagle" else "eagle3",
            draft_vocab=draft_vocab,
            unroll=unroll,
            intermediate_size=intermediate_size,
            learning_rate=learning_rate,
            muon_rate=muon_rate,
            decay=decay,
            epochs=epochs,
            batch=batch_positions,
            seed=seed,
        )
    base = load_base(model, dtype=dtype, device=device, seed=seed, device_map=device_map)
    start = None
    if init is not None:
        start, recipe = _start(init, base, method, recipe)
    plan = TrainingPlan(
        out=out,
        answers=tuple(answers or ()),
        prompts=prompts,
        num_prompts=train_prompts,
        self_written=self_written,
        limit=limit,
        max_new_tokens=max_new_tokens,
        max_tokens=max_tokens,
        batch=batch,
        raw=raw,
        layout=layout or LAYOUTS[method][0],
        store_base_rows=store_base_rows,
    )
    record = run_training(base, recipe, plan, start)
    for row in record["held_out"]:
        say(f"depth {row['head'] + 1}: held-out top-1 {row['top1']:.3f}, top-5 {row['top5']:.3f}")
    say(f"heads, training record and plots: {out}")
    if json_output:
        emit_json(record)


def _refuse_foreign(context: typer.Context, method: str) -> None:
    """Raises:
    InputError: an option is given that ``method`` would ignore.
    """
    for name, methods in OPTIONS_OF.items():
        source = context.get_parameter_source(name)
        if method not in methods and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"--method {method} has no use for it",
                where=f"--{name.replace('_', '-')}",
                fix=f"leave it out; it is for {' and '.join(methods)}",
            )


def _start(init: str, base: BaseModel, method: str, recipe: Recipe) -> tuple[AnyHeads, Recipe]:
    """The heads to go on from, and the recipe with what they have decided.

    Raises:
        InputError: they are of another method.
    """
    from mtp_bench.cli.loading import load_heads

    start, info = load_heads(init, base)
    if info.method != method:
        raise InputError(f"they are {info.method} heads", where=f"--init {init}", fix=f"use --method {info.method}")
    made: dict[str, Any] = {"start": info.hash, "draft_vocab": info.draft_vocab_size or 0}
    if method == "medusa":
        made |= {"num_heads": info.num_heads, "num_layers": info.num_layers, "lm_head": info.lm_head}
    return start, replace(recipe, **made)


def _refuse_shape(context: typer.Context) -> None:
    """Raises:
    InputError: an option is given that says what heads to make, beside heads that are made.
    """
    for name in SHAPE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(
                "the heads given with --init have decided that",
                where=f"--{name.replace('_', '-')}",
                fix="leave out the one or the other",
            )


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises:
    InputError: ``value`` is not allowed.
    """
    if value not in allowed:
        raise InputError(f"unknown value {value!r}", where=option, fix=f"use {' or '.join(allowed)}")
