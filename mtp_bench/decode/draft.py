"""Drafting the coming tree from what verification has settled, for heads of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.base import Heads
from mtp_bench.models.compiled import compiled
from mtp_bench.models.engines import Engine
from mtp_bench.topology import StaticTree

Which = slice | torch.Tensor
"""Sequences of a batch: all, or int64 [b]."""


class Settled(NamedTuple):
    """What the last pass of the base model settled, for b sequences; E = tokens settled at most.

    Attributes:
        starts: int64 [b], position of the first newly computed feature.
        tokens: int64 [b, E], the token after each such position; the last one that counts is the new root.
        features: [b, E, F], the base model's features at these positions.
        counts: int64 [b], how many of the E count.
        longest: upper bound of ``starts``, known to the host.
    """

    starts: torch.Tensor
    tokens: torch.Tensor
    features: torch.Tensor
    counts: torch.Tensor
    longest: int


class Drafted(NamedTuple):
    """The coming trees of b sequences: ``tokens`` int64 [b, N] of the nodes in row order, and their shapes where they
    are not always the same."""

    tokens: torch.Tensor
    tree: TreeTensors | None = None


class Drafter(Protocol):
    """Turns what was settled into the coming tree."""

    aux_layers: tuple[int, ...]

    def draft(self, which: Which, settled: Settled) -> Drafted:
        """Draft for some sequences of the batch."""
        ...


class MedusaDrafter:
    """Medusa heads guess all depths from one hidden state: one product, whatever the tree."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, heads: Heads, tree: StaticTree, device: torch.device, engine: Engine = "eager") -> None:
        depth, top_k = tree.depth, tree.max_rank + 1
        if engine == "compiled":
            self._propose: Callable[[torch.Tensor], torch.Tensor] = compiled(heads, "propose", depth, top_k)
        else:
            self._propose = lambda states: heads.propose(states, depth, top_k)
        self._depths = torch.from_numpy(tree.depths[1:] - 1).to(device)
        self._ranks = torch.from_numpy(tree.ranks[1:].copy()).to(device)

    def draft(self, which: Which, settled: Settled) -> Drafted:
        """See ``Drafter``; only the last settled feature is read."""
        proposed = self._propose(last_settled(settled.features, settled.counts))
        return Drafted(proposed[:, self._depths, self._ranks])


def last_settled(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[b, E, X] -> [b, X], the last entry that counts."""
    return values[torch.arange(len(counts), device=counts.device), counts - 1]
