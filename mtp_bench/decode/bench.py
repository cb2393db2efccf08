"""Real decoding, interleaved prompt by prompt: the baseline, Hugging Face ``generate``, topologies with their heads.

Every arm decodes the same prompts to the same number of tokens; tokens are counted by id in all arms; decode time runs
from the first token emitted to the last, so prefill is apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Generation, Request
from mtp_bench.decode.prefill import PREFILL_CHUNK
from mtp_bench.decode.teacher import forward
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree, Topology

ENGINE_BASELINE = "baseline:engine"
HF_BASELINE = "baseline:hf-generate"
HF_STATIC = "baseline:hf-static-cache"
HF_LOOKUP = "baseline:hf-prompt-lookup"
VLLM_BASELINE = "baseline:vllm"
VLLM_LOOKUP = "baseline:vllm-prompt-lookup"
LOOKUP_TOKENS = 10
# The longest n-gram that prompt lookup looks for: generate's default.
LOOKUP_NGRAM = 2
NARROW_CHUNK = 8
WARM_UP_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Contender:
    """A topology and the heads that draft it."""

    topology: Topology
    heads: AnyHeads | None


@dataclass(frozen=True)
class BenchRow:
    """One prompt decoded once by one arm.

    Attributes:
        first_divergence: index of the first token that differs from the engine baseline's, None when all agree.
        tie: at that place the top two logits were a near-tie, so rounding explains it.
    """

    arm: str
    prompt_id: str
    category: str
    repeat: int
    tokens: int
    steps: int
    prefill_s: float
    decode_s: float
    first_divergence: int | None
    tie: bool
    first_tokens: int = 1

    @property
    def tokens_in_steps(self) -> int:
        """Tokens emitted while ``decode_s`` ran: all but the first."""
        return self.tokens - self.first_tokens


Arm = Callable[[Answer], Generation]


def run_bench(
    base: BaseModel,
    contenders: Mapping[str, Contender],
    answers: Sequence[Answer],
    *,
    repeats: int = 3,
    with_hf: bool = True,
    with_lookup: bool = False,
    with_static: bool = False,
    more: Mapping[str, Arm] | None = None,
    seed: int = 0,
    between: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[BenchRow]:
    """Decode every answer's prompt with every arm, in a new random order of arms for each prompt and repeat.

    The first prompt's first tokens are decoded once by each arm beforehand, uncounted, as warm-up.

    Args:
        with_hf: Hugging Face ``generate`` too; with_static: and with its static cache; with_lookup: and its
            prompt-lookup decoding, which drafts n-grams of the text so far and needs no heads.
        more: further arms by name: other engines.
        between: called after all arms have decoded a prompt.
    """
    others: dict[str, Arm] = {}
    if with_hf:
        others[HF_BASELINE] = lambda answer: hf_generate(base, _request(answer))
    if with_static:
        others[HF_STATIC] = lambda answer: hf_generate(base, _request(answer), static_cache=True)
    if with_lookup:
        others[HF_LOOKUP] = lambda answer: hf_generate(base, _request(answer), lookup_tokens=LOOKUP_TOKENS)
    arms = _arms(base, contenders, answers, {**others, **(more or {})})
    for arm in arms.values():
        arm(replace(answers[0], tokens=answers[0].tokens[:WARM_UP_TOKENS]))
    order = np.random.default_rng(seed)
    planned, done = repeats * len(answers) * len(arms), 0
    rows: list[BenchRow] = []
    names = list(arms)
    for repeat in range(repeats):
        for answer in answers:
            outcome: dict[str, Generation] = {}
            for index in order.permutation(len(names)):
                outcome[names[index]] = arms[names[index]](answer)
                done += 1
                if on_progress is not None:
                    on_progress(done, planned)
            rows += [bench_row(base, name, repeat, answer, outcome) for name in names]
            if between is not None:
                between()
    return rows


def _arms(
    base: BaseModel, contenders: Mapping[str, Contender], answers: Sequence[Answer], others: Mapping[str, Arm]
) -> dict[str, Arm]:
    own = engine_arms(base, {ENGINE_BASELINE: Contender(StaticTree(()), None), **contenders}, answers)
    return {ENGINE_BASELINE: own.pop(ENGINE_BASELINE), **others} | own


def engine_arms(base: BaseModel, contenders: Mapping[str, Contender], answers: Sequence[Answer]) -> dict[str, Arm]:
    """How each contender decodes an answer's prompt, to the answer's number of tokens, with this engine."""
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    widest = max([one.topology.rows for one in contenders.values()], default=1)
    # One cache for all arms: the memory of the largest, and no arm profits from a warmer one.
    cache = TreeCache.allocate(base, batch=1, length=longest + widest)

    def engine(one: Contender) -> Arm:
        heads = one.heads if one.topology.num_nodes else None
        decoder = Decoder(base, heads, one.topology, max_length=longest, cache=cache)
        return lambda answer: next(iter(decoder.run([_request(answer)])))

    return {name: engine(one) for name, one in contenders.items()}


def _request(answer: Answer) -> Request:
    return Request(answer.id, answer.prompt, len(answer.tokens))


@torch.inference_mode()
def hf_generate(
    base: BaseModel, request: Request, *, lookup_tokens: int | None = None, static_cache: bool = False
) -> Generation:
    """Decode with Hugging Face ``generate`` (greedy, its default cache, its stock SDPA attention).

    Args:
        static_cache: its static cache instead (``cache_implementation="static"``).
        lookup_tokens: draft so many tokens by prompt lookup (``prompt_lookup_num_tokens``).
    """
    clock = _TokenClock(len(request.prompt))
    with base.stock_attention(), _plain_settings(base):
        tokens = torch.tensor([request.prompt], device=base.device)
        start = time.perf_counter()
        output: Any = base.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=request.max_new_tokens,
            stopping_criteria=[clock],
            prompt_lookup_num_tokens=lookup_tokens,
            cache_implementation="static" if static_cache else None,
        )
        emitted = output[0, len(request.prompt) :].tolist()
    return Generation(
        request,
        tokens=emitted,
        accepted=[after - before - 1 for before, after in pairwise(clock.lengths)],
        first_tokens=clock.lengths[0],
        prefill_s=clock.times[0] - start,
        decode_s=clock.times[-1] - clock.times[0],
        stopped_by="hf",
    )


@contextmanager
def _plain_settings(base: BaseModel) -> Iterator[None]:
    """Greedy decoding to our end tokens; checkpoints bring penalties and the like, which bend greedy decoding too."""
    own = base.model.generation_config
    ends = sorted(base.eos_ids)
    base.model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0
    )
    try:
        yield
    finally:
        base.model.generation_config = own


class _TokenClock:
    """A stopping criterion that stops nothing and notes when each token (or each pass's tokens) came."""

    def __init__(self, prompt: int) -> None:
        self.times: list[float] = []
        self.lengths: list[int] = []
        self._prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        # Reading a value waits for the device, which generate itself does at every token.
        input_ids[0, -1].item()
        self.times.append(time.perf_counter())
        self.lengths.append(input_ids.shape[1] - self._prompt)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def bench_row(base: BaseModel, name: str, repeat: int, answer: Answer, outcome: Mapping[str, Generation]) -> BenchRow:
    """The row of arm ``name`` in ``outcome``, its text held against the engine baseline's there."""
    generation, reference = outcome[name], outcome[ENGINE_BASELINE]
    divergence = first_divergence(generation.tokens, reference.tokens)
    return BenchRow(
        name,
        answer.id,
        answer.category,
        repeat,
        len(generation.tokens),
        generation.steps,
        generation.prefill_s,
        generation.decode_s,
        divergence,
        divergence is not None and is_near_tie(base, answer.prompt, reference.tokens, divergence, generation.tokens),
        generation.first_tokens,
    )


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first difference (a missing token counts), None when equal."""
    if list(tokens) == list(reference):
        return None
    shared = min(len(tokens), len(reference))
    return next((i for i in range(shared) if tokens[i] != reference[i]), shared)


@torch.inference_mode()
def is_near_tie(
    base: BaseModel, prompt: Sequence[int], tokens: Sequence[int], index: int, other: Sequence[int] | None = None
) -> bool:
    """Whether rounding can explain that decoding went on otherwise after ``prompt + tokens[:index]``.

    The text is run twice in passes of different shapes; how much their logits differ is the rounding noise of this
    model and dtype at this place. It is a near-tie if the tokens that were chosen lie below the best logit by no more
    than three standard deviations of a difference of two such logits, or four units in the last place.

    Args:
        tokens: what the baseline emitted.
        other: what the other arm emitted; without it the second best token stands for its choice.
    """
    text = torch.tensor([[*prompt, *tokens[:index]]], device=base.device)
    one, two = (base.logits(forward(base, text, chunk=chunk)[0, -1]).float() for chunk in (PREFILL_CHUNK, NARROW_CHUNK))
    mean = (one + two) / 2
    best = mean.topk(2).values
    chosen = [arm[index] for arm in (tokens, other or ()) if index < len(arm)]
    gap = best[0] - (mean[chosen].min() if len(chosen) == 2 else best[1])
    noise = (one - two).square().mean().sqrt()
    allowed = torch.maximum(3 * 2**0.5 * noise, 4 * torch.finfo(base.dtype).eps * best[0].abs().clamp(min=1.0))
    return bool(gap <= allowed)
