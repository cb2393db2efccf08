"""Decoding requests to their end: one loop for any batch and any topology, the baseline included.

A queue of requests is served by ``batch`` slots; a finished request's slot is refilled at once, so that the batch
stays full while the queue lasts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.graph import stepper_type
from mtp_bench.decode.memory import check_memory
from mtp_bench.decode.prefill import PREFILL_CHUNK
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import InputError
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree, Topology


@dataclass(frozen=True)
class Request:
    """One prompt to decode.

    Attributes:
        key: the caller's name for it.
        prompt: token ids.
        max_new_tokens: tokens to emit at most; the first comes from prefill.
        ignore_eos: go on after an end token, so that exactly ``max_new_tokens`` are emitted.
        topology: decoded with this tree, one of those that the decoder mixes; None = the decoder's own.
    """

    key: str
    prompt: list[int]
    max_new_tokens: int
    ignore_eos: bool = False
    topology: StaticTree | None = None


@dataclass
class Generation:
    """What decoding a request gave.

    Attributes:
        tokens: emitted token ids, the first from prefill, nothing after an end token.
        accepted: drafted tokens accepted in each step, before truncation at the end.
        prefill_s, decode_s: seconds until the first token, and from it to the last.
        first_tokens: tokens that were there when ``decode_s`` began; more than one only where another engine's first
            pass emits several.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    stopped_by: str = ""
    first_tokens: int = 1

    @property
    def steps(self) -> int:
        """Verification passes."""
        return len(self.accepted)

    @property
    def tokens_in_steps(self) -> int:
        """Tokens that steps emitted: all but the first ones."""
        return len(self.tokens) - self.first_tokens


StopRule = Callable[[list[int]], bool]


class Decoder:
    """Serves requests with one base model, one set of heads and one topology, or several static trees in one batch.

    Attributes:
        passes: steps of the whole batch so far.
        prefill_s: seconds spent in prefill so far, the rest of ``run`` being decoding.
    """

    def __init__(
        self,
        base: BaseModel,
        heads: AnyHeads | None,
        tree: Topology,
        *,
        others: Sequence[StaticTree] = (),
        batch: int = 1,
        max_length: int,
        rows: int | None = None,
        cache: TreeCache | None = None,
        stepper: type[TreeStepper] | None = None,
    ) -> None:
        """Args:
        others: trees that requests may name instead of ``tree``.
        max_length: longest prompt plus output in tokens.
        rows: pad the tree to this many rows.
        cache: reuse this one (its length must fit ``max_length`` plus the rows).
        stepper: what runs the steps, to look into them; the engine's own when left out.

        Raises:
            InputError: the heads cannot draft these trees, a dynamic tree is to be mixed with others, the cache is
                too small, or the memory.
        """
        self.tree, self._served = tree, {tree, *others}
        tensors = _tensors(tree, others, base.device, rows, batch)
        slots = max_length + tensors.rows
        self.base, self.max_length = base, max_length
        check_memory(base, batch=batch, length=slots, rows=tensors.rows, cached=cache is not None)
        # Not `cache or ...`: a cache without layers of transformers' own is falsy.
        self.cache = cache if cache is not None else TreeCache.allocate(base, batch=batch, length=slots)
        if self.cache.length < slots or self.cache.batch != batch:
            given, needed = f"{self.cache.batch} x {self.cache.length}", f"{batch} x {slots}"
            raise InputError(f"the given cache holds {given} slots, {needed} are needed")
        self.stepper = (stepper or stepper_type(base))(base, heads, tensors, self.cache)
        self._slots: list[_Slot | None] = [None] * batch
        self.passes, self.prefill_s = 0, 0.0

    def run(self, requests: Iterable[Request], *, stop: StopRule | None = None) -> Iterator[Generation]:
        """Yield each request's generation when it ends, in order of ending.

        Args:
            stop: called after each step with the tokens so far; True ends the request.

        Raises:
            InputError: a request does not fit ``max_length``.
        """
        queue = iter(requests)
        while True:
            yield from self._refill(queue, stop)
            busy = [slot for slot in self._slots if slot is not None]
            if not busy:
                return
            results = self.stepper.step(max(slot.length for slot in busy)).tolist()
            self.passes += 1
            now = time.perf_counter()
            for index, slot in enumerate(self._slots):
                if slot is not None and slot.advance(results[index], now, self.base.eos_ids, stop):
                    self._slots[index] = None
                    self.stepper.release(index)
                    yield slot.generation

    def _refill(self, queue: Iterator[Request], stop: StopRule | None) -> Iterator[Generation]:
        """Give every free slot a request while the queue lasts; yield those that end with their first token."""
        while free := [index for index, slot in enumerate(self._slots) if slot is None]:
            admitted = list(itertools.islice(queue, len(free)))
            if not admitted:
                return
            for chunk in _prefill_batches(list(zip(free, admitted, strict=False))):
                for index, slot in self._admit(chunk, stop):
                    if slot.generation.stopped_by:
                        self.stepper.release(index)
                        yield slot.generation
                    else:
                        self._slots[index] = slot

    def _admit(self, chunk: list[tuple[int, Request]], stop: StopRule | None) -> list[tuple[int, _Slot]]:
        for _, request in chunk:
            self._check(request)
        start = time.perf_counter()
        if self.stepper.tree.nodes is not None:
            for index, request in chunk:
                self.stepper.tree.assign(index, request.topology or self.tree)  # type: ignore[arg-type]
        firsts = self.stepper.prefill([index for index, _ in chunk], [request.prompt for _, request in chunk])
        now = time.perf_counter()
        self.prefill_s += now - start
        slots = []
        for (index, request), first in zip(chunk, firsts, strict=True):
            slot = _Slot(Generation(request, prefill_s=now - start), len(request.prompt), now)
            slot.emit([first], self.base.eos_ids, stop)
            slots.append((index, slot))
        return slots

    def _check(self, request: Request) -> None:
        if request.topology is not None and request.topology not in self._served:
            raise InputError(
                f"a tree of {request.topology.num_nodes} nodes that this decoder was not made for",
                where=f"prompt {request.key}",
                fix="name it in others when the decoder is made",
            )
        needed = len(request.prompt) + request.max_new_tokens
        if needed > self.max_length or needed > self.base.max_positions:
            limit = min(self.max_length, self.base.max_positions)
            raise InputError(
                f"prompt and output need {needed} positions, the limit is {limit}",
                where=f"prompt {request.key}",
                fix="lower --max-new-tokens or leave the prompt out",
            )


