"""Base models split over devices that this machine does not have: tensors without data that know where they are.

``lazy`` is a kind of device that every build of torch can name and none of ours has; FakeTensorMode computes shapes and
devices of what is done on it. What this shows: nothing meets a tensor of another device. What it cannot: values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import dispatch_model
from tiny_models import tiny_base
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mtp_bench.models import attention
from mtp_bench.models.base import BaseModel

FIRST, SECOND = "lazy:0", "lazy:1"
LAYERS = ("model.layers.0", "model.layers.1", "model.layers.2")


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices; FakeTensorMode alone lets indices come from anywhere."""

    COPIES = ("_to_copy", "copy_", "_copy_from")
    # Lists in brackets become index tensors of the host, which CUDA takes.
    INDEXING = ("index", "index_put_", "index_put", "_unsafe_index")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        devices = {str(one.device) for one in tensors if one.dim() or one.device.type != "cpu"}
        if name in self.INDEXING:
            devices -= {"cpu"}
        if name not in self.COPIES and len(devices) > 1:
            raise AssertionError(f"{name} over {', '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


@contextmanager
def pretended_devices() -> Iterator[None]:
    """Devices that are not there, and that keep apart what is on them."""
    with FakeTensorMode(), OneDevice(), torch.no_grad():
        yield


def place(module: nn.Module, device: str) -> nn.Module:
    """Put all tensors of a module on a pretended device."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    tensors[name] = nn.Parameter(new, requires_grad=False) if tensors is part._parameters else new
    return module


def split_map(
    first_layers: int = 1, *, embedding: str = FIRST, norm: str = SECOND, head: str = FIRST
) -> dict[str, str]:
    """A map of a tiny model: so many layers on the first device, the others on the second."""
    layers = {name: FIRST if index < first_layers else SECOND for index, name in enumerate(LAYERS)}
    ends = {"model.embed_tokens": embedding, "model.rotary_emb": embedding, "model.norm": norm, "lm_head": head}
    return {**ends, **layers}


def split_base(device_map: dict[str, str], architecture: str = "llama", kernel: str = attention.NAME) -> BaseModel:
    """A tiny model over pretended devices, with accelerate's real hooks; made inside ``pretended_devices``."""
    base = tiny_base(architecture, kernel)
    for name, device in device_map.items():
        place(base.model.get_submodule(name), device)
    dispatch_model(base.model, device_map, skip_keys=base.model._skip_keys_device_placement)
    return BaseModel(architecture, "dummy", base.model, None, "", "eager", device_map)
