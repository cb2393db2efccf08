"""Linear layers with weights packed for a CPU's matrix units, for ``--engine packed``.

A plain product of a few rows reads its weight as it lies in memory; oneDNN multiplies faster from a layout of its own
(``tests/benchmarks/test_packed_speed.py`` prints by how much), which costs the weights' size once more. The model stays
as it is: packed layers live in a copy of its modules that shares every parameter (made by ``models.fused``, for drafts
by ``decode.drafters``), so the stock model is still there for prefill and as the reference.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

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
    """Products with one weight [O, I], packed, and a bias [O] or none; what follows a product is done in its loop."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), HINTED_ROWS)
        self._bias = None if bias is None else bias.detach()

    def __call__(self, x: torch.Tensor, then: Literal["none", "swish"] = "none") -> torch.Tensor:
        """[..., I] -> [..., O], through SiLU ("swish") where asked for."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, then, [], "")
        return product

    def combined(self, x: torch.Tensor, other: torch.Tensor, how: Literal["add", "mul"]) -> torch.Tensor:
        """[..., I] and [..., O] -> [..., O]: the product plus or times the other."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, how)
        return result


class PackedLinear(nn.Linear):
    """A linear layer that multiplies by its packed weight."""

    product: PackedProduct

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See ``nn.Linear``."""
        return self.product(input)


def shared_copy(module: Module) -> Module:
    """A copy of ``module`` that shares its parameters and buffers, hooks left out."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.deepcopy(module, dict(shared))
    for part in twin.modules():
        part._forward_pre_hooks = OrderedDict()
    return twin


def pack_linears(module: nn.Module) -> None:
    """Pack the plain linear layers of ``module``, in place."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = PackedLinear
            cast(PackedLinear, part).product = PackedProduct(part.weight, part.bias)
