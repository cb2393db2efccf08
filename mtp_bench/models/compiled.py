"""Compiling passes with torch.compile, for ``--engine compiled``.

On a CPU the weights are frozen into the compiled code (inductor's ``freezing``), packed as the matrix units like them;
that takes their size in memory once more. Sizes that change from step to step (rows, slots) stay symbolic, so that each
function is compiled for one row, for several, and hardly ever again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import torch
from torch._dynamo.utils import counters  # transformers loads dynamo anyway

from mtp_bench.errors import InputError

# Rows, batch sizes and kinds of drafts that one session may compile a function for.
COMPILED_VARIANTS = 64


class Compiled:
    """A function that is compiled at its first call, and again only where its inputs call for it.

    Attributes:
        seconds: spent in calls that compiled something, of all such functions.
    """

    seconds: ClassVar[float] = 0.0

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Callable[..., Any] = torch.compile(function, dynamic=True)

    def __call__(self, *args: Any) -> Any:
        graphs, start = counters["stats"]["unique_graphs"], time.perf_counter()
        result = self._function(*args)
        if counters["stats"]["unique_graphs"] != graphs:
            Compiled.seconds += time.perf_counter() - start
        return result


def compiled(owner: Any, method: str, *constants: Hashable) -> Compiled:
    """``owner``'s method, its last arguments fixed to ``constants``; the same one whenever it is asked for again."""
    known: dict[Hashable, Compiled] = owner.__dict__.setdefault("_compiled", {})
    key = (method, *constants)
    if key not in known:
        function = getattr(owner, method)

        def call(*args: Any) -> Any:
            return function(*args, *constants)

        known[key] = Compiled(call if constants else function)
    return known[key]


def set_up_compiler(device: torch.device) -> None:
    """Settings of torch.compile that this project needs; they are the process's.

    Raises:
        InputError: there is nothing to compile with.
    """
    compilers = [os.environ.get("CXX", ""), "g++", "clang++"]
    if device.type == "cpu" and not any(shutil.which(name) for name in compilers if name):
        raise InputError(
            "the compiled engine needs a C++ compiler, and none was found",
            where="--engine compiled",
            fix="install g++, or use another engine",
        )
    import torch._dynamo.config
    import torch._inductor.config
    import torch.fx.experimental._config as symbolic

    torch._dynamo.config.recompile_limit = COMPILED_VARIANTS
    # Else sizes that happen to be equal at first (cache and visible slots) would have to stay equal.
    symbolic.use_duck_shape = False
    # Given to torch.compile as an option it has no effect (torch 2.13).
    torch._inductor.config.freezing = device.type == "cpu"
