"""Where the time of a step goes: each part of real steps timed, and what lies between them.

The device is waited for after every part, which a step otherwise does once: on a GPU the sum is therefore a little more
than an untimed step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from mtp_bench.decode.accept import Acceptance
from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import Contender
from mtp_bench.decode.draft import Settled, Which
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.step import TreeStepper, Verified
from mtp_bench.models.base import BaseModel

DRAFT, VERIFY, ACCEPT, SETTLE, HOST = "draft", "verify", "accept", "cache move", "host gap"
PARTS = (DRAFT, VERIFY, ACCEPT, SETTLE, HOST)
WARM_UP_TOKENS = 8
MAX_TOKENS = 64

T = TypeVar("T")


class TimedStepper(TreeStepper):
    """A stepper that notes the seconds each part of its steps takes."""

    spent_s: dict[str, float]
    _stepping = False

    def step(self, longest: int) -> torch.Tensor:
        """See ``TreeStepper``."""
        self._stepping = True
        try:
            return super().step(longest)
        finally:
            self._stepping = False

    def verify(self, longest: int) -> Verified:
        """See ``TreeStepper``."""
        return self._timed(VERIFY, lambda: TreeStepper.verify(self, longest))

    def accept(self, verified: Verified) -> Acceptance:
        """See ``TreeStepper``."""
        return self._timed(ACCEPT, lambda: TreeStepper.accept(self, verified))

    def settle(self, verified: Verified, outcome: Acceptance, longest: int) -> tuple[torch.Tensor, Settled]:
        """See ``TreeStepper``."""
        return self._timed(SETTLE, lambda: TreeStepper.settle(self, verified, outcome, longest))

    def draft(self, which: Which, settled: Settled) -> None:
        """See ``TreeStepper``; the draft that belongs to a prefill does not count."""
        if self._stepping:
            self._timed(DRAFT, lambda: TreeStepper.draft(self, which, settled))
        else:
            super().draft(which, settled)

    def start_clock(self) -> None:
        """Forget what was noted."""
        self.spent_s = dict.fromkeys(PARTS, 0.0)

    def _timed(self, part: str, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = call()
        if self.base.device.type == "cuda":
            torch.cuda.synchronize(self.base.device)
        self.spent_s[part] += time.perf_counter() - start
        return result


def step_budget(base: BaseModel, contenders: Mapping[str, Contender], answer: Answer) -> dict[str, dict[str, float]]:
    """Milliseconds per step by part, for each contender decoding ``answer``'s prompt once, to 64 tokens at most.

    ``host gap`` is all that is not in one of the others: the loop around the steps, and reading their results.
    """
    return {name: _budget(base, one, answer) for name, one in contenders.items()}


def _budget(base: BaseModel, one: Contender, answer: Answer) -> dict[str, float]:
    heads = one.heads if one.topology.num_nodes else None
    length = len(answer.prompt) + len(answer.tokens)
    decoder = Decoder(base, heads, one.topology, max_length=length, stepper=TimedStepper)
    stepper = decoder.stepper
    assert isinstance(stepper, TimedStepper)
    stepper.start_clock()
    list(decoder.run([Request("warm-up", answer.prompt, min(WARM_UP_TOKENS, len(answer.tokens)))]))
    stepper.start_clock()
    passes, prefill_s, start = decoder.passes, decoder.prefill_s, time.perf_counter()
    list(decoder.run([Request(answer.id, answer.prompt, min(MAX_TOKENS, len(answer.tokens)))]))
    whole = time.perf_counter() - start - (decoder.prefill_s - prefill_s)
    stepper.spent_s[HOST] = whole - sum(stepper.spent_s.values())
    return {part: 1e3 * seconds / (decoder.passes - passes) for part, seconds in stepper.spent_s.items()}
