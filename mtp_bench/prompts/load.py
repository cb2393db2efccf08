"""The prompts of a run: the shipped evaluation set or a user's file, in an order whose every prefix is balanced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import read_text, sha256_json
from mtp_bench.prompts.formats import RawPrompt, parse_prompts
from mtp_bench.prompts.prompt import Prompt, PromptSet

EVALUATION_FILE = Path(__file__).with_name("evaluation.jsonl")
"""The shipped evaluation prompts; nothing is ever trained on them."""


def load_prompts(source: str | None, limit: int | None = None) -> PromptSet:
    """Prompts of ``source``: a file, or None for the shipped evaluation set.

    Files: JSONL with ``turns`` (Spec-Bench, MT-bench, SPEED-Bench), ``prompt``, ``text``, ``messages`` or
    ``conversations``; a JSON list of such records (ShareGPT); plain text, one prompt per line. Of conversations only
    the user's messages are kept, and those without any are left out and counted.

    The order takes one prompt of each category in turn, categories by first appearance, so the prompts under a
    ``limit`` are the first ones of those without it.

    Raises:
        InputError: file missing or not UTF-8, a broken line or record, no prompts, or ``limit`` below 1.
    """
    if limit is not None and limit < 1:
        raise InputError(f"the number of prompts must be at least 1, not {limit}", where="--limit", fix="raise it")
    path = Path(source) if source is not None else EVALUATION_FILE
    raw = parse_prompts(read_text(path), path)
    spoken = [prompt for prompt in raw if prompt.turns]
    if not spoken:
        what = "no conversation in this file has a user message" if raw else "no prompts in this file"
        raise InputError(what, where=str(path), fix="give a file with at least one prompt")
    prompts = tuple(round_robin(_with_unique_ids(spoken, path.stem))[:limit])
    return PromptSet(
        prompts=prompts,
        name=path.name if source is not None else path.stem,
        sha256=prompts_sha256(prompts),
        skipped=len(raw) - len(spoken),
    )


def round_robin(prompts: Iterable[Prompt]) -> list[Prompt]:
    """``prompts`` with categories taking turns, each in its own order, until the longest is used up."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    longest = max(map(len, by_category.values()), default=0)
    return [group[turn] for turn in range(longest) for group in by_category.values() if turn < len(group)]


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """Hex SHA-256 over category and turns in order; ids are left out, since for many files they are made up here."""
    return sha256_json([{"category": prompt.category, "turns": list(prompt.turns)} for prompt in prompts])


def _with_unique_ids(raw: Sequence[RawPrompt], stem: str) -> list[Prompt]:
    """Numbers prompts without an id; an id that comes back gets a suffix, since results are keyed by id."""
    seen: set[str] = set()
    prompts = []
    for number, prompt in enumerate(raw, start=1):
        base = prompt.id or f"{stem}-{number:05d}"
        unique, repeat = base, 1
        while unique in seen:
            repeat += 1
            unique = f"{base}#{repeat}"
        seen.add(unique)
        prompts.append(Prompt(unique, prompt.category, prompt.turns))
    return prompts
