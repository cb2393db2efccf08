"""Prompt files: each format read, each defect refused with its place, limits and hashes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.prompts.load import load_prompts, prompts_sha256, round_robin
from mtp_bench.prompts.prompt import Prompt


def write(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def json_lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read_one(folder: Path, record: Any, name: str = "p.jsonl") -> Prompt:
    (prompt,) = load_prompts(write(folder, name, json_lines(record))).prompts
    return prompt


def test_spec_bench_line(tmp_path: Path):
    record = {"question_id": 81, "category": "writing", "turns": ["First.", "Second."], "reference": ["x"]}
    assert read_one(tmp_path, record) == Prompt("81", "writing", ("First.", "Second."))


def test_speed_bench_line_keeps_user_turns_only(tmp_path: Path):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Yes"},
        {"role": "User", "content": "Two"},
    ]
    assert read_one(tmp_path, {"question_id": "q", "category": "qa", "turns": turns}).turns == ("One", "Two")


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hello\nyou"},
        {"text": "Hello\nyou"},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello\nyou"}]},
        {"turns": ["Hello\nyou"]},
        {"conversations": [{"from": "human", "value": "Hello\nyou"}, {"from": "gpt", "value": "Hi"}]},
    ],
)
def test_generic_json_lines(tmp_path: Path, record: dict[str, Any]):
    assert read_one(tmp_path, record) == Prompt("p-00001", "uncategorized", ("Hello\nyou",))


def test_share_gpt_list(tmp_path: Path):
    document = [
        {"id": "a_0", "conversations": [{"from": "gpt", "value": "G"}, {"from": "human", "value": "One"}]},
        {"id": "b_0", "conversations": [{"from": "user", "value": "Two"}, {"from": "human", "value": " "}]},
        {"id": "c_0", "conversations": []},
        {"id": "d_0", "conversations": [{"from": "gpt", "value": "alone"}]},
    ]
    loaded = load_prompts(write(tmp_path, "sg.json", json.dumps(document, indent=1)))
    assert [(prompt.id, prompt.turns) for prompt in loaded.prompts] == [("a_0", ("One",)), ("b_0", ("Two",))]
    assert loaded.skipped == 2
    assert loaded.name == "sg.json"


def test_plain_text_skips_blank_lines_and_keeps_brackets(tmp_path: Path):
    loaded = load_prompts(write(tmp_path, "p.txt", "\ufeff[1] first\r\n\n   \n{second}\nthird"))
    assert [prompt.turns for prompt in loaded.prompts] == [("[1] first",), ("{second}",), ("third",)]
    assert [prompt.id for prompt in loaded.prompts] == ["p-00001", "p-00002", "p-00003"]


def test_plain_text_without_suffix(tmp_path: Path):
    assert load_prompts(write(tmp_path, "prompts", "one\ntwo\n")).prompts[1].turns == ("two",)


def test_json_lines_may_hold_unicode_line_separators_and_no_final_newline(tmp_path: Path):
    content = '{"prompt": "a\u2028b"}\r\n\r\n{"prompt": "c"}'
    loaded = load_prompts(write(tmp_path, "p.jsonl", content))
    assert [prompt.turns for prompt in loaded.prompts] == [("a\u2028b",), ("c",)]


def test_repeated_ids_become_unique(tmp_path: Path):
    records = [{"id": "x", "prompt": "1"}, {"id": "x", "prompt": "2"}, {"id": "x#2", "prompt": "3"}]
    loaded = load_prompts(write(tmp_path, "p.jsonl", json_lines(*records)))
    assert [prompt.id for prompt in loaded.prompts] == ["x", "x#2", "x#2#2"]


GOOD = '{"prompt": "fine"}\n'


@pytest.mark.parametrize(
    ("name", "content", "place", "what"),
    [
        ("p.jsonl", GOOD + '{"prompt": "cut off\n', ":2:", "not valid JSON"),
        ("p.jsonl", GOOD + "\n" + GOOD + "plain words\n", ":4:", "not valid JSON"),
        ("p.jsonl", "plain words\n", ":1:", "not valid JSON"),
        ("p.jsonl", GOOD + "[1, 2]\n", ":2:", "expected a JSON object, found a list"),
        ("p.jsonl", GOOD + '{"question": "q", "answer": "a"}\n', ":2:", "no prompt in this record .its keys: question"),
        ("p.jsonl", GOOD + "{}\n", ":2:", "its keys: none"),
        ("p.jsonl", '{"turns": []}\n', ":1:", '"turns" is empty'),
        ("p.jsonl", '{"turns": "text"}\n', ":1:", '"turns" must be a list, found a string'),
        ("p.jsonl", '{"turns": ["a", 3]}\n', ":1:", r'"turns"\[1\] must be text, found a number'),
        ("p.jsonl", '{"turns": ["a", "  "]}\n', ":1:", r'"turns"\[1\] must be text, found only blanks'),
        ("p.jsonl", '{"turns": [{"content": "a"}]}\n', ":1:", r'"turns"\[0\] has no role'),
        ("p.jsonl", '{"messages": [{"role": "user"}]}\n', ":1:", r"found nothing \(null or absent\)"),
        ("p.jsonl", '{"prompt": {"a": 1}}\n', ":1:", '"prompt" must be text, found an object'),
        ("p.jsonl", '{"prompt": "\\ud800"}\n', ":1:", "surrogate"),
        ("p.jsonl", '{"prompt": "a", "category": 5}\n', ":1:", '"category" must be a non-empty string'),
        ("p.jsonl", '{"prompt": "a", "category": " "}\n', ":1:", '"category" must be a non-empty string'),
        ("p.json", '[{"prompt": "a"},\n {"prompt" "b"}]', ":", "not valid JSON: .* .line 2 column 12."),
        ("p.json", '[{"prompt": "a"}, "b"]', "#/1:", "expected a JSON object, found a string"),
        ("p.json", '[{"conversations": [{"value": "a"}]}]', "#/0:", "has no role"),
        ("p.json", "[" * 200_000, ":", "nested too deeply"),
        ("p.json", "[]", ":", "no prompts in this file"),
        ("p.json", '[{"conversations": []}]', ":", "no conversation in this file has a user message"),
        ("p.jsonl", "", ":", "no prompts in this file"),
        ("p.txt", " \n\n", ":", "no prompts in this file"),
    ],
)
def test_broken_files_name_place_and_remedy(tmp_path: Path, name: str, content: str, place: str, what: str):
    source = write(tmp_path, name, content)
    with pytest.raises(InputError, match=what) as caught:
        load_prompts(source)
    assert str(caught.value).startswith(source + place)
    assert "\n  -> " in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        load_prompts(str(tmp_path / "absent.jsonl"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        load_prompts(str(tmp_path / "b.txt"))


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one(limit: int):
    with pytest.raises(InputError, match="at least 1"):
        load_prompts(None, limit)


def test_limit_takes_categories_in_turn():
    full = load_prompts(None)
    assert full.name == "evaluation"
    for limit in (1, 9, 27, 30, 10_000):
        limited = load_prompts(None, limit)
        assert limited.prompts == full.prompts[:limit]
        counts = Counter(prompt.category for prompt in limited.prompts)
        assert limit > 30 or max(counts.values()) - min(counts.values()) <= (limit % 9 > 0)
    assert len({prompt.category for prompt in full.prompts[:9]}) == 9


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_round_robin_is_a_balanced_stable_permutation(categories: list[str]):
    prompts = [Prompt(str(index), category, ("x",)) for index, category in enumerate(categories)]
    ordered = round_robin(prompts)
    assert sorted(ordered, key=lambda prompt: int(prompt.id)) == prompts
    totals = Counter(categories)
    for length in range(len(ordered) + 1):
        seen = Counter(prompt.category for prompt in ordered[:length])
        # A category falls behind another only once it is used up.
        for first in totals:
            for second in totals:
                assert seen[first] >= min(seen[second] - 1, totals[first])
    for category in totals:
        ids = [int(prompt.id) for prompt in ordered if prompt.category == category]
        assert ids == sorted(ids)


def test_hash_covers_content_and_order_but_not_ids(tmp_path: Path):
    base = [Prompt("1", "a", ("x", "y")), Prompt("2", "b", ("z",))]
    digest = prompts_sha256(base)
    assert prompts_sha256([Prompt("other", "a", ("x", "y")), base[1]]) == digest
    for changed in (
        [base[1], base[0]],
        base[:1],
        [Prompt("1", "b", ("x", "y")), base[1]],
        [Prompt("1", "a", ("xy",)), base[1]],
        [Prompt("1", "a", ("x", "y ")), base[1]],
    ):
        assert prompts_sha256(changed) != digest
    assert load_prompts(None, 5).sha256 == prompts_sha256(load_prompts(None).prompts[:5])
    one = load_prompts(write(tmp_path, "one.txt", "p\nq\n"))
    two = load_prompts(write(tmp_path, "two.jsonl", json_lines({"prompt": "p"}, {"prompt": "q"})))
    assert one.sha256 == two.sha256
