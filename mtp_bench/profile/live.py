"""Checking the trace against real decoding: the number of steps and the text must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import Topology
from mtp_bench.trace import RankTrace, replay


@dataclass(frozen=True)
class LiveCheck:
    """Replay beside live decoding of a sample.

    Attributes:
        prompts: answers decoded.
        same_text: of them, those whose tokens equal the recorded ones.
        same_steps: of these, those decoded in exactly the replayed number of steps.
        live_steps, replayed_steps: summed over the answers with the same text.
    """

    prompts: int
    same_text: int
    same_steps: int
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
    replayed = replay(trace.select([where[answer.id] for answer in answers]), tree)
    generations = decode_answers(base, heads, tree, answers)
    same = [g.tokens == a.tokens for g, a in zip(generations, answers, strict=True)]
    pairs = [(g.steps, int(s)) for g, s, ok in zip(generations, replayed.steps, same, strict=True) if ok]
    return LiveCheck(
        len(answers),
        sum(same),
        sum(live == replay_steps for live, replay_steps in pairs),
        sum(live for live, _ in pairs),
        sum(steps for _, steps in pairs),
    )
