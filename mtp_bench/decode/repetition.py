"""Where a greedy answer starts to loop.

Small models loop under greedy decoding, and drafting a loop is trivial: left in, it flatters acceptance. A token is
*repeated* when the 4 tokens ending with it have occurred before in the answer; a loop begins where more than half of
``WINDOW`` tokens in a row are repeated.
"""

from __future__ import annotations

NGRAM = 4
WINDOW = 40
SHARE = 0.5


class LoopDetector:
    """Incremental detector for one answer: feed tokens, read ``start``."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()
        self._repeated: list[bool] = []
        self._recent = 0
        self._tokens: list[int] = []
        self.start: int | None = None

    def feed(self, token: int) -> int | None:
        """Add one token; return the index of the loop's first token once a loop is certain."""
        self._tokens.append(token)
        gram = tuple(self._tokens[-NGRAM:])
        repeated = len(gram) == NGRAM and gram in self._seen
        self._seen.add(gram)
        self._repeated.append(repeated)
        self._recent += repeated - (self._repeated[-WINDOW - 1] if len(self._repeated) > WINDOW else False)
        if self.start is None and self._recent > SHARE * WINDOW:
            first = max(0, len(self._repeated) - WINDOW)
            self.start = first + self._repeated[first:].index(True)
        return self.start


def loop_start(tokens: list[int]) -> int | None:
    """Index of the first token of a loop in ``tokens``, None without one."""
    detector = LoopDetector()
    for token in tokens:
        if detector.feed(token) is not None:
            return detector.start
    return None


class LoopStop:
    """A stop rule for ``Decoder.run``: True once the last tokens loop. Stateless across requests."""

    def __call__(self, tokens: list[int]) -> bool:
        # Checked every 16 tokens: the answer is cut at the loop's start afterwards, so lateness costs only time.
        return len(tokens) % 16 == 0 and loop_start(tokens) is not None
