"""Prompts that the base model writes itself: handed its template up to the user's turn, a chat model writes one.

What it writes resembles what it was tuned on, which is more varied than any list of templates, so heads trained on the
answers see the model's own range (the idea of Magpie, Xu et al. 2024, arXiv:2406.08464). Sampling is seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.decode.prefill import prefill
from mtp_bench.errors import InputError
from mtp_bench.models.base import BaseModel
from mtp_bench.models.chat import ChatFormat
from mtp_bench.prompts.overlap import overlaps_evaluation
from mtp_bench.prompts.prompt import Prompt

CATEGORY = "self_written"
MAX_TOKENS = 160
MIN_WORDS = 4
_PLACEHOLDER = "\u241f"


def self_written_prompts(
    base: BaseModel,
    chat: ChatFormat,
    count: int,
    seed: int,
    *,
    batch: int = 192,
    temperature: float = 1.0,
    top_p: float = 0.95,
    on_progress: Callable[[int], None] | None = None,
) -> list[Prompt]:
    """``count`` distinct prompts sampled from ``base``; those that share eight words with an evaluation prompt go.

    Raises:
        InputError: the template has no user turn of its own to open, or the model hardly writes anything usable.
    """
    if count <= 0:
        return []
    opening = user_opening(chat)
    generator = torch.Generator(device=base.device).manual_seed(seed)
    seen: set[str] = set()
    prompts: list[Prompt] = []
    written = sample(base, opening, min(batch, count), temperature, top_p, generator)
    for drawn, tokens in enumerate(written, start=1):
        text = chat.decode(tokens).strip()
        if _usable(text, seen):
            seen.add(text.lower())
            prompts.append(Prompt(f"self-{seed}-{len(prompts):06d}", CATEGORY, (text,)))
            if on_progress is not None:
                on_progress(1)
        elif drawn >= 500 and len(prompts) < drawn // 10:
            raise InputError(
                f"only {len(prompts)} of {drawn} texts that the model wrote are usable as prompts",
                where="--self-written",
                fix="use --prompts FILE, or the generated prompts alone",
            )
        if len(prompts) == count:
            break
    return prompts


def user_opening(chat: ChatFormat) -> list[int]:
    """Token ids of the chat template up to where the user's text begins.

    Raises:
        InputError: raw prompts have no template.
    """
    rendered = chat.render([("user", _PLACEHOLDER)])
    start = rendered.find(_PLACEHOLDER)
    if chat.raw or start <= 0:
        raise InputError("the model has no template that opens a user's turn", where="--self-written", fix="leave out")
    return list(chat.tokenizer(rendered[:start], add_special_tokens=False)["input_ids"])


def _usable(text: str, seen: set[str]) -> bool:
    return len(text.split()) >= MIN_WORDS and text.lower() not in seen and not overlaps_evaluation(text)


@torch.inference_mode()
def sample(
    base: BaseModel, opening: list[int], batch: int, temperature: float, top_p: float, generator: torch.Generator
) -> Iterator[list[int]]:
    """Endless sampled continuations of ``opening`` that end with an end token (left out) within ``MAX_TOKENS``.

    ``batch`` of them are written side by side. A row that ends starts anew at once: all share the opening, so its
    length is set back and nothing need be computed again.
    """
    cache = TreeCache.allocate(base, batch=batch, length=len(opening) + MAX_TOKENS)
    opened = torch.tensor(opening, device=base.device).expand(batch, -1)
    hidden, _ = prefill(base, cache, opened)
    first = base.logits(hidden[:1, -1])
    logits = first.expand(batch, -1)
    itself = torch.ones(1, 1, dtype=torch.bool, device=base.device)
    rows: list[list[int]] = [[] for _ in range(batch)]
    while True:
        drawn = _draw(logits, temperature, top_p, generator)
        lengths = torch.tensor([len(opening) + len(row) for row in rows], device=base.device)
        fresh = []
        for index, token in enumerate(drawn[:, 0].tolist()):
            rows[index].append(token)
            if token in base.eos_ids or len(rows[index]) == MAX_TOKENS:
                if token in base.eos_ids:
                    yield rows[index][:-1]
                rows[index] = []
                fresh.append(index)
        visible = bucket(int(lengths.max()) + 1, cache.length)
        slots = lengths[:, None]
        cache.aim(slots, visible)
        mask = for_layers(base, row_mask(slots, lengths, itself, visible), slots, slots, lengths)
        logits = base.logits(base.hidden_states(drawn, slots, mask, cache)[:, -1])
        logits[fresh] = first


def _draw(logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """One token per row of [B, V]: nucleus sampling among the 256 likeliest, int64 [B, 1]."""
    values, ids = torch.topk(logits.float() / temperature, min(256, logits.shape[-1]), dim=-1)
    shares = values.softmax(-1)
    shares = shares.masked_fill(shares.cumsum(-1) - shares > top_p, 0.0)
    return ids.gather(1, torch.multinomial(shares, 1, generator=generator))
