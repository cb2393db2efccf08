"""Weights in the order in which the kernels read them."""

from __future__ import annotations

import torch
from torch import nn

from mtp_bench.models.native.library import Matrix, library
from mtp_bench.models.pages import huge_buffer

SLAB_BYTES = 32 << 20
ALIGNED = 64  # a cache line


def panel_width() -> int:
    """Outputs of a panel."""
    return int(library().mtp_lanes() * library().mtp_vectors())


def in_panels(values: torch.Tensor) -> torch.Tensor:
    """[O, ...] -> [panels, outputs of a panel, ...], zeros behind the last output."""
    missing = -len(values) % panel_width()
    padded = torch.cat((values.detach(), values.new_zeros(missing, *values.shape[1:])))
    return padded.view(-1, panel_width(), *values.shape[1:])


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[O, I] -> [panels, I / group, vectors, lanes, group], zeros behind the last output.

    A panel holds the weights of so many outputs as one tile's registers do; a group is what one 32-bit lane holds, a
    pair of bf16 or one fp32. A product with a panel reads it once, from its first to its last byte.
    """
    group = 4 // weight.element_size()
    panels = in_panels(weight)
    grouped = panels.view(*panels.shape[:2], -1, group).transpose(1, 2)
    return grouped.reshape(len(panels), -1, library().mtp_vectors(), library().mtp_lanes(), group)


class Weights:
    """Packed weights, one behind the other in huge pages; they live as long as this does."""

    def __init__(self) -> None:
        self._slab, self._used = torch.empty(0, dtype=torch.uint8), 0
        self._kept: list[torch.Tensor] = []

    def address(self, tensor: torch.Tensor) -> int:
        """Where a tensor lies as it is, as long as these weights live."""
        kept = tensor.detach().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def place(self, tensor: torch.Tensor) -> int:
        """Where a copy of a tensor lies."""
        size = tensor.numel() * tensor.element_size()
        start = -(-self._used // ALIGNED) * ALIGNED
        if start + size > len(self._slab):
            self._slab, start = huge_buffer(max(size, SLAB_BYTES)), 0
            self._kept.append(self._slab)
        part = self._slab[start : start + size]
        part.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        self._used = start + size
        return part.data_ptr()

    def matrix(self, *parts: nn.Linear) -> Matrix:
        """The product of one input with several weights, one result behind the other."""
        weight = torch.cat([part.weight for part in parts])
        biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
        bias = self.place(in_panels(torch.cat(biases))) if biases else None
        return Matrix(self.place(pack(weight)), bias, weight.shape[1], weight.shape[0])

    def gated(self, gate: nn.Linear, up: nn.Linear) -> Matrix:
        """Both of a gated MLP's first products, a panel of the one and a panel of the other in turns."""
        panels = torch.stack((pack(gate.weight), pack(up.weight)), dim=1).flatten(0, 1)
        biases = gate.bias, up.bias
        bias = None if gate.bias is None else self.place(torch.stack([in_panels(part) for part in biases], dim=1))
        return Matrix(self.place(panels), bias, gate.in_features, len(panels) * panel_width())
