"""Parts that drafts are made of, computed by the kernels; what they are made from stays as it is."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import nn

from mtp_bench.models.native.library import Matrix, kernel
from mtp_bench.models.native.model import layer_of, model_of
from mtp_bench.models.native.passes import SlottedCache, native_pass
from mtp_bench.models.native.weights import Weights


class NativeProduct(nn.Module):
    """The product of one input with the weights of linear layers, their results side by side."""

    def __init__(self, *parts: nn.Linear) -> None:
        super().__init__()
        self._kept = Weights()
        self._matrix = self._kept.matrix(*parts)
        self._dtype = parts[0].weight.dtype
        self._product, self._rank = kernel("product", self._dtype), kernel("rank", self._dtype)

    def forward(
        self, x: torch.Tensor, outputs: int | None = None, then: Literal["none", "silu"] = "none"
    ) -> torch.Tensor:
        """[..., I] -> [..., O], or the first ``outputs`` of them, through SiLU where asked for."""
        matrix, x = self._first(outputs), x.contiguous()
        to = x.new_empty(*x.shape[:-1], matrix.outputs)
        rows = to.numel() // matrix.outputs
        self._product(matrix, x.data_ptr(), rows, then == "silu", to.data_ptr(), torch.get_num_threads())
        return to

    def best(self, x: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs as logits: [..., I] -> ids int64 and log-probabilities float32 [..., top_k] of the largest, in
        the order of ``heads.ranking``."""
        x, outputs = x.contiguous(), self._matrix.outputs
        ids = torch.empty(*x.shape[:-1], top_k, dtype=torch.int64)
        shares = torch.empty(*x.shape[:-1], top_k)
        rows = ids.numel() // top_k
        logits = torch.empty(rows, outputs)
        pointers = (logits.data_ptr(), ids.data_ptr(), shares.data_ptr())
        self._rank(self._matrix, x.data_ptr(), rows, top_k, *pointers, torch.get_num_threads())
        return ids, shares

    def _first(self, outputs: int | None) -> Matrix:
        own = self._matrix
        return own if outputs is None else Matrix(own.panels, own.bias, own.inputs, outputs)


class NativeLinear(nn.Linear):
    """A linear layer whose products the kernels compute."""

    product: NativeProduct

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See ``nn.Linear``."""
        output: torch.Tensor = self.product(input)
        return output


def native_linear(layer: nn.Linear) -> NativeLinear:
    """A copy of ``layer`` that shares its parameters."""
    twin = copy.copy(layer)
    twin.__class__ = NativeLinear
    assert isinstance(twin, NativeLinear)
    twin.__dict__["product"] = NativeProduct(layer)
    return twin


class NativeNorm(nn.Module):
    """RMS normalisation over the last dimension."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self._gain, self._epsilon = weight.detach().contiguous(), epsilon
        self._norm = kernel("norm", weight.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        x = x.contiguous()
        to, width = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        self._norm(x.data_ptr(), self._gain.data_ptr(), rows, width, self._epsilon, to.data_ptr())
        return to


class NativeLayer(nn.Module):
    """A decoder layer that is told what its attention reads; ``layer`` has LLaMA's parts."""

    def __init__(self, layer: Any, hidden: int, epsilon: float) -> None:
        super().__init__()
        self._kept = Weights()
        self._model = model_of(layer, hidden, epsilon, [layer_of(layer, self._kept, normed=False)])
        self._layer = kernel("layer", layer.mlp.down_proj.weight.dtype)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: SlottedCache,
    ) -> torch.Tensor:
        """x [B, R, width] and what it is added to [B, R, H] -> [B, R, H].

        Args:
            rotary: cosines and sines [B, R, d] of the rows.
            mask, cache: as ``native_pass`` takes them.
        """
        factors = rotary[0].flatten(0, 1), rotary[1].flatten(0, 1)
        turns = torch.arange(len(factors[0]))
        x, output = x.contiguous(), residual.clone(memory_format=torch.contiguous_format)
        with native_pass(self._model, factors, turns, mask, cache, x.new_empty) as step:
            step.given, step.x = x.data_ptr(), output.data_ptr()
            self._layer(self._model, step)
        return output
