"""What keeps training text and the shipped evaluation prompts apart: no run of eight words in common."""

from __future__ import annotations

import re
from functools import cache

from mtp_bench.prompts.load import load_prompts

GRAM_WORDS = 8


def word_grams(text: str) -> set[tuple[str, ...]]:
    """All runs of eight words of ``text``, lower case, punctuation left out; the whole text where it is shorter."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + GRAM_WORDS]) for i in range(max(1, len(words) - GRAM_WORDS + 1))}


@cache
def _evaluation_grams() -> frozenset[tuple[str, ...]]:
    return frozenset().union(*(word_grams(turn) for prompt in load_prompts(None).prompts for turn in prompt.turns))


def overlaps_evaluation(text: str) -> bool:
    """Whether ``text`` shares eight words in a row with a shipped evaluation prompt, or is one."""
    return not _evaluation_grams().isdisjoint(word_grams(text))