def _tensors(
    tree: Topology, others: Sequence[StaticTree], device: torch.device, rows: int | None, batch: int
) -> TreeTensors:
    if not others:
        return TreeTensors.build(tree, device, rows=rows, batch=batch)
    if not isinstance(tree, StaticTree):
        raise InputError(f"{tree} is dynamic and cannot share a batch with other trees", fix="decode them apart")
    return TreeTensors.mixed([tree, *others], device, rows=rows, batch=batch)


def _prefill_batches(pairs: list[tuple[int, Request]]) -> Iterator[list[tuple[int, Request]]]:
    """Group admissions of similar length, so that one padded pass serves several; long prompts go alone."""
    pairs = sorted(pairs, key=lambda pair: len(pair[1].prompt))
    chunk: list[tuple[int, Request]] = []
    for pair in pairs:
        if chunk and (len(chunk) + 1) * len(pair[1].prompt) > PREFILL_CHUNK:
            yield chunk
            chunk = []
        chunk.append(pair)
    if chunk:
        yield chunk


@dataclass
class _Slot:
    """Host side of one sequence in flight."""

    generation: Generation
    length: int
    started: float

    def advance(self, result: list[int], now: float, eos_ids: frozenset[int], stop: StopRule | None) -> bool:
        """Take a step's outcome ``[accepted, emitted...]``; True when the request has ended."""
        accepted = result[0]
        self.length += accepted + 1
        self.generation.accepted.append(accepted)
        self.emit(result[1 : accepted + 2], eos_ids, stop)
        self.generation.decode_s = now - self.started
        return bool(self.generation.stopped_by)

    def emit(self, tokens: list[int], eos_ids: frozenset[int], stop: StopRule | None) -> None:
        generation, request = self.generation, self.generation.request
        for token in tokens:
            generation.tokens.append(token)
            if token in eos_ids and not request.ignore_eos:
                generation.stopped_by = "eos"
            elif len(generation.tokens) >= request.max_new_tokens:
                generation.stopped_by = "length"
            elif stop is not None and stop(generation.tokens):
                generation.stopped_by = "rule"
            if generation.stopped_by:
                return
