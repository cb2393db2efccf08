"""A whole training run: prompts, the base model's answers, features, heads, record, files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import torch

from mtp_bench import __version__
from mtp_bench.decode.answers import Answer, answer_all, read_answers
from mtp_bench.files import read_json, sha256_json, write_json
from mtp_bench.heads.eagle.checkpoint import WriteLayout, save_eagle
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.medusa.writers import save_version2, save_vllm
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import chat_format
from mtp_bench.progress import progress
from mtp_bench.prompts.load import load_prompts
from mtp_bench.prompts.prompt import Prompt
from mtp_bench.prompts.training import training_prompts
from mtp_bench.train.accuracy import HeadAccuracy
from mtp_bench.train.eagle import EagleRecipe, default_aux_layers, train_eagle
from mtp_bench.train.features import cached_features
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.medusa import MedusaRecipe, train_medusa
from mtp_bench.train.self_written import self_written_prompts
from mtp_bench.train.texts import cached_texts

HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class TrainingPlan:
    """Where text comes from and where heads go; see the options of ``train-heads``."""

    out: Path
    answers: tuple[Path, ...]
    prompts: str | None
    num_prompts: int
    self_written: int
    limit: int | None
    max_new_tokens: int
    max_tokens: int | None
    batch: int
    raw: bool
    layout: str
    store_base_rows: bool

    @property
    def work(self) -> Path:
        """Folder of what a stopped run resumes from: answers, hidden states, checkpoint."""
        return self.out / "work"


Recipe = MedusaRecipe | EagleRecipe


def run_training(base: BaseModel, recipe: Recipe, plan: TrainingPlan, start: AnyHeads | None = None) -> dict[str, Any]:
    """Do all of it, resuming from what ``plan.out`` holds; return the training record that is also written there.

    Args:
        start: heads of the recipe's kind to go on from; fresh ones when left out.
    """
    answers = _all_answers(base, recipe.seed, plan)
    texts = [answer for answer in answers if answer.tokens]
    train, held_out = _split(texts, plan.max_tokens)
    heads, accuracies = _trained(base, train, held_out, recipe, plan, start)
    record = {
        "schema": "mtp-bench/training",
        "version": 1,
        "method": "medusa" if isinstance(recipe, MedusaRecipe) else recipe.variant,
        "base_model": base.name,
        "base_model_sha256": base.sha256,
        "dtype": str(base.dtype).removeprefix("torch."),
        "recipe": asdict(recipe),
        "text": _text_facts(answers, train, held_out, plan),
        "held_out": [
            {"head": one.head, **{f"top{k}": round(v, 5) for k, v in one.top.items()}, "n": one.n} for one in accuracies
        ],
        "versions": {"mtp_bench": __version__, "torch": torch.__version__},
    }
    _write(heads, base, record, plan)
    return record


def _all_answers(base: BaseModel, seed: int, plan: TrainingPlan) -> list[Answer]:
    """Answers given, or made now; those of several files follow one another."""
    if not plan.answers:
        return _answers(base, _prompts(base, plan, seed), plan)
    return list({answer.id: answer for path in plan.answers for answer in read_answers(path, base)}.values())


def _prompts(base: BaseModel, plan: TrainingPlan, seed: int) -> list[Prompt]:
    """The prompts of a file, or the generated ones and those that the model writes itself, taking turns."""
    if plan.prompts is not None:
        return list(load_prompts(plan.prompts, plan.limit).prompts)
    generated = training_prompts(plan.num_prompts, seed)
    own = _self_written(base, plan, seed)
    turns = [prompt for pair in zip_longest(generated, own) for prompt in pair if prompt is not None]
    return turns[: plan.limit]


def _self_written(base: BaseModel, plan: TrainingPlan, seed: int) -> list[Prompt]:
    """Kept in the work folder, so that a stopped run goes on with the same prompts."""
    kept = plan.work / f"self_written-{plan.self_written}-{seed}.json"
    if kept.exists():
        return [Prompt(**{**one, "turns": tuple(one["turns"])}) for one in read_json(kept)]
    with progress("prompts of the base model", plan.self_written, "prompts") as advance:
        own = self_written_prompts(base, chat_format(base, raw=plan.raw), plan.self_written, seed, on_progress=advance)
    if own:
        write_json(kept, [{"id": one.id, "category": one.category, "turns": list(one.turns)} for one in own])
    return own


def _answers(base: BaseModel, prompts: Sequence[Prompt], plan: TrainingPlan) -> list[Answer]:
    turns = sum(len(prompt.turns) for prompt in prompts)
    with progress("answers of the base model", turns, "answers") as advance:
        return answer_all(
            base,
            chat_format(base, raw=plan.raw),
            prompts,
            plan.work / "answers.jsonl",
            max_new_tokens=plan.max_new_tokens,
            batch=plan.batch,
            on_answer=lambda _: advance(1),
        )


def _split(texts: Sequence[Answer], max_tokens: int | None) -> tuple[list[Answer], list[Answer]]:
    """Training and held-out answers: every 20th conversation is held out, both its turns."""
    stride = round(1 / HELD_OUT_SHARE)
    conversations = list(dict.fromkeys(_conversation(text) for text in texts))
    held = set(conversations[stride - 1 :: stride]) or set(conversations[-1:])
    train = [text for text in texts if _conversation(text) not in held]
    if max_tokens is not None:
        seen, cut = 0, []
        for text in train:
            if seen >= max_tokens:
                break
            cut.append(text)
            seen += len(text.tokens)
        train = cut
    return train, [text for text in texts if _conversation(text) in held]


def _conversation(answer: Answer) -> str:
    return answer.id.split("/")[0]


def _trained(
    base: BaseModel,
    train: list[Answer],
    held_out: list[Answer],
    recipe: Recipe,
    plan: TrainingPlan,
    start: AnyHeads | None,
) -> tuple[AnyHeads, list[HeadAccuracy]]:
    """Hidden states of the text, kept in the work folder, then the training itself."""
    checkpoint = plan.work / "checkpoint.pt"
    if isinstance(recipe, MedusaRecipe):
        assert start is None or isinstance(start, MedusaHeads)
        with progress("hidden states", sum(len(a.tokens) for a in train + held_out), "tok") as advance:
            kept = plan.work / "features.safetensors"
            features = cached_features(kept, base, train, held_out, recipe.num_heads, on_progress=advance)
        log = TrainingLog(plan.out, recipe.num_heads)
        with _steps() as on_step:
            medusa = train_medusa(base, *features, recipe, log=log, checkpoint=checkpoint, start=start, on_step=on_step)
        return medusa.heads, medusa.held_out
    assert start is None or isinstance(start, EagleDraft)
    fresh_layers = default_aux_layers(base.num_layers) if recipe.variant == "eagle3" else ()
    layers = fresh_layers if start is None else start.config.aux_layers
    with progress("hidden states", sum(len(a.prompt) + len(a.tokens) - 1 for a in train + held_out), "tok") as advance:
        kept = plan.work / "texts.safetensors"
        known, unknown = cached_texts(kept, base, (train, held_out), layers, on_progress=advance)
    log = TrainingLog(plan.out, recipe.unroll)
    with _steps() as on_step:
        eagle = train_eagle(base, known, unknown, recipe, log=log, checkpoint=checkpoint, start=start, on_step=on_step)
    return eagle.draft, eagle.held_out


@contextmanager
def _steps() -> Iterator[Callable[[int, int, float], None]]:
    """A progress bar for training steps, whose number is known at the first of them."""
    with ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        done = 0

        def on_step(step: int, steps: int, loss: float) -> None:
            nonlocal advance, done
            if advance is None:
                advance = stack.enter_context(progress("training", steps, "steps"))
            advance(step - done)
            done = step

        yield on_step


def _text_facts(
    answers: Sequence[Answer], train: Sequence[Answer], held_out: Sequence[Answer], plan: TrainingPlan
) -> dict[str, Any]:
    return {
        "source": _source(plan),
        "answers": len(answers),
        "answers_cut_at_a_loop": sum(answer.stopped_by == "loop" for answer in answers),
        "answers_dropped": sum(not answer.tokens for answer in answers),
        "tokens_dropped": sum(answer.dropped for answer in answers),
        "train_tokens": sum(len(answer.tokens) for answer in train),
        "held_out_tokens": sum(len(answer.tokens) for answer in held_out),
        "held_out_answers": len(held_out),
        "sha256": sha256_json([[answer.id, answer.tokens] for answer in [*train, *held_out]]),
    }


def _source(plan: TrainingPlan) -> str:
    if plan.answers:
        return f"answers given ({', '.join(path.name for path in plan.answers)})"
    made = f"training_prompts({plan.num_prompts}) and self_written_prompts({plan.self_written})"
    return plan.prompts or made


def _write(heads: AnyHeads, base: BaseModel, record: dict[str, Any], plan: TrainingPlan) -> None:
    config = {
        "base_model_name_or_path": base.name,
        "hidden_size": base.hidden_size,
        "vocab_size": base.vocab_size,
        "mtp_bench": {"base_model_hash": base.sha256, "training_record_sha256": sha256_json(record)},
    }
    if isinstance(heads, EagleDraft):
        layout: WriteLayout | None = "speculators" if plan.layout == "speculators" else None
        save_eagle(heads.to(torch.bfloat16), plan.out, config, layout=layout)
    elif isinstance(heads, MedusaHeads) and plan.layout == "version2":
        save_version2(heads.to(torch.bfloat16), plan.out, config)
    elif isinstance(heads, MedusaHeads):
        rows: Literal["store", "omit"] = "store" if plan.store_base_rows else "omit"
        save_vllm(heads.to(torch.bfloat16), plan.out, config, base_rows=rows)
    write_json(plan.out / "training.json", record)
    _plot(plan.out)


def _plot(folder: Path) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    from mtp_bench.report.training import write_training_plots

    write_training_plots(folder)
