"""Linear layers with weights packed for a CPU's matrix units, for ``--engine packed``.

A plain product of a few rows reads its weight as it lies in memory; oneDNN multiplies faster from a layout of its own
(``tests/benchmarks/test_packed_speed.py`` prints by how much), which costs the weights' size once more. The model stays
as it is: packed layers live in a copy of its modules that shares every parameter, so the stock model is still there for
prefill and as the reference.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, TypeVar, cast

import torch
from torch import nn

# In fp32 only large matrices gain (measured on 1 to 64 rows); in bf16 all do.
LARGE = 1 << 22
HINTED_ROWS = 16  # what the layout is made for; one to 64 rows gained alike

Module = TypeVar("Module", bound=nn.Module)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch multiplies by packed weights of ``dtype``."""
    operations, backend = torch.ops.mkldnn, cast(Any, torch.backends.mkldnn)
    if not backend.is_available() or not hasattr(operations, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(operations._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedProduct:
    """Products with one weight [O, I], packed."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), HINTED_ROWS)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[..., I] -> [..., O]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
        return product


class PackedLinear(nn.Linear):
    """A linear layer that multiplies by its packed weight."""

    product: PackedProduct

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See ``nn.Linear``."""
        return self.product(input, self.bias)


def worth_packing(weight: torch.Tensor) -> bool:
    """Whether products with ``weight`` gain from it."""
    return weight.dtype == torch.bfloat16 or weight.numel() >= LARGE


def packed_copy(module: Module) -> Module:
    """A copy of ``module`` that shares its parameters and buffers; plain linear layers are packed, hooks left out."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.deepcopy(module, dict(shared))
    for part in twin.modules():
        part._forward_pre_hooks = OrderedDict()
        if type(part) is nn.Linear and worth_packing(part.weight):
            part.__class__ = PackedLinear
            cast(PackedLinear, part).product = PackedProduct(part.weight)
    return twin
