"""How decoding steps run: which engines there are, and which of them a device can have.

* ``eager``: the stock model, as it is;
* ``packed``: the same, its linear layers multiplying by packed weights (CPU);
* ``native``: whole passes by kernels of our own, compiled at first use (CPU, LLaMA-like models);
* ``compiled``: passes compiled by torch.compile;
* ``graph``: whole steps as CUDA graphs.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from mtp_bench.errors import InputError
from mtp_bench.models import flex
from mtp_bench.models.attention import NAME
from mtp_bench.models.compiled import set_up_compiler
from mtp_bench.models.native.library import COMPUTES, compiler
from mtp_bench.models.packed import can_pack

Engine = Literal["eager", "packed", "native", "compiled", "graph"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


def pick_engine(wanted: str, device: torch.device, dtype: torch.dtype, attention: str = "auto") -> Engine:
    """``auto`` = graph on CUDA (with ``flex`` eager); on a CPU the first that it can of native, packed and eager.

    Whether a kind of model can be decoded natively is known when it is loaded (see ``models.load``).

    Raises:
        InputError: unknown, or not to be had here.
    """
    if attention == flex.NAME and device.type == "cuda":
        set_up_compiler(device)  # whatever the engine, its kernel is compiled
    if wanted == "auto":
        if device.type == "cuda":
            return "eager" if attention == flex.NAME else "graph"
        if device.type == "cpu" and dtype in COMPUTES and compiler() and attention in ("auto", NAME):
            return "native"
        return packed_or_eager(device, dtype)
    for engine in ENGINES:
        if engine == wanted:
            _require(engine, device, dtype)
            _require_together(engine, attention)
            return engine
    raise InputError(f"unknown engine {wanted!r}", where="--engine", fix=f"use auto, {', '.join(ENGINES)}")


def packed_or_eager(device: torch.device, dtype: torch.dtype) -> Engine:
    """What ``auto`` is on a CPU where steps cannot be native."""
    return "packed" if device.type == "cpu" and can_pack(dtype) else "eager"


def pick_split_engine(wanted: str) -> Engine:
    """``eager``, the only one for a model on several devices: graphs and compiled code are one device's.

    Raises:
        InputError: another is wanted.
    """
    if wanted not in ("auto", "eager"):
        raise InputError(
            f"a model split over devices runs eagerly, the {wanted} engine is for one device",
            where=f"--device-map with --engine {wanted}",
            fix="leave one of them out",
        )
    return "eager"


def _require(engine: Engine, device: torch.device, dtype: torch.dtype) -> None:
    if engine == "packed" and not (device.type == "cpu" and can_pack(dtype)):
        raise InputError(
            f"no packed products of {str(dtype).removeprefix('torch.')} on {device}",
            where="--engine packed",
            fix="use eager; packed needs a CPU, a torch built with oneDNN, and bf16 or fp32",
        )
    if engine == "native" and not (device.type == "cpu" and dtype in COMPUTES):
        raise InputError(
            f"no kernels for {str(dtype).removeprefix('torch.')} on {device}",
            where="--engine native",
            fix="use eager; native needs a CPU, and bf16 or fp32",
        )
    if engine == "graph" and device.type != "cuda":
        raise InputError(f"graphs are CUDA's, the device is {device}", where="--engine graph", fix="use another engine")
    if engine == "compiled":
        set_up_compiler(device)


def _require_together(engine: Engine, attention: str) -> None:
    if engine == "native" and attention not in ("auto", NAME):
        raise InputError(
            f"the native engine has an attention of its own, not {attention}",
            where=f"--engine native --attention {attention}",
            fix="leave --attention out, or use --engine packed",
        )
    if engine == "compiled" and attention == flex.NAME:
        raise InputError(
            "FlexAttention cannot be compiled into a pass whose sizes change (torch's CPU code for it fails)",
            where="--engine compiled --attention flex",
            fix="use --engine eager or packed with flex, or --attention grouped_sdpa with compiled",
        )
