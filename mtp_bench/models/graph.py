"""CUDA graphs: a function's kernels recorded once and launched together ever after, for ``--engine graph``.

A graph reads and writes the memory that it was recorded with, so its inputs live in tensors that are changed in place,
its outputs are the same tensors each time, and whatever it needs from the host is fixed when it is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from mtp_bench.models.compiled import Compiled

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Recording(Protocol[T_co]):
    """A function that was recorded."""

    def replay(self) -> T_co:
        """Run it; the outputs are always the same tensors."""
        ...


Recorder = Callable[[Callable[[], Any], torch.device], Recording[Any]]


class CudaRecording(Generic[T]):
    """A function captured as a CUDA graph. All graphs share one pool of memory: they never run at the same time.

    Attributes:
        seconds: spent capturing, of all graphs.
    """

    seconds: ClassVar[float] = 0.0
    _pool: ClassVar[Any] = None

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        """The function must have run before: libraries set themselves up in a first call, which cannot be captured."""
        start = time.perf_counter()
        if CudaRecording._pool is None:
            CudaRecording._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(self._graph, pool=CudaRecording._pool):
            self._outputs = function()
        CudaRecording.seconds += time.perf_counter() - start

    def replay(self) -> T:
        """Launch the graph on the current stream."""
        self._graph.replay()
        return self._outputs


def compile_seconds() -> float:
    """Seconds that compiling and capturing have taken in this process."""
    return round(Compiled.seconds + CudaRecording.seconds, 1)
