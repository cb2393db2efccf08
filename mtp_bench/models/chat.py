"""Turning conversations into token ids with the tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_bytes
from mtp_bench.models.base import BaseModel


@dataclass(frozen=True)
class ChatFormat:
    """How prompts of one model are rendered.

    Attributes:
        tokenizer: the model's tokenizer.
        raw: use the text as it is, without a template.
    """

    tokenizer: Any
    raw: bool

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text the model sees for ``(role, content)`` messages, ready for its answer."""
        if self.raw:
            return "".join(content for _, content in messages)
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def encode(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of ``render(messages)``."""
        text = self.render(messages)
        # A template writes its own begin-of-text token.
        return list(self.tokenizer(text, add_special_tokens=self.raw)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, end tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def fingerprint(self, messages: Sequence[tuple[str, str]]) -> dict[str, str]:
        """The rendered text and its hash, for the run's manifest."""
        text = self.render(messages)
        return {"rendered": text, "sha256": sha256_bytes(text.encode())}


def chat_format(base: BaseModel, *, raw: bool = False) -> ChatFormat:
    """How ``base`` wants its prompts.

    Raises:
        InputError: no tokenizer (dummy weights), or no chat template and ``raw`` not asked for.
    """
    if base.tokenizer is None:
        raise InputError(
            "dummy weights have no tokenizer, so there is no text to decode",
            where=f"--model {base.name}",
            fix="use real weights, or measure-cost, which needs no text",
        )
    if not raw and not getattr(base.tokenizer, "chat_template", None):
        raise InputError(
            "the tokenizer has no chat template",
            where=f"--model {base.name}",
            fix="add --raw to feed the prompts as plain text",
        )
    return ChatFormat(base.tokenizer, raw)
