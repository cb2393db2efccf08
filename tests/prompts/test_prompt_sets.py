"""The two shipped sources of prompts: counts, balance, determinism, and that they never mix."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from mtp_bench.errors import InputError
from mtp_bench.prompts import training
from mtp_bench.prompts.load import load_prompts, prompts_sha256
from mtp_bench.prompts.prompt import CATEGORIES, Prompt
from mtp_bench.prompts.training import training_prompts


@cache
def sample() -> tuple[Prompt, ...]:
    return tuple(training_prompts(20_000, seed=0))


def eight_grams(turn: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", turn.lower())
    return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}


def test_evaluation_set_is_large_and_covers_every_category():
    prompts = load_prompts(None).prompts
    assert len(prompts) >= 160
    per_category = Counter(prompt.category for prompt in prompts)
    assert set(per_category) == set(CATEGORIES)
    assert min(per_category.values()) >= 17
    assert 20 <= sum(len(prompt.turns) == 2 for prompt in prompts) <= 30
    assert len({prompt.id for prompt in prompts}) == len({prompt.turns for prompt in prompts}) == len(prompts)


def test_evaluation_passages_are_real_texts():
    for prompt in load_prompts(None).prompts:
        if prompt.category in {"extraction", "summarizing"}:
            passage = prompt.turns[0].split("\n\n", 1)[1]
            assert 60 <= len(passage.split()) <= 150, prompt.id


def test_training_prompts_are_distinct_and_free_of_unfilled_slots():
    assert len({prompt.turns[0] for prompt in sample()}) == 20_000
    assert len({prompt.id for prompt in sample()}) == 20_000
    leftover = re.compile(r"\{[a-z_]+\d*(:\d+-\d+)?\}")
    assert [prompt.turns for prompt in sample() if any(map(leftover.search, prompt.turns))] == []


def test_every_prefix_of_the_training_prompts_is_balanced():
    for count in (1, 9, 100, 4_321, 20_000):
        per_category = Counter(dict.fromkeys(CATEGORIES, 0))
        per_category.update(prompt.category for prompt in sample()[:count])
        assert max(per_category.values()) - min(per_category.values()) <= 1


def test_about_a_tenth_of_the_training_prompts_has_two_turns():
    share = sum(len(prompt.turns) == 2 for prompt in sample()) / len(sample())
    # Five standard errors of a binomial share of 0.1 over 20,000.
    assert abs(share - training.TWO_TURN_SHARE) < 0.0107


def test_every_template_is_used():
    """All templates and scenes can be filled: a slot whose list is missing would raise here."""
    grammar = training._grammar()
    templates = [t for group in ("templates", "follow_ups") for c in CATEGORIES for t in grammar[group][c]]
    templates += [sentence for scene in grammar["scenes"].values() for sentence in scene]
    templates += [entry for entries in grammar["lists"].values() for entry in entries]
    for template in templates:
        filled = training._Filler(training.random.Random(0)).fill(template)
        assert not training._SLOT.search(filled), template
    assert min(len(grammar["templates"][category]) for category in CATEGORIES) >= 10


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{n:7-7} and {n}", "7 and 7"),
        ("a architect, A owl, a unit, a used car, a one-line", "an architect, An owl, a unit, a used car, a one-line"),
    ],
)
def test_filling(template: str, expected: str):
    assert training._Filler(training.random.Random(0)).fill(template) == expected


def test_a_digit_asks_for_another_value():
    for seed in range(200):
        filled = training._Filler(training.random.Random(seed)).fill("{weekday} {weekday2} {weekday3} {weekday}")
        first, second, third, again = filled.split()
        assert first == again
        assert len({first, second, third}) == 3


def test_training_prompts_depend_on_the_seed_only():
    assert training_prompts(500, seed=0) == list(sample()[:500])
    other = {prompt.turns for prompt in training_prompts(500, seed=1)}
    assert len(other & {prompt.turns for prompt in sample()[:500]}) < 100


def test_training_prompts_are_pinned():
    """The shipped heads record the seed and count of their training prompts, so the text may not drift."""
    digest = prompts_sha256(sample()[:2000])
    assert digest == "7d8ed8048736ca7a3316475de8e8c48e3b4c918014b4170914abd5ab911f24a7"


def test_running_out_of_templates_is_an_input_error(monkeypatch: pytest.MonkeyPatch):
    tiny = {
        "templates": {category: [f"{category} {{n:1-2}}"] for category in CATEGORIES},
        "follow_ups": {category: ["Why?"] for category in CATEGORIES},
    }
    monkeypatch.setattr(training, "_grammar", lambda: tiny)
    assert len(training_prompts(18, seed=3)) == 18
    with pytest.raises(InputError, match="templates of writing ran out after 18 prompts"):
        training_prompts(19, seed=3)
    with pytest.raises(InputError, match="cannot make -1"):
        training_prompts(-1, seed=3)


def test_training_and_evaluation_share_nothing():
    evaluation = load_prompts(None).prompts
    train_turns = {turn for prompt in sample() for turn in prompt.turns}
    assert [prompt.id for prompt in evaluation for turn in prompt.turns if turn in train_turns] == []
    train_grams = set().union(*map(eight_grams, train_turns))
    assert len(train_grams) > 100_000
    shared = {prompt.id: eight_grams(turn) & train_grams for prompt in evaluation for turn in prompt.turns}
    assert {name: grams for name, grams in shared.items() if grams} == {}
