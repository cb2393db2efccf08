"""A whole profile: text, trace, check against live decoding, costs, manifest. Every stage resumes.

Stages leave their files in the run folder; a stage whose file is there and belongs to the same settings is not run
again, so a killed profile goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mtp_bench.cost import CostPoint, CostTable, floor_warnings
from mtp_bench.decode.answers import Answer, answer_all, stored_answers
from mtp_bench.decode.probe import probe_tree
from mtp_bench.errors import CheckFailed, InputError
from mtp_bench.files import remove_leftovers, sha256_json
from mtp_bench.heads.base import HeadsInfo
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import ChatFormat, chat_format
from mtp_bench.profile.accounting import measure_limits
from mtp_bench.profile.alignment import alignment_hint
from mtp_bench.profile.cells import draft_places
from mtp_bench.profile.costs import SweepOptions, sweep_costs
from mtp_bench.profile.environment import environment, machine_key, model_facts, timestamp
from mtp_bench.profile.floors import with_floors
from mtp_bench.profile.live import LiveCheck, check_live
from mtp_bench.profile.record import record_trace
from mtp_bench.profile.timings import Timings
from mtp_bench.progress import progress, running_totals, say, warn
from mtp_bench.prompts.prompt import PromptSet
from mtp_bench.runs import RunFolder
from mtp_bench.topology.shapes import typical_tree
from mtp_bench.trace import AcceptanceTable, RankTrace

COLLAPSE_STEPS = 100


@dataclass(frozen=True)
class ProfileOptions:
    """Settings of a profile that are not the model's, heads' or prompts'."""

    max_new_tokens: int = 128
    batch: int = 32
    top_k: int = 10
    dynamic_top_ks: tuple[int, ...] = ()
    raw: bool = False
    live_prompts: int = 4
    shard: tuple[int, int] = (0, 1)
    seed: int = 0


def run_profile(
    base: BaseModel,
    heads: AnyHeads,
    heads_info: HeadsInfo,
    prompts: PromptSet,
    run: RunFolder,
    options: ProfileOptions,
    sweep: SweepOptions | None,
    command: str,
) -> dict[str, Any]:
    """Profile into ``run``; return the manifest.

    Args:
        sweep: what costs to measure; None = none.
        command: the command line, for the manifest.

    Raises:
        InputError: ``run`` holds another profile.
        CheckFailed: the probe failed, fp32 replay differs from live decoding, or nothing at all was accepted.
    """
    chat = chat_format(base, raw=options.raw)
    own = _own_prompts(prompts, options.shard)
    facts = _facts(base, heads_info, prompts, chat, options, sweep, command)
    _claim(run, facts)
    tree = typical_tree(15, depth=heads.max_depth, top_k=options.top_k)
    first = chat.encode([("user", own.prompts[0].turns[0])])
    probe = probe_tree(base, tree, first)
    say(
        f"probe: tree logits with {probe.attention} equal per-path logits "
        f"(worst {probe.worst:.2g} of {probe.tolerance:g} allowed)"
    )
    answers = _answer(base, chat, own, run, options)
    trace = _record(base, heads, answers, run, options)
    live = _check(base, heads, trace, answers, options)
    facts |= {
        "probe": asdict(probe),
        "live_check": live.document(),
        "text": _text_facts(answers, trace),
    }
    if sweep is not None:
        _measure(base, heads, run, sweep, facts)
    facts["finished"] = timestamp()
    run.write_manifest(facts)
    return facts


def _facts(
    base: BaseModel,
    heads_info: HeadsInfo,
    prompts: PromptSet,
    chat: ChatFormat,
    options: ProfileOptions,
    sweep: SweepOptions | None,
    command: str,
) -> dict[str, Any]:
    identity = {
        "model": model_facts(base),
        "heads": heads_info.to_dict(),
        "prompts": {
            "name": prompts.name,
            "sha256": prompts.sha256,
            "count": len(prompts.prompts),
            "ids": [prompt.id for prompt in prompts.prompts],
        },
        "options": asdict(options) | {"shard": list(options.shard)},
    }
    return {
        "kind": "profile",
        "key": sha256_json(identity),
        "created": timestamp(),
        "command": command,
        **identity,
        "acceptance_rule": "greedy",
        "first_prompt": chat.fingerprint([("user", prompts.prompts[0].turns[0])]),
        "sweep": None if sweep is None else asdict(sweep),
        "device_limits": None,
        "environment": environment(base),
        "finished": None,
    }


