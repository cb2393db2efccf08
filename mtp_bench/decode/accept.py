"""Greedy acceptance of a verified tree, as tensor operations on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mtp_bench.decode.tree import TreeTensors


class Acceptance(NamedTuple):
    """Outcome of one step for B sequences.

    Attributes:
        accepted: int64 [B], drafted tokens accepted.
        row: int64 [B], row of the last accepted node (0 = the root).
        path: int64 [B, D + 1], rows from the root to it, padded with ``row``.
        emitted: int64 [B, D + 1], the tokens the step emits; only the first ``accepted + 1`` count, the last of
            those being the bonus token.
    """

    accepted: torch.Tensor
    row: torch.Tensor
    path: torch.Tensor
    emitted: torch.Tensor


def accept_greedy(tokens: torch.Tensor, choices: torch.Tensor, tree: TreeTensors) -> Acceptance:
    """Accept the longest path whose every token is the base model's choice at its parent.

    Args:
        tokens: int64 [B, R], the root and the drafted tokens.
        choices: int64 [B, R], the base model's greedy token after each row.
        tree: the topology's tensors.
    """
    batch = len(tokens)
    matches = (tokens == choices.gather(1, tree.parents.expand(batch, -1))) & tree.real
    matches[:, 0] = True
    # A row is accepted when no ancestor-or-self of it is a mismatch.
    refused = (tree.ancestors & ~matches[:, None, :]).any(-1) | ~tree.real
    accepted, row = torch.where(refused, -1, tree.depths).max(-1)
    path = tree.path_rows.expand(batch, -1, -1)[torch.arange(batch, device=row.device), row]
    # Every accepted token equals the choice at its parent, so the choices along the path are what the step emits.
    return Acceptance(accepted, row, path, choices.gather(1, path))
