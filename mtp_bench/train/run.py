"""A whole training run: prompts, the base model's answers, features, heads, record, files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mtp_bench import __version__
from mtp_bench.decode.answers import Answer, answer_all, read_answers
from mtp_bench.files import sha256_json, write_json
from mtp_bench.heads.medusa import MedusaHeads
from mtp_bench.heads.writers import save_version2, save_vllm
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import chat_format
from mtp_bench.progress import progress
from mtp_bench.prompts.load import load_prompts
from mtp_bench.prompts.prompt import Prompt
from mtp_bench.prompts.training import training_prompts
from mtp_bench.train.accuracy import HeadAccuracy
from mtp_bench.train.features import Features, cached_features
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.medusa import MedusaRecipe, train_medusa

HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class TrainingPlan:
    """Where text comes from and where heads go; see the options of ``train-heads``."""

    out: Path
    answers: Path | None
    prompts: str | None
    num_prompts: int
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


def run_training(base: BaseModel, recipe: MedusaRecipe, plan: TrainingPlan) -> dict[str, Any]:
    """Do all of it, resuming from what ``plan.out`` holds; return the training record that is also written there."""
    if plan.answers is not None:
        answers = read_answers(plan.answers, base)
    else:
        answers = _answers(base, _prompts(plan, recipe.seed), plan)
    texts = [answer for answer in answers if answer.tokens]
    train, held_out = _split(texts, plan.max_tokens)
    with progress("hidden states", sum(len(a.tokens) for a in train + held_out), "tok") as advance:
        stored = plan.work / "features.safetensors"
        train_features, held_out_features = cached_features(
            stored, base, train, held_out, recipe.num_heads, on_progress=advance
        )
    heads, accuracies = _train(base, train_features, held_out_features, recipe, plan)
    record = {
        "schema": "mtp-bench/training",
        "version": 1,
        "method": "medusa",
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


def _prompts(plan: TrainingPlan, seed: int) -> list[Prompt]:
    if plan.prompts is not None:
        return list(load_prompts(plan.prompts, plan.limit).prompts)
    return training_prompts(plan.limit or plan.num_prompts, seed)


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


def _train(
    base: BaseModel, train: Features, held_out: Features, recipe: MedusaRecipe, plan: TrainingPlan
) -> tuple[MedusaHeads, list[HeadAccuracy]]:
    done = 0
    log = TrainingLog(plan.out, recipe.num_heads)
    with progress("training", -(-int(len(train) * recipe.epochs) // recipe.batch), "steps") as advance:

        def on_step(step: int, steps: int, loss: float) -> None:
            nonlocal done
            advance(step - done)
            done = step

        trained = train_medusa(
            base, train, held_out, recipe, log=log, checkpoint=plan.work / "checkpoint.pt", on_step=on_step
        )
    return trained.heads, trained.held_out


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
    if plan.answers is not None:
        return f"answers given ({plan.answers.name})"
    return plan.prompts or f"training_prompts({plan.limit or plan.num_prompts})"


def _write(heads: MedusaHeads, base: BaseModel, record: dict[str, Any], plan: TrainingPlan) -> None:
    stored = heads.to(torch.bfloat16)
    config = {
        "base_model_name_or_path": base.name,
        "hidden_size": base.hidden_size,
        "vocab_size": base.vocab_size,
        "mtp_bench": {"base_model_hash": base.sha256, "training_record_sha256": sha256_json(record)},
    }
    if plan.layout == "version2":
        save_version2(stored, plan.out, config)
    else:
        save_vllm(stored, plan.out, config, base_rows="store" if plan.store_base_rows else "omit")
    write_json(plan.out / "training.json", record)
    _plot(plan.out)


def _plot(folder: Path) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    from mtp_bench.report.training import write_training_plots

    write_training_plots(folder)
