"""Medusa heads: n small residual stacks that read one hidden state and each guess a token further ahead.

Head i reads the base model's last hidden state (after its final norm) at position t and predicts token t + 2 + i; the
base model's own LM head predicts t + 1. Each of the L blocks is `x + SiLU(W x + b)`; an LM matrix turns the result into
logits: one per head ("own"), one for all heads ("shared"), or the base model's ("base").

The heads' weights are stacked, so that all heads run as one batched product per layer, and with one LM matrix for all
heads its rows are read once per step, not once per head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtp_bench.errors import InputError
from mtp_bench.heads.base import HeadsInfo, LmHead, LmProduct
from mtp_bench.heads.ranking import ordered_topk, ranks_of
from mtp_bench.heads.vocabulary import inverse_map


class MedusaHeads(nn.Module):
    """Medusa heads made from given tensors; never random.

    Args:
        block_weight: [L, n, H, H].
        block_bias: [L, n, H], or None for blocks without bias.
        lm_head: where the LM matrix comes from.
        lm_weight: [n, V', H] for "own", [V', H] for "shared", None for "base" (then call `attach`).
        token_map: int64 [V'], draft id -> target id; None when the draft vocabulary is the target's.
        meta: what these heads are; made up from the tensors when left out.
    """

    block_weight: Tensor
    block_bias: Tensor | None
    lm_weight: Tensor | None
    token_map: Tensor | None
    _draft_id: Tensor | None
    _base_rows: Tensor | None

    def __init__(
        self,
        block_weight: Tensor,
        block_bias: Tensor | None,
        *,
        lm_head: LmHead,
        lm_weight: Tensor | None = None,
        token_map: Tensor | None = None,
        meta: HeadsInfo | None = None,
    ) -> None:
        super().__init__()
        self.lm_head: LmHead = lm_head
        self.num_layers, self.num_heads, self.hidden_size = block_weight.shape[:3]
        assert block_weight.shape[3] == self.hidden_size
        assert block_bias is None or block_bias.shape == block_weight.shape[:3]
        assert (lm_weight is None) == (lm_head == "base")
        assert lm_weight is None or lm_weight.dim() == (3 if lm_head == "own" else 2)
        self.block_weight = nn.Parameter(block_weight)
        self.block_bias = None if block_bias is None else nn.Parameter(block_bias)
        self.lm_weight = None if lm_weight is None else nn.Parameter(lm_weight)
        self.lm_product: LmProduct | None = None
        # The base model's, so neither a parameter nor in the state dict.
        self.register_buffer("_base_rows", None, persistent=False)
        self.register_buffer("token_map", token_map)
        self.register_buffer("_draft_id", None if token_map is None else inverse_map(token_map), persistent=False)
        self.meta = meta if meta is not None else self._describe()

    @classmethod
    def fresh(
        cls,
        *,
        num_heads: int,
        num_layers: int,
        base_lm_head_weight: Tensor,
        lm_head: LmHead = "base",
        token_map: Tensor | None = None,
        bias: bool = True,
        init_std: float = 1e-3,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> MedusaHeads:
        """Untrained heads to start training from, already attached to the base model's LM matrix [V, H].

        Block weights are normal with deviation `init_std` (just enough that stacked blocks do not learn the same
        thing), biases zero, own and shared LM matrices copies of the base model's rows: at the start every head
        says nearly what the base model's LM head says.
        """
        base = base_lm_head_weight.detach()
        hidden = base.shape[1]
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(num_layers, num_heads, hidden, hidden, generator=generator) * init_std
        rows = base if token_map is None else base.index_select(0, token_map.to(base.device))
        lm_weight = None
        if lm_head == "own":
            lm_weight = rows.to(dtype).expand(num_heads, -1, -1).clone()
        elif lm_head == "shared":
            lm_weight = rows.to(dtype).clone()
        heads = cls(
            weight.to(dtype),
            torch.zeros(num_layers, num_heads, hidden, dtype=dtype) if bias else None,
            lm_head=lm_head,
            lm_weight=lm_weight,
            token_map=token_map,
        ).to(base.device)
        heads.attach(base)
        return heads

    def attach(self, base_lm_head_weight: Tensor | None) -> None:
        """Take the base model's LM matrix [V, H], where these heads use it; the others ignore it.

        With a `token_map` its rows are gathered once, here; without one nothing is copied (as long as device and dtype
        agree).

        Raises:
            InputError: the matrix is needed and missing, or its hidden size or vocabulary does not fit.
        """
        if self.lm_head != "base":
            return
        if base_lm_head_weight is None:
            raise InputError("these heads use the base model's LM head, and none was given", fix="load them for a base")
        rows = base_lm_head_weight.detach()
        if rows.shape[1] != self.hidden_size:
            raise InputError(f"heads have hidden size {self.hidden_size}, the base model {rows.shape[1]}")
        if self.token_map is not None:
            if len(self.token_map) and int(self.token_map.max()) >= rows.shape[0]:
                raise InputError(f"token_map holds {int(self.token_map.max())}, the base has {rows.shape[0]} tokens")
            rows = rows.index_select(0, self.token_map.to(rows.device))
        self._base_rows = rows.to(self.block_weight.device, self.block_weight.dtype)

    @property
    def lm_rows(self) -> Tensor:
        """The LM matrix in use: [V', H] ("shared", "base") or [n, V', H] ("own")."""
        rows = self._base_rows if self.lm_weight is None else self.lm_weight
        if rows is None:
            raise RuntimeError("attach() the base model's LM head before using these heads")
        return rows

    @property
    def max_depth(self) -> int:
        """Deepest token that can be drafted: one per head."""
        return self.num_heads

    @property
    def draft_vocab_size(self) -> int:
        """V', the number of tokens that the heads choose from."""
        return len(self.token_map) if self.token_map is not None else int(self.lm_rows.shape[-2])

    def hidden(self, x: Tensor, head: int) -> Tensor:
        """Run one head's blocks: [..., H] -> [..., H]."""
        for layer in range(self.num_layers):
            bias = None if self.block_bias is None else self.block_bias[layer, head]
            x = x + F.silu(F.linear(x, self.block_weight[layer, head], bias))
        return x

    def all_hidden(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Run the blocks of the first `depth` heads (default all) at once: [R, H] -> [depth, R, H]."""
        depth = self.num_heads if depth is None else depth
        states = x.to(self.block_weight.dtype).expand(depth, *x.shape)
        # unbind, not indexing: its gradient is one stack, where each index would write a zero-filled whole.
        biases = [None] * self.num_layers if self.block_bias is None else self.block_bias.unbind(0)
        for weight, bias in zip(self.block_weight.unbind(0), biases, strict=True):
            transposed = weight[:depth].transpose(1, 2)
            if bias is None:
                update = torch.bmm(states, transposed)
            else:
                update = torch.baddbmm(bias[:depth].unsqueeze(1), states, transposed)
            states = states + F.silu(update)
        return states

    def logits(self, x: Tensor, head: int) -> Tensor:
        """One head's logits: [..., H] -> [..., V'] (draft ids)."""
        rows = self.lm_rows[head] if self.lm_head == "own" else self.lm_rows
        return F.linear(self.hidden(x.to(self.block_weight.dtype), head), rows)

    def all_logits(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Logits of the first `depth` heads (default all) at once: [R, H] -> [depth, R, V']."""
        states = self.all_hidden(x, depth)
        if self.lm_head == "own":
            return torch.bmm(states, self.lm_rows[: len(states)].transpose(1, 2))
        flat = states.flatten(0, 1)
        logits = F.linear(flat, self.lm_rows) if self.lm_product is None else self.lm_product(flat)
        return logits.view(*states.shape[:2], -1)

    def propose(self, x: Tensor, depth: int, top_k: int) -> Tensor:
        """Propose tokens: [B, H] -> target ids int64 [B, depth, top_k], best first, ties by lower draft id.

        Only the first `depth` heads run. Nothing here depends on a value or waits for the device, so a CUDA graph
        can hold it.
        """
        draft_ids = ordered_topk(self.all_logits(x, depth), top_k).transpose(0, 1)
        return draft_ids if self.token_map is None else self.token_map[draft_ids]

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        """Target ids -> draft ids, -1 where the draft vocabulary lacks the token."""
        if self._draft_id is None:
            return target_ids
        return self._draft_id[target_ids.clamp(max=len(self._draft_id) - 1)]

    def ranks(self, x: Tensor, head: int, target_ids: Tensor, top_k: int) -> Tensor:
        """Rank int16 [T] of target tokens [T] under one head at hidden states [T, H]; -1 for a miss.

        The order is that of `propose`: rank r means that `propose` would give the token in place r.
        """
        return ranks_of(self.logits(x, head), self.draft_ids(target_ids), top_k)

    @property
    def num_parameters(self) -> int:
        """Parameters that these heads hold themselves; a borrowed LM matrix does not count."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def num_bytes(self) -> int:
        """Bytes of these parameters and of the token map."""
        tensors = [*self.parameters(), *([] if self.token_map is None else [self.token_map])]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _describe(self) -> HeadsInfo:
        vocabulary = None
        if self.token_map is not None or self.lm_weight is not None:
            vocabulary = self.draft_vocab_size
        return HeadsInfo(
            method="medusa",
            layout="memory",
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            draft_vocab_size=vocabulary,
            lm_head=self.lm_head,
            bias=self.block_bias is not None,
            dtype=str(self.block_weight.dtype).removeprefix("torch."),
            parameters=self.num_parameters,
            bytes=self.num_bytes,
        )
