"""Training prompts: tens of thousands of user requests drawn from templates times word lists.

Heads learn from the base model's own answers, so what matters here is that the requests are as varied as what users
type, not that they are clever. A template has named slots; filling them from lists (whose entries may hold slots
themselves) multiplies a few hundred phrasings by a few hundred topics. The evaluation prompts are written by hand and
share neither templates nor phrases with these.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.files import read_json
from mtp_bench.prompts.prompt import CATEGORIES, Prompt

TWO_TURN_SHARE = 0.1
_MAX_REDRAWS = 1000
_VOWEL_AFTER_A = re.compile(r"\b([Aa]) (?=[aeio]|u(?!n[is]|se))(?!one|eu)")
_SLOT = re.compile(r"\{([a-z_]+)(\d*)(?::(\d+)-(\d+))?\}")


@cache
def _grammar() -> dict[str, Any]:
    document: dict[str, Any] = read_json(Path(__file__).with_name("training_topics.json"))
    return document


class _Filler:
    """Fills the slots of one prompt; a slot that comes back keeps its value, so a passage stays consistent."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bound: dict[str, str] = {}
        self._used: dict[str, set[str]] = {}

    def fill(self, template: str) -> str:
        """``template`` with its slots filled and "a" before a vowel mended to "an"."""
        return _VOWEL_AFTER_A.sub(r"\1n ", _SLOT.sub(self._value, template))

    def _value(self, slot: re.Match[str]) -> str:
        base, digit, low, high = slot.groups()
        name = base + digit
        if name not in self._bound:
            if low is not None:
                self._bound[name] = str(self._rng.randint(int(low), int(high)))
            else:
                self._bound[name] = self._passage() if base == "passage" else self._draw(base)
        return self._bound[name]

    def _draw(self, base: str) -> str:
        """A filled entry of list ``base`` that this prompt has not used under another digit."""
        used = self._used.setdefault(base, set())
        choices = [entry for entry in _grammar()["lists"][base] if entry not in used]
        entry = self._rng.choice(choices)
        used.add(entry)
        return self.fill(entry)

    def _passage(self) -> str:
        """The first sentence of a scene and three to six of the others, in their order."""
        scenes: dict[str, list[str]] = _grammar()["scenes"]
        first, *rest = scenes[self._rng.choice(sorted(scenes))]
        kept = sorted(self._rng.sample(range(len(rest)), self._rng.randint(3, 6)))
        return self.fill(" ".join([first, *(rest[index] for index in kept)]))


def _draw_turns(category: str, rng: random.Random) -> tuple[str, ...]:
    filler = _Filler(rng)
    turns = [filler.fill(rng.choice(_grammar()["templates"][category]))]
    if rng.random() < TWO_TURN_SHARE:
        turns.append(filler.fill(rng.choice(_grammar()["follow_ups"][category])))
    return tuple(turns)


def training_prompts(count: int, seed: int) -> list[Prompt]:
    """``count`` distinct training prompts, categories in round-robin order so that any prefix is balanced.

    The prompts for (n, seed) are the first n of those for (m, seed), m > n. Distinct means distinct first turns.

    Raises:
        InputError: ``count`` is negative or more than the templates can give.
    """
    if count < 0:
        raise InputError(f"cannot make {count} training prompts", fix="ask for 0 or more")
    rng = random.Random(f"mtp-bench training prompts {seed}")
    seen: set[str] = set()
    prompts: list[Prompt] = []
    for index in range(count):
        category = CATEGORIES[index % len(CATEGORIES)]
        for _ in range(_MAX_REDRAWS):
            turns = _draw_turns(category, rng)
            if turns[0] not in seen:
                break
        else:
            raise InputError(
                f"the templates of {category} ran out after {index} prompts", fix="ask for fewer training prompts"
            )
        seen.add(turns[0])
        prompts.append(Prompt(f"train-{seed}-{index:06d}", category, turns))
    return prompts
