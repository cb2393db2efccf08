"""Checking the trace against real decoding: the text and the steps must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import Topology
from mtp_bench.trace import RankTrace
from mtp_bench.trace.replay import step_starts


@dataclass(frozen=True)
class LiveCheck:
    """Replay beside live decoding of a sample, as far as the two texts agree.

    In fp32 they agree to the end. In bf16 rounding takes them apart sooner or later; what was decoded before is the
    same work, and its steps must be the same.

    Attributes:
        prompts: answers decoded.
        same_text: of them, those whose tokens equal the recorded ones.
        same_steps: those whose steps end at exactly the replayed tokens, as far as the texts agree.
        tokens, agreeing_tokens: of the recorded answers, all and those before the first that differs.
        live_steps, replayed_steps: steps that ended among the agreeing tokens.
    """

    prompts: int
    same_text: int
    same_steps: int
    tokens: int
    agreeing_tokens: int
    live_steps: int
    replayed_steps: int

    @property
    def exact(self) -> bool:
        """Whether live decoding and replay agree in everything."""
        return self.prompts == self.same_text == self.same_steps

    def document(self) -> dict[str, Any]:
        """For the manifest."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"exact": self.exact}


def decode_answers(
    base: BaseModel, heads: AnyHeads | None, tree: Topology, answers: Sequence[Answer], *, batch: int = 1
) -> list[Generation]:
    """Decode each answer's prompt to the answer's length, in the order of ``answers``."""
    requests = [Request(answer.id, answer.prompt, len(answer.tokens)) for answer in answers]
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    decoder = Decoder(base, heads, tree, batch=min(batch, len(requests)), max_length=longest)
    done = {generation.request.key: generation for generation in decoder.run(requests)}
    return [done[answer.id] for answer in answers]


def check_live(
    base: BaseModel, heads: AnyHeads, tree: Topology, trace: RankTrace, answers: Sequence[Answer]
) -> LiveCheck:
    """Decode ``answers`` (all of them in ``trace``) with ``tree`` and compare with the replay."""
    where = {name: index for index, name in enumerate(trace.prompt_ids)}
    same_text = same_steps = tokens = agreeing = live_steps = replayed_steps = 0
    for answer, generation in zip(answers, decode_answers(base, heads, tree, answers), strict=True):
        shared = shared_length(answer.tokens, generation.tokens)
        live = _ends(generation.accepted, len(generation.tokens), shared)
        recorded = _replayed_ends(trace.select([where[answer.id]]), tree, shared)
        same_text += generation.tokens == answer.tokens
        same_steps += live == recorded
        tokens, agreeing = tokens + len(answer.tokens), agreeing + shared
        live_steps, replayed_steps = live_steps + len(live), replayed_steps + len(recorded)
    return LiveCheck(len(answers), same_text, same_steps, tokens, agreeing, live_steps, replayed_steps)


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens at the start that both texts have."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _ends(accepted: Sequence[int], length: int, shared: int) -> list[int]:
    """Index of the last token of every live step that ended among the first ``shared``; token 0 is prefill's."""
    # The last step may have accepted tokens beyond the end of the text.
    ends = np.minimum(np.cumsum(np.asarray(accepted, dtype=int) + 1), length - 1)
    return [int(end) for end in ends if end < shared]


def _replayed_ends(trace: RankTrace, tree: Topology, shared: int) -> list[int]:
    """The same of the steps that replay makes of a trace of one prompt."""
    starts = np.flatnonzero(step_starts(trace, tree))
    ends = [*starts[1:], trace.num_positions - 1] if len(starts) else []
    return [int(end) for end in ends if end < shared]
