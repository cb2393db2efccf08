"""Steps as CUDA graphs: one graph for each bucket of cache slots holds all of a step, its draft included.

Only the result leaves the device, one small copy per step. What the host knows (the longest sequence) picks the bucket
and goes into the graph rounded up to it. The first replay of every graph is held against an eager run of the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any, TypeVar

import torch

from mtp_bench.decode.cache import LENGTH_BUCKET, TreeCache
from mtp_bench.decode.draft import Settled
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import CheckFailed
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.models.graph import CudaRecording, Recorder, Recording

T = TypeVar("T")
BUCKETS_PER_DOUBLING = 4


def graph_bounds(length: int) -> list[int]:
    """Upper bounds of the buckets for sequences of up to ``length`` slots, ascending: every 64 slots at first, later
    four for each doubling, so that padding costs a quarter at most and long contexts need few graphs."""
    bounds, bound = [], 0
    while bound < length:
        width = max(LENGTH_BUCKET, 1 << max(0, bound.bit_length() - BUCKETS_PER_DOUBLING.bit_length()))
        bound = min(bound + width, length)
        bounds.append(bound)
    return bounds


class GraphStepper(TreeStepper):
    """A stepper whose steps are recorded when they are first needed and replayed from then on."""

    recorder: Recorder = CudaRecording

    def __init__(self, base: BaseModel, heads: AnyHeads | None, tree: TreeTensors, cache: TreeCache) -> None:
        super().__init__(base, heads, tree, cache)
        self._recordings: dict[Hashable, Recording[Any]] = {}

    def set_rows(self, tree: TreeTensors, tokens: torch.Tensor) -> None:
        """See ``TreeStepper``; what was recorded for another topology is forgotten."""
        super().set_rows(tree, tokens)
        self._recordings = {}

    @torch.inference_mode()
    def step(self, longest: int) -> torch.Tensor:
        """See ``TreeStepper``."""
        bound = self._bound(longest)
        if ("step", bound) not in self._recordings:
            # Largest first: the smaller graphs then find room in the memory of the larger.
            for other in reversed(graph_bounds(self._longest_start)):
                if other > bound and ("step", other) not in self._recordings:
                    self._record_step(other)
                    self._restore()
        return self._record_step(bound).cpu()

    @torch.inference_mode()
    def advance(self, longest: int) -> tuple[torch.Tensor, Settled]:
        """See ``TreeStepper``."""
        bound = self._bound(longest)
        result, settled = self._recorded(("advance", bound), lambda: self.advance_on_device(bound), lambda out: out[0])
        return result.cpu(), settled

    @torch.inference_mode()
    def draft_again(self, settled: Settled) -> None:
        """See ``TreeStepper``."""
        self._recorded(("draft", id(settled)), lambda: TreeStepper.draft_again(self, settled), lambda _: self.tokens)

    def masks_every_row(self) -> bool:
        """A graph cannot attend to one slot more in every step, so it always masks."""
        return True

    def _record_step(self, bound: int) -> torch.Tensor:
        return self._recorded(("step", bound), lambda: self.step_on_device(bound), lambda out: out)

    @property
    def _longest_start(self) -> int:
        """Largest root position that leaves room for the rows."""
        return self.cache.length - self.tree.rows

    def _bound(self, longest: int) -> int:
        return next(bound for bound in graph_bounds(self._longest_start) if bound >= longest)

    def _recorded(self, key: Hashable, function: Callable[[], T], result_of: Callable[[T], torch.Tensor]) -> T:
        """Run ``function`` from its recording; record it first if need be, which leaves the state as one run does."""
        if key not in self._recordings:
            self._save()
            expected = result_of(function()).clone()
            self._restore()
            self._recordings[key] = self.recorder(function, self.base.device)
            outputs: T = self._recordings[key].replay()
            if not torch.equal(result_of(outputs), expected):
                raise CheckFailed(
                    "a recorded step does not give what the same step gives eagerly",
                    where=f"--engine graph, {key}",
                    fix="use --engine eager, and report this",
                )
            return outputs
        replayed: T = self._recordings[key].replay()
        return replayed

    def _state(self) -> list[torch.Tensor]:
        """What a step changes and a later one reads; rows of the caches beyond the lengths do not matter."""
        shapes = [getattr(self.tree, field.name) for field in fields(self.tree)]
        return [self.lengths, self.tokens, *(one for one in shapes if isinstance(one, torch.Tensor))]

    def _save(self) -> None:
        self._saved = [one.clone() for one in self._state()]

    def _restore(self) -> None:
        for one, saved in zip(self._state(), self._saved, strict=True):
            one.copy_(saved)


def stepper_type(base: BaseModel) -> type[TreeStepper]:
    """What runs the steps of the base model's engine."""
    return GraphStepper if base.engine == "graph" else TreeStepper
