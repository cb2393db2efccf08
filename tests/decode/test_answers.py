"""Answers are cached in a file that a kill cannot spoil."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import ONEHOT, ToyTokenizer, onehot_base, plain_greedy, tiny_base

from mtp_bench.decode import answers as answers_module
from mtp_bench.decode.answers import MIN_ANSWER, Answer, AnswerFile, answer_all
from mtp_bench.decode.repetition import loop_start
from mtp_bench.errors import InputError
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import chat_format
from mtp_bench.prompts.prompt import Prompt

PROMPTS = (
    Prompt("a", "writing", ("Tell me a story", "And how does it end?")),
    Prompt("b", "coding", ("Sort a list",)),
    Prompt("c", "math", ("What is one and one", "Why", "Sure?")),
    Prompt("d", "writing", ("Hello",)),
)
IDS = ["a", "a/2", "b", "c", "c/2", "c/3", "d"]


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base(tokenizer=ToyTokenizer())


def run(
    base: BaseModel, path: Path, prompts: tuple[Prompt, ...] = PROMPTS, new_tokens: int = 24, **rest: object
) -> list[Answer]:
    return answer_all(base, chat_format(base), prompts, path, max_new_tokens=new_tokens, batch=2, **rest)  # type: ignore[arg-type]


def test_answers_in_prompt_order(base: BaseModel, tmp_path: Path) -> None:
    answers = run(base, tmp_path / "answers.jsonl")
    assert [answer.id for answer in answers] == IDS
    chat = chat_format(base)
    assert answers[2].prompt == chat.encode([("user", "Sort a list")])
    said = [
        ("user", "Tell me a story"),
        ("assistant", chat.decode(answers[0].tokens)),
        ("user", "And how does it end?"),
    ]
    assert answers[1].prompt == chat.encode(said)
    for answer in answers:
        full = plain_greedy(base, answer.prompt, 24)
        assert answer.tokens == full[: len(answer.tokens)]
        assert len(answer.tokens) + answer.dropped <= 24


def test_resuming_decodes_nothing_again(base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = run(base, path)
    content = path.read_bytes()
    new: list[Answer] = []
    assert run(base, path, on_answer=new.append) == first
    assert new == []
    assert path.read_bytes() == content


def test_killed_in_the_middle(base: BaseModel, tmp_path: Path) -> None:
    whole = run(base, tmp_path / "whole.jsonl")

    def die(answer: Answer) -> None:
        if answer.id == "a/2":
            raise KeyboardInterrupt

    path = tmp_path / "killed.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(base, path, on_answer=die)
    with open(path, "a", encoding="utf-8") as stream:
        stream.write('{"id":"c/2","category":"ma')
    assert run(base, path) == whole
    assert sorted(path.read_text().splitlines()) == sorted((tmp_path / "whole.jsonl").read_text().splitlines())


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_file_cut_anywhere(base: BaseModel, tmp_path: Path, cut: int) -> None:
    whole = run(base, tmp_path / "whole.jsonl")
    path = tmp_path / "cut.jsonl"
    path.write_bytes((tmp_path / "whole.jsonl").read_bytes()[:-cut])
    assert run(base, path) == whole


def test_other_settings_are_refused(base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    run(base, path, PROMPTS[:1])
    with pytest.raises(InputError, match="other prompts or settings"):
        run(base, path, PROMPTS[:1], new_tokens=25)


def test_same_id_with_other_text_is_answered_again(base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    run(base, path, (Prompt("a", "writing", ("One text",)),))
    other = (Prompt("a", "writing", ("Another text",)),)
    again = run(base, path, other)
    assert again == run(base, tmp_path / "fresh.jsonl", other)
    assert run(base, path, other) == again


@pytest.mark.parametrize("content", ["", "not json\n", '{"schema": 1', "\x00\x00\n"])
def test_damaged_header(tmp_path: Path, content: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        AnswerFile(path, {"model": "x"})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("line", ["not json", '{"id": "a"}', "[1, 2]", '{"id": "a", "surprise": 1}'])
def test_damaged_line_names_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, {"model": "x"}).append(Answer("a", "writing", [1], [2], 0, "length"))
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=r"answers\.jsonl:3"):
        AnswerFile(path, {"model": "x"})


def test_a_long_prompt_is_left_out(base: BaseModel, tmp_path: Path) -> None:
    prompts = (PROMPTS[3], Prompt("long", "writing", ("x" * 200, "and then?")))
    answers = run(base, tmp_path / "answers.jsonl", prompts, max_prompt_tokens=100)
    assert [answer.id for answer in answers] == ["d"]


def test_a_prompt_whose_answer_would_not_fit_the_context_is_left_out(base: BaseModel, tmp_path: Path) -> None:
    prompts = (PROMPTS[3], Prompt("long", "writing", ("x" * (base.max_positions - 20),)))
    assert [answer.id for answer in run(base, tmp_path / "answers.jsonl", prompts)] == ["d"]


@pytest.mark.parametrize(("period", "kept"), [(16, 16 + 3), (2, 0)])
def test_loops_are_cut_and_counted(tmp_path: Path, period: int, kept: int) -> None:
    successor = [token - token % period + (token + 1) % period for token in range(ONEHOT)]
    base = onehot_base(successor, ToyTokenizer(ONEHOT))
    answers = run(base, tmp_path / "answers.jsonl", new_tokens=160)
    assert len(answers) == len(IDS)
    for answer in answers:
        assert (answer.stopped_by, len(answer.tokens)) == ("loop", kept)
        assert answer.tokens == plain_greedy(base, answer.prompt, kept or 1)[:kept]
        assert loop_start(answer.tokens) is None
        # Stopped within a window and the sixteen tokens between checks, long before the limit.
        assert 0 < answer.dropped <= 48
    assert kept == 0 or kept >= MIN_ANSWER


def test_header_is_readable_by_others(base: BaseModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    run(base, path, PROMPTS[:1])
    header = json.loads(path.read_text().splitlines()[0])
    assert header == {
        "schema": answers_module.SCHEMA,
        "model": base.sha256,
        "dtype": "torch.float32",
        "max_new_tokens": 24,
        "raw": False,
    }