def _claim(run: RunFolder, facts: dict[str, Any]) -> None:
    """Write the manifest, or find that this very profile was begun here before."""
    earlier = run.claim(facts["key"], "a profile with another model, heads, prompts or settings")
    if earlier is not None:
        say(f"resuming {run.path}")
        facts["device_limits"] = earlier.get("device_limits")
    remove_leftovers(run.path)
    run.write_manifest(facts)


def _own_prompts(prompts: PromptSet, shard: tuple[int, int]) -> PromptSet:
    index, count = shard
    own = prompts.prompts[index::count]
    if not own:
        raise InputError(
            f"shard {index}/{count} has no prompt: there are only {len(prompts.prompts)}",
            where="--shard",
            fix="use fewer shards or more prompts",
        )
    return replace(prompts, prompts=own)


def _answer(
    base: BaseModel, chat: ChatFormat, prompts: PromptSet, run: RunFolder, options: ProfileOptions
) -> list[Answer]:
    turns = sum(len(prompt.turns) for prompt in prompts.prompts)
    with progress("text", turns, "answers") as advance:
        # Eagerly, so that the text does not depend on the engine.
        answers = answer_all(
            replace(base, engine="eager"),
            chat,
            prompts.prompts,
            run.answers,
            max_new_tokens=options.max_new_tokens,
            batch=options.batch,
            on_answer=lambda _: advance(1),
        )
    missing = turns - len(answers)
    if missing:
        warn(f"{missing} turns have prompts of over 1024 tokens, or too long for the model, and were left out")
    return answers


def _record(
    base: BaseModel, heads: AnyHeads, answers: Sequence[Answer], run: RunFolder, options: ProfileOptions
) -> RankTrace:
    total = sum(len(answer.tokens) for answer in answers)
    if total == 0:
        raise InputError("no answer has any text that does not loop", where="--prompts", fix="use other prompts")
    with progress("trace", total, "tok") as advance:
        trace = record_trace(
            base, heads, answers, top_k=options.top_k, dynamic_top_ks=options.dynamic_top_ks, on_progress=advance
        )
    hint = alignment_hint(base, heads, answers)
    # A step accepts nothing unless its first depth hits.
    if trace.num_starts > COLLAPSE_STEPS and not (trace.ranks[:, 0] >= 0).any():
        raise CheckFailed(
            f"not one drafted token was accepted in {trace.num_starts} positions: tokens_per_step would be 1.00",
            where="trace",
            fix=hint or "the heads do not fit this base model, or are loaded wrongly; see mtp-bench inspect",
        )
    if hint:
        warn(hint)
    trace.save(run.trace)
    AcceptanceTable.from_trace(trace, seed=options.seed).to_csv(run.acceptance)
    return trace


def _check(
    base: BaseModel, heads: AnyHeads, trace: RankTrace, answers: Sequence[Answer], options: ProfileOptions
) -> LiveCheck:
    import torch

    sample = [answer for answer in answers if len(answer.tokens) > 1][: options.live_prompts]
    tree = typical_tree(31, depth=heads.max_depth, top_k=options.top_k)
    with progress("live check", 1) as advance:
        live = check_live(base, heads, tree, trace, sample)
        advance(1)
    say(
        f"live check: {live.same_text} of {live.prompts} texts equal; on the {live.agreeing_tokens} of {live.tokens} "
        f"tokens that agree {live.live_steps} steps live, {live.replayed_steps} replayed, the same ones in "
        f"{live.same_steps} of {live.prompts}"
    )
    if live.prompts and not live.live_steps:
        warn("so no steps were compared: rounding took every text elsewhere at once; --dtype fp32 compares them all")
    if base.dtype == torch.float32 and not live.exact:
        raise CheckFailed(
            f"in fp32 live decoding and replay must agree: {live}",
            where="live check",
            fix="report this with the model's name; tree decoding is not exact here",
        )
    return live


