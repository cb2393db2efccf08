"""The base model's own greedy answers to a set of prompts, cached in a file that survives being killed.

Both self-distillation and profiling start from this text. Answers that loop are cut where the loop begins (see
``repetition``), what is left of them is kept if it is long enough, and what was cut is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.decode.repetition import LoopStop, loop_start
from mtp_bench.errors import InputError
from mtp_bench.files import read_text, write_text
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import ChatFormat
from mtp_bench.prompts.prompt import Prompt
from mtp_bench.topology import StaticTree

SCHEMA = 1
MIN_ANSWER = 16


@dataclass(frozen=True)
class Answer:
    """One turn's greedy answer.

    Attributes:
        id: prompt id, with ``/2`` for its second turn.
        prompt, tokens: token ids; ``tokens`` is empty when too little was left after cutting a loop.
        dropped: tokens cut because they loop.
        stopped_by: ``eos``, ``length`` or ``loop``.
    """

    id: str
    category: str
    prompt: list[int]
    tokens: list[int]
    dropped: int
    stopped_by: str


class AnswerFile:
    """Append-only JSONL of answers behind a header that ties it to model, prompts and settings."""

    def __init__(self, path: Path, header: dict[str, object]) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}
        self._header = {"schema": SCHEMA, **header}
        if path.exists():
            self._read()
        else:
            write_text(path, json.dumps(self._header) + "\n")

    def _read(self) -> None:
        lines = read_text(self.path).split("\n")
        if self._parse(lines, 0) != self._header:
            raise InputError(
                "the cached answers were made with another model, other prompts or settings",
                where=str(self.path),
                fix="delete the file, or use another --out",
            )
        # A kill can leave half a line at the end; it is dropped and its prompt answered again.
        whole = lines[1:-1]
        for index in range(1, len(lines) - 1):
            answer = self._answer(lines, index)
            self.answers[answer.id] = answer
        if lines[-1]:
            write_text(self.path, "\n".join([lines[0], *whole]) + "\n")

    def _parse(self, lines: list[str], index: int) -> object:
        try:
            return json.loads(lines[index])
        except json.JSONDecodeError as error:
            raise self._damaged(index) from error

    def _answer(self, lines: list[str], index: int) -> Answer:
        try:
            return Answer(**self._parse(lines, index))  # type: ignore[arg-type]
        except TypeError as error:
            raise self._damaged(index) from error

    def _damaged(self, index: int) -> InputError:
        return InputError(
            "damaged line in the cached answers", where=f"{self.path}:{index + 1}", fix="delete this line or the file"
        )

    def append(self, answer: Answer) -> None:
        """Record one answer durably enough to survive a kill of this process."""
        self.answers[answer.id] = answer
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(answer), separators=(",", ":")) + "\n")


def stored_answers(path: Path) -> tuple[dict[str, object], dict[str, Answer]]:
    """Header and answers (by id) of a file that ``answer_all`` wrote, half a line at the end left out.

    Raises:
        InputError: not such a file.
    """
    lines = read_text(path).split("\n")
    try:
        header = json.loads(lines[0])
        answers = {one.id: one for one in (Answer(**json.loads(line)) for line in lines[1:-1])}
    except (ValueError, TypeError) as error:
        raise InputError(f"not a file of answers: {error}", where=str(path), fix="give an answers.jsonl") from error
    return header, answers


def read_answers(path: Path, base: BaseModel) -> list[Answer]:
    """All answers of such a file, by id, for training on them.

    Raises:
        InputError: not such a file, or made by another model.
    """
    header, answers = stored_answers(path)
    if header.get("model") != base.sha256:
        raise InputError("the answers are another model's", where=str(path), fix=f"use answers of {base.name}")
    return [answers[key] for key in sorted(answers)]


def answer_all(
    base: BaseModel,
    chat: ChatFormat,
    prompts: Sequence[Prompt],
    path: Path,
    *,
    max_new_tokens: int,
    batch: int,
    max_prompt_tokens: int = 1024,
    on_answer: Callable[[Answer], None] | None = None,
) -> list[Answer]:
    """Answer every turn of every prompt, resuming from ``path``; answers come in prompt order.

    Args:
        max_prompt_tokens: longer prompts are left out, as are those whose answer would not fit the model's context.
        on_answer: called for each new answer, for progress.
    """
    header: dict[str, object] = {
        "model": base.sha256,
        "dtype": str(base.dtype),
        "max_new_tokens": max_new_tokens,
        "raw": chat.raw,
    }
    stored = AnswerFile(path, header)
    longest = min(max_prompt_tokens, base.max_positions - max_new_tokens)
    for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
        requests, categories = [], {}
        for prompt in prompts:
            if turn >= len(prompt.turns):
                continue
            key = turn_id(prompt, turn)
            ids = chat.encode(_conversation(prompt, turn, stored.answers, chat))
            # Compared by content: another prompt file may use the same ids.
            known = key in stored.answers and stored.answers[key].prompt == ids
            if not known and len(ids) <= longest:
                requests.append(Request(key, ids, max_new_tokens))
                categories[key] = prompt.category
        for generation in _decode(base, _similar_lengths(requests), batch, max_new_tokens):
            answer = _cut(generation, categories[generation.request.key])
            stored.append(answer)
            if on_answer is not None:
                on_answer(answer)
    wanted = (turn_id(prompt, turn) for prompt in prompts for turn in range(len(prompt.turns)))
    return [stored.answers[key] for key in wanted if key in stored.answers]


def turn_id(prompt: Prompt, turn: int) -> str:
    """Id of one turn's answer."""
    return prompt.id if turn == 0 else f"{prompt.id}/{turn + 1}"


def _conversation(prompt: Prompt, turn: int, answers: dict[str, Answer], chat: ChatFormat) -> list[tuple[str, str]]:
    messages = []
    for earlier in range(turn):
        said = answers.get(turn_id(prompt, earlier))
        messages += [("user", prompt.turns[earlier]), ("assistant", chat.decode(said.tokens) if said else "")]
    return [*messages, ("user", prompt.turns[turn])]


def _similar_lengths(requests: list[Request], block: int = 1024) -> list[Request]:
    """Requests sorted by prompt length within blocks: a batch attends as far as its longest sequence.

    Only within blocks, so that whatever was answered when the run is stopped is still a fair sample.
    """
    blocks = (requests[start : start + block] for start in range(0, len(requests), block))
    return [request for part in blocks for request in sorted(part, key=lambda request: len(request.prompt))]


def _decode(base: BaseModel, requests: list[Request], batch: int, max_new_tokens: int) -> Iterator[Generation]:
    if not requests:
        return
    longest = max(len(request.prompt) for request in requests) + max_new_tokens
    decoder = Decoder(base, None, StaticTree(()), batch=min(batch, len(requests)), max_length=longest)
    yield from decoder.run(requests, stop=LoopStop())


def _cut(generation: Generation, category: str) -> Answer:
    tokens, stopped_by = generation.tokens, generation.stopped_by
    start = loop_start(tokens)
    kept = tokens if start is None else tokens[:start]
    if start is not None:
        stopped_by = "loop"
        kept = kept if len(kept) >= MIN_ANSWER else []
    request = generation.request
    return Answer(request.key, category, request.prompt, kept, len(tokens) - len(kept), stopped_by)
