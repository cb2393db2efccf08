"""Decoding two prompts with tiny models: what the tests of every kind of heads share."""

from __future__ import annotations

from tiny_models import WINDOW, prompt_of

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree

NEW_TOKENS = 28
PROMPTS = [prompt_of(5, 1), prompt_of(WINDOW + 5, 2)]
NO_TREE = StaticTree(())


def decode(
    base: BaseModel,
    heads: AnyHeads | None,
    tree: StaticTree,
    prompts: list[list[int]] = PROMPTS,
    *,
    batch: int = 1,
    rows: int | None = None,
    new_tokens: int = NEW_TOKENS,
) -> list[Generation]:
    """Every prompt's generation, in order."""
    longest = max(len(prompt) for prompt in prompts) + new_tokens
    decoder = Decoder(base, heads, tree, batch=batch, max_length=longest, rows=rows)
    requests = [Request(str(index), prompt, new_tokens) for index, prompt in enumerate(prompts)]
    return sorted(decoder.run(requests), key=lambda generation: int(generation.request.key))


def answers_of(generations: list[Generation]) -> list[Answer]:
    """The generations as answers, to record a trace of."""
    return [Answer(g.request.key, "test", g.request.prompt, g.tokens, 0, "length") for g in generations]