def _text_facts(answers: Sequence[Answer], trace: RankTrace) -> dict[str, Any]:
    kept = [answer for answer in answers if answer.tokens]
    contexts = [len(answer.prompt) + len(answer.tokens) / 2 for answer in kept]
    return {
        "answers": len(answers),
        "tokens": trace.num_positions,
        "answers_cut_at_a_loop": sum(answer.stopped_by == "loop" for answer in answers),
        "answers_dropped": sum(not answer.tokens for answer in answers),
        "tokens_dropped": sum(answer.dropped for answer in answers),
        "mean_context": round(sum(contexts) / len(contexts), 1),
        "trace_sha256": trace.digest,
    }


def _measure(base: BaseModel, heads: AnyHeads, run: RunFolder, sweep: SweepOptions, facts: dict[str, Any]) -> None:
    key = sha256_json([facts["key"], asdict(sweep), machine_key(base)])
    timings = Timings.resume(run.path / "cost.partial.json", key)
    if run.cost.exists():
        say(f"costs: keeping {run.cost}")
    else:
        limits = measure_limits(base.device, base.dtype)
        measured = measure_with_progress(base, heads, sweep, timings)
        limits = limits.best(measure_limits(base.device, base.dtype))
        points = with_floors(measured, base, heads, limits)
        for warning in floor_warnings(points):
            warn(warning)
        # Before the costs, which say that this stage is done.
        facts["device_limits"] = asdict(limits)
        run.write_manifest(facts)
        CostTable(tuple(points), source=str(run.cost)).to_csv(run.cost)
    timings.discard()


def measure_with_progress(
    base: BaseModel, heads: AnyHeads | None, sweep: SweepOptions, timings: Timings | None = None
) -> list[CostPoint]:
    """``sweep_costs`` with a progress bar; warns about cells that could not be measured."""
    dynamic = 0 if heads is None else heads.max_depth * len(sweep.dynamic_top_ks)
    drafts = len(draft_places(heads, max(sweep.rows))) + dynamic
    cells = (len(sweep.rows) + drafts) * len(sweep.contexts)
    with progress("costs", cells * sweep.rounds, "timings") as advance:
        points = sweep_costs(base, heads, sweep, timings=timings, on_progress=running_totals(advance))
    for point in points:
        if point.status != "ok":
            warn(f"cost of {point.place}: {point.status}")
    return points


def load_answers(run: RunFolder, trace: RankTrace) -> list[Answer]:
    """The answers behind a trace, in its order.

    Raises:
        InputError: the run has no text (a bare trace), or it is not the trace's.
    """
    if not run.answers.exists():
        raise InputError("the run has no text to decode", where=str(run.answers), fix="run mtp-bench profile again")
    _, found = stored_answers(run.answers)
    answers = [found[name] for name in trace.prompt_ids if name in found]
    if [len(answer.tokens) for answer in answers] != trace.prompt_lengths.tolist():
        raise InputError("text and trace do not belong together", where=str(run.path), fix="profile again")
    return answers


def default_folder(results: Path, base: BaseModel, shard: tuple[int, int]) -> Path:
    """``results/MODEL-DEVICE-DTYPE``, with the shard where there are several."""
    dtype = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[str(base.dtype).removeprefix("torch.")]
    # Not the stem: version numbers have dots too. Resolved, because "." is a fine name for a model's folder.
    model = Path(base.name).resolve().name.removesuffix(".gguf")
    name = f"{model}-{base.device.type}-{dtype}"
    return results / (name if shard[1] == 1 else f"{name}-shard{shard[0]}of{shard[1]}")
