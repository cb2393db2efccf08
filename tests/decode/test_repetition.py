"""Loops are found where they begin, and only where 4-grams repeat."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_bench.decode.repetition import NGRAM, WINDOW, LoopDetector, LoopStop, loop_start


def test_exact_loop() -> None:
    text = [*range(100, 130), *([1, 2, 3, 4, 5] * 20)]
    start = loop_start(text)
    assert start is not None
    assert 30 <= start <= 30 + 5 + NGRAM - 1


def test_single_token_forever() -> None:
    assert loop_start([7] * 60) == NGRAM


def test_loop_with_a_counter() -> None:
    """Lists whose items differ in one token loop too: most 4-grams repeat."""
    text = [token for item in range(20) for token in (*range(12), 100 + item)]
    start = loop_start(text)
    assert start is not None
    assert start < 40


def test_a_refrain_is_no_loop() -> None:
    text = [*range(40), 1, 2, 3, 4, 5, 6, *range(100, 140), 1, 2, 3, 4, 5, 6, *range(200, 240)]
    assert loop_start(text) is None


def test_short_text_is_no_loop() -> None:
    assert loop_start([]) is None
    assert loop_start([1, 1, 1, 1, 1]) is None


@given(st.lists(st.integers(0, 3), max_size=150))
@settings(max_examples=150, deadline=None)
def test_properties(text: list[int]) -> None:
    start = loop_start(text)
    grams = [tuple(text[index : index + NGRAM]) for index in range(len(text) - NGRAM + 1)]
    if len(set(grams)) == len(grams):
        assert start is None
    if start is not None:
        # The loop's first token ends a 4-gram seen before.
        gram = tuple(text[start - NGRAM + 1 : start + 1])
        assert gram in grams[: start - NGRAM + 1]
        # Whatever follows, the start stays.
        assert loop_start([*text, *range(50, 90)]) == start


@given(st.permutations(range(80)))
@settings(max_examples=20, deadline=None)
def test_distinct_tokens_never_loop(text: list[int]) -> None:
    assert loop_start(text) is None


def test_detector_says_when_it_is_certain() -> None:
    detector = LoopDetector()
    seen = [detector.feed(token) for token in [7] * WINDOW]
    first = next(index for index, start in enumerate(seen) if start is not None)
    assert seen[first] == NGRAM
    assert first < WINDOW


def test_stop_rule_looks_every_sixteen_tokens() -> None:
    stop = LoopStop()
    assert not stop([7] * 47)
    assert stop([7] * 48)
    assert not stop(list(range(48)))
