"""Real decoding in batches: a queue of requests, served by each contender at each batch size, interleaved.

The prompts come in blocks; every (contender, batch size) empties the queue of a block, in a new random order for each
block and repeat, so that blocks are the pairs of a comparison. Slots run empty at a block's end, in every arm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import ENGINE_BASELINE, Contender
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.memory import check_memory
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class ThroughputRow:
    """One block decoded once by one arm.

    Attributes:
        tokens: emitted in steps, the first of each request left out; steps: of all requests, which share ``passes``.
        differing: requests whose text is not that of the baseline at the same batch size.
    """

    arm: str
    batch: int
    block: int
    repeat: int
    requests: int
    tokens: int
    steps: int
    passes: int
    prefill_s: float
    decode_s: float
    differing: int


def run_throughput(
    base: BaseModel,
    contenders: Mapping[str, Contender],
    answers: Sequence[Answer],
    batches: Sequence[int],
    *,
    block: int,
    repeats: int = 1,
    seed: int = 0,
    beside: Callable[[str, int], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ThroughputRow]:
    """Decode every block of ``block`` answers at every batch size with every contender and the N = 0 baseline.

    Args:
        beside: called with the arm and the batch size whenever one of its requests has ended; the time that it takes
            is not the arm's.
    """
    everyone = {ENGINE_BASELINE: Contender(StaticTree(()), None), **contenders}
    arms = [(name, batch) for batch in batches for name in everyone]
    decoders = _decoders(base, everyone, answers, batches)
    for arm in arms:
        _decode(decoders[arm], answers[: arm[1]], WARM_UP_TOKENS)
    order = np.random.default_rng(seed)
    blocks = [answers[start : start + block] for start in range(0, len(answers), block)]
    planned, done = repeats * len(answers) * len(arms), 0
    rows: list[ThroughputRow] = []
    for repeat in range(repeats):
        for index, part in enumerate(blocks):
            outcome = {}
            for place in order.permutation(len(arms)):
                pause = partial(beside, *arms[place]) if beside is not None else None
                outcome[arms[place]] = _decode(decoders[arms[place]], part, pause=pause)
                done += len(part)
                if on_progress is not None:
                    on_progress(done, planned)
            for name, batch in arms:
                got, reference = outcome[name, batch], outcome[ENGINE_BASELINE, batch]
                differing = sum(got.texts[key] != text for key, text in reference.texts.items())
                figures = (got.tokens, got.steps, got.passes, got.prefill_s, got.decode_s)
                rows.append(ThroughputRow(name, batch, index, repeat, len(part), *figures, differing))
    return rows


@dataclass(frozen=True)
class _Outcome:
    texts: dict[str, list[int]]
    tokens: int
    steps: int
    passes: int
    prefill_s: float
    decode_s: float


def _decoders(
    base: BaseModel, everyone: Mapping[str, Contender], answers: Sequence[Answer], batches: Sequence[int]
) -> dict[tuple[str, int], Decoder]:
    """A decoder for each arm; those of one batch size share a cache."""
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    widest = max(one.topology.rows for one in everyone.values())
    decoders = {}
    for batch in batches:
        check_memory(base, batch=batch, length=longest + widest, rows=widest)
        cache = TreeCache.allocate(base, batch=batch, length=longest + widest)
        for name, one in everyone.items():
            heads = one.heads if one.topology.num_nodes else None
            decoders[name, batch] = Decoder(base, heads, one.topology, batch=batch, max_length=longest, cache=cache)
    return decoders


def _decode(
    decoder: Decoder,
    answers: Sequence[Answer],
    new_tokens: int | None = None,
    *,
    pause: Callable[[], None] | None = None,
) -> _Outcome:
    requests = [Request(one.id, one.prompt, min(len(one.tokens), new_tokens or len(one.tokens))) for one in answers]
    passes, prefill_s, start, paused_s = decoder.passes, decoder.prefill_s, time.perf_counter(), 0.0
    done = []
    for one in decoder.run(requests):
        done.append(one)
        if pause is not None:
            pausing = time.perf_counter()
            pause()
            paused_s += time.perf_counter() - pausing
    spent = time.perf_counter() - start - paused_s
    prefill_s = decoder.prefill_s - prefill_s
    return _Outcome(
        {one.request.key: one.tokens for one in done},
        sum(one.tokens_in_steps for one in done),
        sum(one.steps for one in done),
        decoder.passes - passes,
        prefill_s,
        spent - prefill_s,
    )
