"""Reduced draft vocabularies: which draft id stands for which token."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_map(token_map: Tensor) -> Tensor:
    """int64 [max + 2]: target id -> draft id, -1 where there is none; the last entry stands for all higher ids."""
    inverse = torch.full((int(token_map.max()) + 2,), -1, dtype=torch.int64, device=token_map.device)
    inverse[token_map] = torch.arange(len(token_map), device=token_map.device)
    return inverse
