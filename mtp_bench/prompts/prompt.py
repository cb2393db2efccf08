"""A prompt: the user's turns of one conversation, with the kind of task it is."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = (
    "writing",
    "coding",
    "math",
    "extraction",
    "summarizing",
    "translation",
    "question_answering",
    "reasoning",
    "roleplay",
)
"""The categories of the prompts of this package, in their round-robin order. Prompts from elsewhere may have others."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation, user side only; the model's answers go between the turns.

    Args:
        id: unique within its set.
        category: the kind of task; what results are grouped and stratified by.
        turns: at least one user message, in order.
    """

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a run and where they came from.

    Args:
        prompts: in the order they are to be run; categories take turns.
        name: the file's name, or ``evaluation`` for the shipped set.
        sha256: hex digest of category and turns of exactly these prompts, in this order.
        skipped: conversations of the source without any user message, left out before ``limit`` applied.
    """

    prompts: tuple[Prompt, ...]
    name: str
    sha256: str
    skipped: int = 0
