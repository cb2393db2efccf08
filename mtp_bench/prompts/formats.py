"""Reading prompts out of the file formats in use: JSONL, JSON lists (ShareGPT), plain text.

All JSON kinds hold records, and a record holds its user messages under one of a few keys, so there is one record
reader and the formats differ only in how they cut a file into records. Only what the user says is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError

NO_CATEGORY = "uncategorized"
"""The category of prompts whose source states none."""

_USER_ROLES = frozenset({"user", "human"})
_LIST_KEYS = ("turns", "conversations", "messages")
_TEXT_KEYS = ("prompt", "text")
_RECORD_FIX = (
    'give each record "turns" (a list), "conversations", "messages", "prompt" or "text", and optionally "category"'
)


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt as its file states it; ``id`` is None where the file has none, ``turns`` empty if no user speaks."""

    id: str | None
    category: str
    turns: tuple[str, ...]


def parse_prompts(text: str, path: Path) -> list[RawPrompt]:
    """All prompts of a file with content ``text``; the format follows from the content, ``.txt`` is always plain.

    Raises:
        InputError: a broken line or record, named as ``file:line`` or ``file#/index`` (JSON pointer).
    """
    text = text.removeprefix("\ufeff")
    start, suffix = text.lstrip()[:1], path.suffix.lower()
    if suffix == ".txt":
        return _parse_plain(text)
    if start == "[":
        return _parse_json_list(text, path)
    if start == "{" or (start and suffix in {".json", ".jsonl", ".ndjson"}):
        return _parse_json_lines(text, path)
    return _parse_plain(text)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """1-based number and content of every line that is not blank.

    Not ``splitlines``: that also cuts at characters such as U+2028, which JSON strings may hold unescaped.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _parse_plain(text: str) -> list[RawPrompt]:
    return [RawPrompt(None, NO_CATEGORY, (line,)) for _, line in _lines(text)]


def _parse_json_lines(text: str, path: Path) -> list[RawPrompt]:
    prompts = []
    for number, line in _lines(text):
        where = f"{path}:{number}"
        record = _decode(line, where, "write one JSON object per line, or remove the line")
        if not isinstance(record, dict):
            raise InputError(f"expected a JSON object, found {_kind(record)}", where=where, fix=_RECORD_FIX)
        prompts.append(_parse_record(record, where))
    return prompts


def _parse_json_list(text: str, path: Path) -> list[RawPrompt]:
    records = _decode(text, str(path), "mend the file; if it is plain text, name it .txt")
    prompts = []
    for index, record in enumerate(records):
        where = f"{path}#/{index}"
        if not isinstance(record, dict):
            raise InputError(f"expected a JSON object, found {_kind(record)}", where=where, fix=_RECORD_FIX)
        prompts.append(_parse_record(record, where))
    return prompts


def _decode(text: str, where: str, fix: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # In a line of JSONL the line is already in ``where``; in a whole document it is not.
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise InputError(f"not valid JSON: {error.msg} ({place})", where=where, fix=fix) from error
    except RecursionError as error:
        raise InputError("JSON nested too deeply", where=where, fix=fix) from error


def _parse_record(record: dict[str, Any], where: str) -> RawPrompt:
    category = record.get("category")
    if category is not None and not (isinstance(category, str) and category.strip()):
        raise InputError(
            f'"category" must be a non-empty string, found {_kind(category)}', where=where, fix="name or remove it"
        )
    return RawPrompt(_record_id(record), category or NO_CATEGORY, _record_turns(record, where))


def _record_id(record: dict[str, Any]) -> str | None:
    for key in ("question_id", "id"):
        value = record.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    return None


def _record_turns(record: dict[str, Any], where: str) -> tuple[str, ...]:
    for key in _LIST_KEYS:
        if key in record:
            return _user_turns(record[key], key, where)
    for key in _TEXT_KEYS:
        if key in record:
            return (_checked_text(record[key], f'"{key}"', where),)
    raise InputError(
        f"no prompt in this record (its keys: {', '.join(record) or 'none'})", where=where, fix=_RECORD_FIX
    )


def _user_turns(entries: Any, key: str, where: str) -> tuple[str, ...]:
    """The user's messages; an empty tuple only for a conversation in which no user says anything."""
    if not isinstance(entries, list):
        raise InputError(f'"{key}" must be a list, found {_kind(entries)}', where=where, fix=_RECORD_FIX)
    if not entries and key == "turns":
        raise InputError('"turns" is empty', where=where, fix="add a turn or remove the record")
    turns = []
    for index, entry in enumerate(entries):
        name = f'"{key}"[{index}]'
        if isinstance(entry, dict):
            role, content = _message(entry, name, where)
            # Scraped conversations contain blank messages; they are nothing to answer.
            if role in _USER_ROLES and content != "":
                turns.append(_checked_text(content, name, where))
        else:
            turns.append(_checked_text(entry, name, where))
    return tuple(turns)


def _message(entry: dict[str, Any], name: str, where: str) -> tuple[str, Any]:
    role = entry.get("from", entry.get("role"))
    content = entry.get("value", entry.get("content"))
    if not isinstance(role, str):
        raise InputError(
            f"{name} has no role", where=where, fix='use {"role": "user", "content": "..."} or {"from", "value"}'
        )
    return role.lower(), content.strip() if isinstance(content, str) else content


def _checked_text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "only blanks" if isinstance(value, str) else _kind(value)
        raise InputError(f"{name} must be text, found {found}", where=where, fix="put the user's message there")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds half of a surrogate pair", where=where, fix="write the whole character, or remove it"
        ) from error
    return value


def _kind(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "nothing (null or absent)")
