"""Hydra heads: Medusa's, but each sees the tokens drafted before its own (Ankner et al. 2024, "grounded" heads).

Head i reads the base model's hidden state at position t (the last, after the final norm, unless `aux_layers` says
otherwise; Hydra++: what the prefix layer makes of it) beside the embeddings of the tokens at t + 1 (the root), ...,
t + 1 + i along the candidate path, and predicts the token at t + 2 + i. Its first block maps that wide input to H
(`linear` and a linear `res_connection`), further ones are Medusa's; each head has an LM matrix with a bias. What is
accepted at one depth therefore depends on the path, and drafting goes level by level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtp_bench.heads.base import HeadsInfo
from mtp_bench.heads.hydra.prefix import PrefixLayer


class HydraHeads(nn.Module):
    """Grounded MLP heads made from given tensors; never random.

    Args:
        blocks: per head its blocks' (weight, bias), the first [H, (i + 2) H], further ones [H, H].
        residual: per head (weight [H, (i + 2) H], bias [H]) of the first block's residual connection.
        lm_heads: per head (weight [V, H], bias [V] or None).
        prefix: Hydra++'s layer, None for the plain kind.
        aux_layers: the base model's hidden state that is read, by the layer it enters; empty = the last, normed one.
    """

    _embedding: Tensor | None

    def __init__(
        self,
        blocks: Sequence[Sequence[tuple[Tensor, Tensor]]],
        residual: Sequence[tuple[Tensor, Tensor]],
        lm_heads: Sequence[tuple[Tensor, Tensor | None]],
        *,
        prefix: PrefixLayer | None = None,
        aux_layers: tuple[int, ...] = (),
        meta: HeadsInfo,
    ) -> None:
        super().__init__()
        self.num_heads = len(blocks)
        self.hidden_size = int(lm_heads[0][0].shape[1])
        self.blocks = nn.ModuleList(nn.ModuleList(_linear(*pair) for pair in head) for head in blocks)
        self.residual = nn.ModuleList(_linear(*pair) for pair in residual)
        self.lm_heads = nn.ModuleList(_linear(*pair) for pair in lm_heads)
        self.prefix = prefix
        self.aux_layers = aux_layers
        # The base model's, so neither a parameter nor in the state dict.
        self.register_buffer("_embedding", None, persistent=False)
        self.meta = meta

    @property
    def max_depth(self) -> int:
        """Deepest token that can be drafted: one per head."""
        return self.num_heads

    @property
    def vocab_size(self) -> int:
        """Tokens to choose from."""
        weight = self.lm_heads[0].weight
        assert isinstance(weight, Tensor)
        return int(weight.shape[0])

    def attach(self, embedding: Tensor) -> None:
        """Take the base model's embedding [V, H]."""
        weight = self.residual[0].weight
        assert isinstance(weight, Tensor)
        self._embedding = embedding.detach().to(weight.device, weight.dtype)

    def states(self, features: Tensor) -> Tensor:
        """What the heads read of whole texts, from the base model's features at each position: [B, L, H] of both."""
        return features if self.prefix is None else self.prefix.causal(features)

    def ground(self, seen: Tensor, tokens: Tensor) -> Tensor:
        """What the next head reads: ``seen`` [..., k H] and the embeddings of ``tokens`` int64 [...] behind it."""
        if self._embedding is None:
            raise RuntimeError("attach() the base model before using these heads")
        return torch.cat([seen, F.embedding(tokens, self._embedding)], dim=-1)

    def logits(self, seen: Tensor, head: int) -> Tensor:
        """One head's logits, [..., (head + 2) H] -> [..., V]."""
        blocks = self.blocks[head]
        assert isinstance(blocks, nn.ModuleList)
        x = self.residual[head](seen) + F.silu(blocks[0](seen))
        for block in blocks[1:]:
            x = x + F.silu(block(x))
        logits: Tensor = self.lm_heads[head](x)
        return logits

    def head_parameters(self, head: int) -> int:
        """Parameters of one head: its blocks and its LM matrix."""
        parts = (self.blocks[head], self.residual[head], self.lm_heads[head])
        return sum(parameter.numel() for part in parts for parameter in part.parameters())

    @property
    def num_parameters(self) -> int:
        """Parameters that these heads hold themselves."""
        return sum(parameter.numel() for parameter in self.parameters())


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    state: Mapping[str, Tensor] = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(state, assign=True)
    return layer
