"""The kernels as a shared library: compiled for this processor at first use, then kept.

The structures mirror those of ``kernels/structures.hpp``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_bytes
from mtp_bench.models.reference import cache_folder
from mtp_bench.progress import say

SOURCES = Path(__file__).with_name("kernels")
COMPILERS = ("g++", "clang++")
# No -ffast-math: sums must stay in the order in which they are written.
FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
COMPUTES = tuple(SUFFIXES)
COMPILING_SECONDS = 300
LAST_LINES = 6


class Matrix(ctypes.Structure):
    """A packed weight (see ``weights.pack``)."""

    _fields_ = [("panels", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("outputs", c_int64)]


class Layer(ctypes.Structure):
    """One decoder layer."""

    _fields_ = [
        *((name, Matrix) for name in ("heads", "output", "gated", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        ("mask", c_int64),
    ]


class Model(ctypes.Structure):
    """What does not change from step to step."""

    _fields_ = [
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, c_float) for name in ("epsilon", "head_epsilon", "scaling")),
        ("embedding", c_void_p),
        ("layer", POINTER(Layer)),
        ("norm", c_void_p),
        ("lm_head", Matrix),
    ]


class Mask(ctypes.Structure):
    """A mask bool [B or 1, 1, R, S], True = visible; strides in elements."""

    _fields_ = [("data", c_void_p), ("per_sequence", c_int64), ("per_row", c_int64)]


class Tree(ctypes.Structure):
    """The trees of a batch, see ``decode.tree``."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "levels", "per_sequence")),
        *((name, c_void_p) for name in ("parents", "depths", "real", "path_rows")),
    ]


class Accepted(ctypes.Structure):
    """What acceptance writes."""

    _fields_ = [(name, c_void_p) for name in ("accepted", "row", "path", "emitted", "taken")]


class Moved(ctypes.Structure):
    """Slots of a cache that are copied to others; strides in bytes."""

    _fields_ = [
        ("cache", c_void_p),
        *((name, c_int64) for name in ("per_layer", "per_kind", "per_sequence", "per_head", "per_slot")),
        *((name, c_int64) for name in ("layers", "batch", "heads", "width", "count")),
        *((name, c_void_p) for name in ("source", "target", "scratch")),
    ]


class Pass(ctypes.Structure):
    """One step's rows, where they are written, and scratch."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "rows", "visible", "threads")),
        *((name, c_void_p) for name in ("tokens", "slots", "cosine", "sine", "turns", "cache")),
        *((name, c_int64) for name in ("per_layer", "per_kind", "per_sequence", "per_head", "per_slot")),
        ("masks", Mask * 2),
        ("taps", c_void_p),
        ("taps_count", c_int64),
        *(
            (name, c_void_p)
            for name in ("features", "given", "x", "normed", "heads", "attended", "inner", "scores", "best")
        ),
        *((name, c_void_p) for name in ("hidden", "best_choice", "choices")),
    ]


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "step": (POINTER(Model), POINTER(Pass)),
    "layer": (POINTER(Model), POINTER(Pass)),
    "norm": (c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p),
    "product": (POINTER(Matrix), c_void_p, c_int64, c_int, c_void_p, c_int64),
    "rank": (POINTER(Matrix), c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64),
}


def compiler() -> str | None:
    """The C++ compiler that would be used: ``CXX``, else the first one found; None where there is none."""
    wanted = os.environ.get("CXX", "")
    return next((path for name in (wanted, *COMPILERS) if name and (path := shutil.which(name))), None)


def facts() -> dict[str, Any]:
    """What the kernels were made with, for the records of runs."""
    program = compiler()
    assert program is not None
    return {
        "library": library()._name.rpartition("/")[2],
        "compiler": _run([program, "--version"]).splitlines()[0],
        "lanes": int(library().mtp_lanes()),
        "bf16_products": bool(library().mtp_bf16_products()),
    }


@cache
def library() -> ctypes.CDLL:
    """The compiled kernels, made at the first call on this machine (seconds).

    Raises:
        InputError: no compiler, or it failed.
    """
    path = _compiled()
    loaded = ctypes.CDLL(str(path))
    for name, arguments in FUNCTIONS.items():
        for suffix in SUFFIXES.values():
            function = getattr(loaded, f"mtp_{name}_{suffix}")
            function.argtypes, function.restype = arguments, None
    loaded.mtp_accept.argtypes = (POINTER(Tree), c_int64, c_void_p, c_void_p, POINTER(Accepted))
    loaded.mtp_move.argtypes = (POINTER(Moved),)
    loaded.mtp_accept.restype = loaded.mtp_move.restype = None
    return loaded


def kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """One of ``FUNCTIONS``, for this dtype."""
    function: Callable[..., None] = getattr(library(), f"mtp_{name}_{SUFFIXES[dtype]}")
    return function


def _compiled() -> Path:
    program = compiler()
    if program is None:
        raise InputError(
            "the native engine needs a C++ compiler, and none was found",
            where="--engine native",
            fix="install g++ (or name one in CXX), or use --engine packed",
        )
    built = cache_folder() / "native" / f"{_key(program)}.so"
    if not built.exists():
        say("compiling the native engine's kernels, once for this processor ...")
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch, "kernels.so")
            _run([program, *FLAGS, "-o", str(made), str(SOURCES / "library.cpp")])
            os.replace(made, built)  # whole or not at all, whoever else compiles meanwhile
    return built


def _key(program: str) -> str:
    """The same source, flags, compiler and processor give the same library."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.is_file())
    macros = _run([program, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])  # name what -march=native means here
    return sha256_bytes(sources + " ".join(FLAGS).encode() + macros.encode())[:16]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILING_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(command[0], str(error)) from error
    if done.returncode != 0:
        raise _failed(command[0], done.stderr or f"exit code {done.returncode}, and not a word why")
    return done.stdout


def _failed(program: str, said: str) -> InputError:
    last = "\n".join(f"  | {line}" for line in said.strip().splitlines()[-LAST_LINES:])
    return InputError(
        f"the kernels cannot be compiled:\n{last}",
        where=f"--engine native ({program})",
        fix="name another compiler in CXX, or use --engine packed",
    )
