"""Real decoding in batches: a queue of requests, served by each contender at each batch size, interleaved.

The prompts come in blocks. Every contender empties the queue of a block at every batch size, those of one batch size
together: in turns, each time in a new random order, each decodes until one of its requests has ended. So a machine that
drifts drifts for all alike. Blocks are the pairs of a comparison. Slots run empty at a block's end, in every arm.

Each request emits as many tokens as its answer has, past an end token too: a text that leaves the recorded one at a
near-tie may end early, and an arm that then has less to do is neither another's match nor what was predicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.bench import ENGINE_BASELINE, Contender
from mtp_bench.decode.generate import Decoder, Generation, Request
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

    Raises:
        InputError: a cache for each contender does not fit into memory.
    """
    everyone = {ENGINE_BASELINE: Contender(StaticTree(()), None), **contenders}
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    widest, sequences = max(one.topology.rows for one in everyone.values()), len(everyone) * sum(batches)
    check_memory(base, batch=max(batches), length=longest + widest, rows=widest, sequences=sequences)
    decoders = {
        batch: {name: _decoder(base, one, batch, longest) for name, one in everyone.items()} for batch in batches
    }
    for batch in batches:
        _serve(decoders[batch], batch, answers[:batch], np.random.default_rng(seed), new_tokens=WARM_UP_TOKENS)
    order = np.random.default_rng(seed)
    blocks = [answers[start : start + block] for start in range(0, len(answers), block)]
    planned, done = repeats * len(answers) * len(batches) * len(everyone), 0
    rows: list[ThroughputRow] = []

    def ended(arm: str, batch: int) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, planned)
        if beside is not None:
            beside(arm, batch)

    for repeat in range(repeats):
        for index, part in enumerate(blocks):
            for batch in order.permutation(np.array(batches)).tolist():
                queues = _serve(decoders[batch], batch, part, order, ended=ended)
                reference = queues[ENGINE_BASELINE].texts
                for name, queue in queues.items():
                    differing = sum(queue.texts[key] != text for key, text in reference.items())
                    rows.append(queue.row(name, batch, index, repeat, differing))
    return rows


def _decoder(base: BaseModel, one: Contender, batch: int, max_length: int) -> Decoder:
    heads = one.heads if one.topology.num_nodes else None
    return Decoder(base, heads, one.topology, batch=batch, max_length=max_length)


def _serve(
    decoders: Mapping[str, Decoder],
    batch: int,
    answers: Sequence[Answer],
    order: np.random.Generator,
    *,
    new_tokens: int | None = None,
    ended: Callable[[str, int], None] | None = None,
) -> dict[str, _Queue]:
    """One queue of the same requests for every decoder, emptied in turns."""
    queues = {name: _Queue(decoder, answers, new_tokens) for name, decoder in decoders.items()}
    busy = list(queues)
    while busy:
        for name in [busy[place] for place in order.permutation(len(busy))]:
            if not queues[name].serve_one():
                busy.remove(name)
            elif ended is not None:
                ended(name, batch)
    return queues


class _Queue:
    """Requests being served by one decoder, and the time they took it.

    Attributes:
        texts: by request, of those that have ended.
    """

    def __init__(self, decoder: Decoder, answers: Sequence[Answer], new_tokens: int | None) -> None:
        lengths = [min(len(one.tokens), new_tokens or len(one.tokens)) for one in answers]
        requests = [
            Request(one.id, one.prompt, length, ignore_eos=True) for one, length in zip(answers, lengths, strict=True)
        ]
        self._decoder, self._run = decoder, decoder.run(requests)
        self._passes, self._prefill_s = decoder.passes, decoder.prefill_s
        self._seconds, self._done = 0.0, list[Generation]()
        self.texts: dict[str, list[int]] = {}

    def serve_one(self) -> bool:
        """Decode until a request has ended; False when there is none left."""
        start = time.perf_counter()
        one = next(self._run, None)
        self._seconds += time.perf_counter() - start
        if one is not None:
            self._done.append(one)
            self.texts[one.request.key] = one.tokens
        return one is not None

    def row(self, arm: str, batch: int, block: int, repeat: int, differing: int) -> ThroughputRow:
        """What came of it, with its place in the run."""
        tokens, steps = sum(one.tokens_in_steps for one in self._done), sum(one.steps for one in self._done)
        passes, prefill_s = self._decoder.passes - self._passes, self._decoder.prefill_s - self._prefill_s
        figures = (len(self._done), tokens, steps, passes, prefill_s, self._seconds - prefill_s)
        return ThroughputRow(arm, batch, block, repeat, *figures, differing)
