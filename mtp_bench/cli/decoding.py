"""What the commands that decode for real share: which prompts, which heads, and how dtypes are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtp_bench.decode.answers import Answer
    from mtp_bench.runs import RunFolder
    from mtp_bench.trace import RankTrace


def bench_material(run: RunFolder, limit: int) -> tuple[RankTrace, list[Answer], int]:
    """The trace and the answers of ``limit`` prompts of a run, and their mean context in tokens."""
    from mtp_bench.profile.run import load_answers
    from mtp_bench.trace import RankTrace

    trace = RankTrace.load(run.trace)
    chosen = choose_prompts(trace, limit)
    answers = [load_answers(run, trace)[index] for index in chosen]
    context = round(sum(len(a.prompt) + len(a.tokens) / 2 for a in answers) / len(answers))
    return trace.select(chosen), answers, context


def heads_of_run(manifest: dict[str, Any], base: Any, named: str | None) -> Any:
    """The heads that a run was profiled with, or those named instead.

    Raises:
        InputError: the heads found are not the run's.
    """
    from mtp_bench.cli.loading import load_heads
    from mtp_bench.progress import warn

    recorded = manifest["heads"]
    facts = recorded.get("facts", {})
    layers = ",".join(map(str, facts.get("aux_layers", []))) or None
    heads, info = load_heads(named or facts.get("source"), base, aux_layers=layers, depth=facts.get("depth"))
    if info.hash != recorded["hash"]:
        if named is None:
            raise InputError(
                "these are not the heads that the run was profiled with",
                where=f"--heads {facts.get('source')}",
                fix="name the run's heads with --heads, or profile again",
            )
        warn("other heads than the run was profiled with: predictions do not hold for them")
    return heads


def engine_of_run(facts: dict[str, Any], device_map: str | None) -> str:
    """The engine a run was profiled with (``facts`` of its model), where a model that is split can have it."""
    return str(facts.get("engine", "eager")) if device_map is None else "auto"


def choose_prompts(trace: Any, limit: int) -> list[int]:
    """Indices of ``limit`` answers of at least 16 tokens, round-robin over categories, in trace order."""
    by_category: dict[str, list[int]] = {}
    for index, (category, length) in enumerate(zip(trace.categories, trace.prompt_lengths.tolist(), strict=True)):
        if length >= 16:
            by_category.setdefault(category, []).append(index)
    queues = [list(reversed(indices)) for indices in by_category.values()]
    chosen: list[int] = []
    while len(chosen) < limit and any(queues):
        for queue in queues:
            if queue and len(chosen) < limit:
                chosen.append(queue.pop())
    return sorted(chosen)


def ratio_in_words(ratio: Mapping[str, Any]) -> str:
    """``1.234x [1.200, 1.267]``."""
    interval = f" [{ratio['ci'][0]:.3f}, {ratio['ci'][1]:.3f}]" if ratio["ci"] else ""
    return f"{ratio['value']:.3f}x{interval}"


def print_conditions(document: dict[str, Any]) -> None:
    """Other engines, what ours took to get ready, where it took anything, and who else used the machine."""
    if document.get("vllm"):
        facts = next(iter(document["vllm"].values()))
        typer.echo(f"vLLM {facts['vllm']} with torch {facts['torch']}, {facts['dtype']}, {facts['threads']} threads")
    if document["compile_s"]:
        typer.echo(f"compiling took {document['compile_s']:.1f} s, in none of these figures")
    if document["other_work"]:
        typer.echo(f"meanwhile {other_work_in_words(document['other_work'])}")


def other_work_in_words(other_work: dict[str, float]) -> str:
    """See ``Meanwhile.other_work``."""
    text = f"other programs used {100 * other_work['programs']:.0f}% of the processors' time"
    stolen = f"{100 * other_work['stolen']:.0f}%"
    return text if stolen == "0%" else f"{text}, and the host gave {stolen} of it to other guests"


def short_dtype(dtype: str) -> str:
    """``bfloat16`` -> ``bf16``, as the option is written."""
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)
