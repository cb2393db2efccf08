"""A base model split by its layers over several devices, for ``--device-map``.

accelerate decides where modules go and moves what enters them there (Hugging Face's ``device_map``); every line that
depends on it is here. Only the base model is split: heads live where the LM head does.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from mtp_bench.errors import InputError
from mtp_bench.models.memory import available_bytes

T = TypeVar("T")
OPTION = "--device-map"
DISK = "disk"
# As in transformers: balanced (auto is the same) shares the weights out evenly, balanced_low_0 spares the first device,
# sequential fills one device after the other.
PLANS = ("auto", "balanced", "balanced_low_0", "sequential")
DeviceMap = dict[str, str]
"""Device of each module, by its name; ``disk`` and, beside other devices, ``cpu`` are for weights that are fetched when
their module runs."""


def read_device_map(text: str) -> str | DeviceMap:
    """The value of the option: one of ``PLANS``, or what a JSON file says.

    Raises:
        InputError: neither, no such device here, or accelerate is missing.
    """
    _accelerate()
    if text in PLANS:
        if not torch.cuda.is_available():
            raise InputError(
                "no CUDA device is usable here, over which a model could be split",
                where=f"{OPTION} {text}",
                fix='leave it out, or name devices in a JSON file, such as {"model": "cuda:0", "lm_head": "cuda:1"}',
            )
        return text
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"unknown device map {text!r}", where=OPTION, fix=f"use {', '.join(PLANS)}, or a JSON file of modules"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=text, fix='write {"module": device, ...}') from error
    if not isinstance(found, dict) or not found:
        raise InputError("not an object of modules", where=text, fix='write {"module": device, ...}')
    return {name: _device(value, f"{text}#/{name}") for name, value in found.items()}


def _device(value: object, where: str) -> str:
    """``1`` and ``cuda:1`` alike; ``cpu`` and ``disk`` as they are."""
    if value == DISK:
        return DISK
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        device = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"not a device: {value!r}", where=where, fix="use cuda:N, N, cpu or disk") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise InputError(f"no device {device}, only {count} CUDA devices", where=where, fix="name another device")
        return f"cuda:{device.index or 0}"
    return str(device)


def main_device(wanted: str | DeviceMap) -> torch.device:
    """A device that modules run on: not the CPU where any runs elsewhere."""
    if isinstance(wanted, str):
        return torch.device("cuda:0")
    named = [torch.device(one) for one in wanted.values() if one != DISK]
    return next((one for one in named if one.type != "cpu"), torch.device("cpu"))


def device_map_of(empty: PreTrainedModel, wanted: str | DeviceMap) -> DeviceMap:
    """Where each module goes, none of them named inside another: to accelerate that would mean both places.

    Args:
        empty: the model without weights, on the meta device, in the dtype wanted.

    Raises:
        InputError: the weights do not fit on the GPUs, or the map names no such module, leaves some out, takes a layer
            apart, or keeps elsewhere what heads read.
    """
    found = _planned(empty, wanted) if isinstance(wanted, str) else wanted
    _check_modules(empty, found)
    found = _spelled_out(empty, found)
    for name, module in (("LM head", empty.get_output_embeddings()), ("embedding", empty.get_input_embeddings())):
        if _offloaded(_named(empty, module), found):
            place = _placed(_named(empty, module), found)
            raise InputError(
                f"the {name} would be kept on {place} and fetched anew in every step",
                where=OPTION,
                fix="give it a device of its own: heads read it",
            )
    return found


def _planned(empty: PreTrainedModel, plan: str) -> DeviceMap:
    accelerate = _accelerate()
    free = {index: available_bytes(torch.device("cuda", index)) or 0 for index in range(torch.cuda.device_count())}
    whole = list(empty._no_split_modules or [])
    memory: Mapping[Any, int] = free
    if plan != "sequential":
        memory = accelerate.utils.get_balanced_memory(
            empty, max_memory=dict(free), no_split_module_classes=whole, low_zero=plan == "balanced_low_0"
        )
    # Without a CPU among them what does not fit is planned for the disk.
    memory = {device: size for device, size in memory.items() if isinstance(device, int)}
    planned = accelerate.infer_auto_device_map(empty, max_memory=memory, no_split_module_classes=whole)
    left_over = [name for name, device in planned.items() if not isinstance(device, int)]
    if left_over:
        size = sum(one.numel() * one.element_size() for one in empty.parameters()) / 2**30
        room = sum(free.values()) / 2**30
        raise InputError(
            f"{size:.2f} GiB of weights do not fit on {len(free)} devices with {room:.2f} GiB free: no room for "
            f"{left_over[0]}{' and others' if len(left_over) > 1 else ''}",
            where=f"{OPTION} {plan}",
            fix="use more or emptier devices or a smaller dtype; a JSON file may place modules on cpu or disk",
        )
    return {name: f"cuda:{device}" for name, device in planned.items()}


def _check_modules(empty: PreTrainedModel, found: DeviceMap) -> None:
    known = {name for name, _ in empty.named_modules()}
    unknown = sorted(set(found) - known)
    if unknown:
        raise InputError(
            f"the model has no module {unknown[0]}", where=OPTION, fix=f"its parts are {', '.join(_parts(empty))}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _accelerate().utils.modeling.check_device_map(empty, found)
    except ValueError as error:
        missing = str(error).rpartition("parameters: ")[2].split(", ")
        raise InputError(
            f"the map has no device for {len(missing)} tensors, {missing[0]} among them",
            where=OPTION,
            fix=f'name every part ({", ".join(_parts(empty))}), or "" for all that is not named',
        ) from error
    stack: Any = empty.get_decoder().layers
    for index, layer in enumerate(stack):
        inside = [name for name in found if name.startswith(f"{_named(empty, layer)}.")]
        if inside:
            raise InputError(
                f"{inside[0]} is a part of layer {index}", where=OPTION, fix="keep each layer whole, on one device"
            )


def _parts(empty: PreTrainedModel) -> list[str]:
    """Modules to name in a map: the children of the decoder and whatever is beside it."""
    decoder = empty.get_decoder()
    inner = [f"{_named(empty, decoder)}.{name}" for name, part in decoder.named_children() if _holds_tensors(part)]
    outer = [name for name, part in empty.named_children() if part is not decoder and _holds_tensors(part)]
    return [*inner, *outer]


def _holds_tensors(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _named(model: torch.nn.Module, wanted: torch.nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)


def _placed(name: str, found: Mapping[str, str]) -> str | None:
    """Device of a module, by its own name or the closest one above it."""
    while name and name not in found:
        name = name.rpartition(".")[0]
    return found.get(name)


def _spelled_out(empty: PreTrainedModel, found: DeviceMap) -> DeviceMap:
    """The same map, the modules that hold others of it replaced by their children.

    What has no weights and so need not be named, such as the tables of rotary positions, goes where the embedding is.
    """
    beginning = _placed(_named(empty, empty.get_input_embeddings()), found) or "cpu"

    def spell(name: str, module: torch.nn.Module) -> Iterator[tuple[str, str]]:
        inside = f"{name}." if name else ""
        if any(other != name and other.startswith(inside) for other in found):
            for child, part in module.named_children():
                yield from spell(f"{inside}{child}", part)
        else:
            yield name, _placed(name, found) or beginning

    return dict(spell("", empty))


def _offloaded(name: str, found: DeviceMap) -> bool:
    device = _placed(name, found)
    return device == DISK or (device == "cpu" and main_device(found).type != "cpu")


def layers_by_place(model: PreTrainedModel, device_map: Mapping[str, str]) -> dict[str, int]:
    """How many layers are kept in each place of a map, the disk among them."""
    stack: Any = model.get_decoder().layers
    return _counts([_placed(_named(model, layer), device_map) or "" for layer in stack])


def runs_on(module: torch.nn.Module) -> torch.device:
    """Where a module computes, wherever its weights are kept."""
    hook = getattr(module, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    if device is None:
        return next(module.parameters()).device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def layers_by_device(devices: Sequence[torch.device]) -> dict[torch.device, int]:
    """How many layers run on each device, in order of their first one."""
    return _counts(devices)


def _counts(values: Sequence[T]) -> dict[T, int]:
    return {value: values.count(value) for value in dict.fromkeys(values)}


def _accelerate() -> Any:
    try:
        import_module("accelerate.utils.modeling")
        return import_module("accelerate")
    except ImportError as error:
        raise InputError(
            "splitting a model needs the package accelerate",
            where=OPTION,
            fix='pip install "accelerate>=1.0,<2", or leave the option out',
        ) from error
