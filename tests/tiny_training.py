"""Text that tests of training share."""

from __future__ import annotations

from tiny_models import ONEHOT

from mtp_bench.decode.answers import Answer


def cycle_answers(count: int = 24, length: int = 20) -> list[Answer]:
    """Answers of the onehot base: counting on from the prompt's last token."""
    answers = []
    for index in range(count):
        prompt = [(3 * index + i) % ONEHOT for i in range(4)]
        tokens = [(prompt[-1] + 1 + i) % ONEHOT for i in range(length)]
        answers.append(Answer(f"p{index:02d}", "math", prompt, tokens, 0, "length"))
    return answers
