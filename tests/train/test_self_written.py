"""Prompts that the base model writes itself: seeded, usable, and apart from the evaluation prompts."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ToyTokenizer, tiny_base

from mtp_bench.errors import InputError
from mtp_bench.models.chat import ChatFormat
from mtp_bench.prompts.load import load_prompts
from mtp_bench.prompts.overlap import overlaps_evaluation
from mtp_bench.train import self_written
from mtp_bench.train.self_written import sample, self_written_prompts, user_opening

CHAT = ChatFormat(ToyTokenizer(), raw=False)


def test_every_evaluation_prompt_overlaps_with_itself() -> None:
    for prompt in load_prompts(None).prompts:
        for turn in prompt.turns:
            assert overlaps_evaluation(turn)
            assert overlaps_evaluation("Well: " + turn.upper())
    assert not overlaps_evaluation("Name a colour that nobody has ever put into this set of prompts")


def test_the_opening_ends_where_the_user_begins() -> None:
    assert user_opening(CHAT) == CHAT.tokenizer("u:")["input_ids"]
    with pytest.raises(InputError, match="no template"):
        user_opening(ChatFormat(ToyTokenizer(), raw=True))


def test_samples_are_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the likeliest token always taken, every text of the batch is the greedy one, restarted slots included."""
    monkeypatch.setattr(self_written, "MAX_TOKENS", 12)
    base = tiny_base()
    opening = [1, 2, 3]
    text = list(opening)
    with torch.inference_mode():
        for _ in range(5):
            tokens = torch.tensor([text])
            text.append(int(base.model(tokens).logits[0, -1].argmax()))
    base.model.generation_config.eos_token_id = text[-1]
    expected = text[3 : text.index(text[-1], 3)]
    drawn = sample(base, opening, 3, 1.0, 0.0, torch.Generator().manual_seed(0))
    assert [next(drawn) for _ in range(8)] == [expected] * 8


def test_prompts_are_seeded_distinct_and_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one two three four", "one two three four", "too short", "five six seven eight", "a b c d"]
    evaluation = load_prompts(None).prompts[0].turns[0]
    monkeypatch.setattr(
        CHAT.tokenizer, "decode", lambda tokens, **options: [*texts, evaluation][tokens[0]], raising=False
    )
    monkeypatch.setattr(self_written, "sample", lambda *args: iter([[i] for i in (0, 1, 2, 5, 3, 4)]))
    prompts = self_written_prompts(tiny_base(), CHAT, 3, 7)
    assert [prompt.turns[0] for prompt in prompts] == [texts[0], texts[3], texts[4]]
    assert [prompt.id for prompt in prompts] == ["self-7-000000", "self-7-000001", "self-7-000002"]
    assert self_written_prompts(tiny_base(), CHAT, 0, 7) == []


def test_a_model_that_writes_nothing_usable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_written, "sample", lambda *args: iter([[0]] * 1000))
    with pytest.raises(InputError, match="of 500 texts that the model wrote are usable"):
        self_written_prompts(tiny_base(), CHAT, 100, 0)
