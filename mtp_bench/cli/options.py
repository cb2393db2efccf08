"""Options that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtp_bench.errors import InputError

DYNAMIC_TOP_KS = (2, 4, 8)

Model = Annotated[
    str, typer.Option("--model", help="Base model: alias (vicuna-7b, smollm2-135m), hub id, folder or GGUF file.")
]
Heads = Annotated[
    str | None, typer.Option("--heads", help="Heads: folder or shipped name; the model's shipped heads when left out.")
]
AuxLayers = Annotated[
    str | None,
    typer.Option(
        "--aux-layers", help="Layers whose inputs an EAGLE-3 draft reads (2,15,27); its config's when left out."
    ),
]
Depth = Annotated[
    int | None, typer.Option("--depth", min=1, help="Tokens an EAGLE draft may draft in a row; 6 when left out.")
]
Prompts = Annotated[
    str | None,
    typer.Option("--prompts", help="Prompt file (Spec-Bench, ShareGPT, JSONL or text); the shipped ones if left out."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Use only so many prompts, balanced by category.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=2, help="Tokens to emit per answer at most.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, bf16, fp16 or fp32.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Split the base model by layers over all GPUs: auto, balanced, balanced_low_0, sequential, or a JSON file "
        "{module: device}; runs eagerly.",
    ),
]
Attention = Annotated[
    str,
    typer.Option(
        "--attention",
        help="auto (grouped_sdpa; eager where scores are soft-capped), grouped_sdpa, sdpa, eager, or flex "
        "(FlexAttention: right but slow on a CPU; on CUDA compiled, not yet run on a GPU).",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="How steps run: auto (graph on CUDA, native on a CPU), eager, packed, native, graph, "
        "compiled (minutes to start).",
    ),
]
RunEngine = Annotated[
    str | None, typer.Option("--engine", help="eager, packed, native, compiled or graph; the run's when left out.")
]
LoadFormat = Annotated[str, typer.Option("--load-format", help="auto, or dummy for random weights (costs only).")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Raw = Annotated[bool, typer.Option("--raw", help="Feed prompts as plain text, without a chat template.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")]
DynamicTopK = Annotated[
    str | None,
    typer.Option(help="EAGLE: record or cost dynamic trees with these top_k too (2,4,8 when left out; 0 = none)."),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Run folder or trace.npz; the newest run if left out.")]
Vllm = Annotated[
    str | None, typer.Option("--vllm", help="A Python whose environment has vLLM's CPU build: also time vLLM.")
]
VllmLookup = Annotated[
    bool, typer.Option("--vllm-lookup/--no-vllm-lookup", help="With --vllm: also time its prompt-lookup decoding.")
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences decoded together.")]
Batches = Annotated[str, typer.Option("--batch", help="Batch sizes, e.g. 1,4,8.")]
Topologies = Annotated[
    list[str] | None,
    typer.Option(
        "--topology",
        help="A file, a shipped name, chain:4, dynamic:5,4,12 (depth, top_k, num_nodes) or none; may repeat.",
    ),
]


def parse_batches(text: str) -> tuple[int, ...]:
    """``1,4,8`` -> batch sizes, ascending.

    Raises:
        InputError: not a list of positive numbers.
    """
    return parse_sizes(text, "--batch", "batch sizes")


def parse_sizes(text: str, option: str, what: str) -> tuple[int, ...]:
    """``1,4,8`` -> positive whole numbers, ascending; ``option`` and ``what`` are for messages.

    Raises:
        InputError: not a list of positive numbers.
    """
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise InputError(f"{text!r} is no list of {what}", where=option, fix="write e.g. 1,4,8") from error
    if sizes[0] < 1:
        raise InputError(f"{what} start at 1, not {sizes[0]}", where=option, fix="use 1 or more")
    return sizes


def check_top_k(top_k: int, option: str, vocabulary: int) -> None:
    """Raises:
    InputError: more tokens per place than there are to choose from.
    """
    if top_k > vocabulary:
        raise InputError(
            f"top_k {top_k:,} is larger than the vocabulary drafted from, {vocabulary:,} tokens",
            where=option,
            fix="use fewer",
        )


def parse_dynamic_top_ks(text: str | None, method: str | None) -> tuple[int, ...]:
    """``2,4,8`` -> numbers; by default those for EAGLE drafts, none for other heads, which cannot draft them.

    Args:
        method: of the heads, None = there are none.

    Raises:
        InputError: not a list of whole numbers, or asked for without an EAGLE draft.
    """
    eagle = method is not None and method.startswith("eagle")
    if text is None:
        return DYNAMIC_TOP_KS if eagle else ()
    if not all(part.isascii() and part.isdigit() for part in text.split(",")):
        raise InputError(f"{text!r} is no list of numbers", where="--dynamic-top-k", fix="write e.g. 2,4,8")
    found = tuple(sorted({int(part) for part in text.split(",")} - {0}))
    if found and not eagle:
        whose = "no heads" if method is None else f"{method.capitalize()} heads"
        raise InputError(f"{whose} cannot draft dynamic trees", where="--dynamic-top-k", fix="leave it out")
    return found
