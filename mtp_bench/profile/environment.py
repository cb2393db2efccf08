"""Fingerprint of the machine and software that numbers were measured on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import torch

from mtp_bench import __version__
from mtp_bench.models.base import BaseModel
from mtp_bench.models.native import library
from mtp_bench.models.pages import huge_page_bytes
from mtp_bench.models.split import DISK, layers_by_place

PACKAGES = ("torch", "transformers", "numpy", "safetensors")


def environment(base: BaseModel) -> dict[str, Any]:
    """Device, cores, threads, load and versions; of a split model all its devices."""
    facts = device_environment(base.device)
    if base.device_map is not None:
        layers = layers_by_place(base.model, base.device_map)
        facts |= {"device": machine_name(base), "layers": layers, "accelerate": metadata.version("accelerate")}
    return facts


def device_environment(device: torch.device) -> dict[str, Any]:
    """``environment`` as far as it is known without a model."""
    facts: dict[str, Any] = {
        "device": device_name(device),
        "device_type": device.type,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "huge_pages": huge_page_bytes() is not None,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "mtp_bench": __version__,
        **{name: metadata.version(name) for name in PACKAGES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "cuda": torch.version.cuda,
            "device_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
    return facts


def machine_key(base: BaseModel) -> list[Any]:
    """What must be the same for timings of two runs to be of one kind."""
    split = [] if base.device_map is None else [dict(base.device_map)]
    kernels = [library.facts()["library"]] if base.engine == "native" else []
    return [machine_name(base), torch.get_num_threads(), torch.__version__, *split, *kernels]


def machine_name(base: BaseModel) -> str:
    """Name of the device that a model runs on; of a split one the names of all, with their layers: what costs
    otherwise is another machine."""
    if base.device_map is None:
        return device_name(base.device)
    parts = [
        f"{place if place == DISK else device_name(torch.device(place))} ({layers} of {base.num_layers} layers)"
        for place, layers in layers_by_place(base.model, base.device_map).items()
    ]
    return f"split: {' + '.join(parts)}"


def device_name(device: torch.device) -> str:
    """Marketing name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            names = [line.split(":", 1)[1].strip() for line in stream if line.startswith("model name")]
        return names[0] if names else platform.processor() or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def model_facts(base: BaseModel) -> dict[str, Any]:
    """What base model was measured, and what ``auto`` picked."""
    facts: dict[str, Any] = {
        "name": base.name,
        "source": base.source if base.source == "dummy" or "/" not in base.source else os.path.basename(base.source),
        "sha256": base.sha256,
        "dtype": str(base.dtype).removeprefix("torch."),
        "device": str(base.device),
        "attention": base.attention,
        "engine": base.engine,
        "parameters": base.num_parameters,
        "weight_bytes": base.weight_bytes,
        "layers": base.num_layers,
        "kv_bytes_per_token": base.kv_bytes_per_token,
    }
    if base.engine == "native":
        facts["kernels"] = library.facts()
    if base.device_map is not None:
        facts |= {
            "device": "+".join(str(one) for one in dict.fromkeys((*base.layer_devices, base.device))),
            "device_map": dict(base.device_map),
        }
    return facts


def timestamp() -> str:
    """Now, in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
