"""One decoding step: verify the rows, accept, move the cache, draft the next tree.

The baseline is the same step with a topology of no nodes. All state lives in device tensors with a batch dimension;
the only host traffic is the one small tensor that ``TreeStepper.step`` returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mtp_bench.decode.accept import accept_greedy
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import InputError
from mtp_bench.heads.base import Heads
from mtp_bench.models.base import BaseModel

LENGTH_BUCKET = 64
PREFILL_CHUNK = 512


class TreeStepper:
    """Device state of B sequences decoded with one topology.

    Attributes:
        tokens: int64 [B, R], root and drafted tokens of the coming step.
        lengths: int64 [B], cached tokens of each sequence, which is also its root's position.
        active: int64 [B], 1 for sequences in flight, 0 for free slots, whose rows are computed but lead nowhere.
    """

    def __init__(self, base: BaseModel, heads: Heads | None, tree: TreeTensors, cache: TreeCache) -> None:
        if tree.depth > 0 and heads is None:
            raise InputError("a topology with nodes needs heads", where="--topology", fix="give --heads")
        if heads is not None and tree.depth > heads.num_heads:
            raise InputError(
                f"the topology is {tree.depth} deep, the heads draft only {heads.num_heads} tokens",
                where="--topology",
                fix="clip the tree (mtp-bench trees show) or use heads with more depths",
            )
        self.base, self.heads, self.cache = base, heads, cache
        self.lengths = torch.zeros(cache.batch, dtype=torch.int64, device=base.device)
        self.active = torch.zeros_like(self.lengths)
        self.set_rows(tree, torch.zeros(cache.batch, tree.rows, dtype=torch.int64, device=base.device))

    def set_rows(self, tree: TreeTensors, tokens: torch.Tensor) -> None:
        """Use another topology from now on, with these tokens (int64 [B, R]) in its rows."""
        self.tree, self.tokens = tree, tokens
        self._rows = torch.arange(tree.rows, device=self.base.device)
        self._depths = torch.arange(1, tree.depth + 1, device=self.base.device)

    @torch.inference_mode()
    def prefill(self, sequences: list[int], prompts: list[list[int]]) -> list[int]:
        """Fill the caches of ``sequences`` with their prompts and draft their first trees; return the first tokens."""
        where = torch.tensor(sequences, device=self.base.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.base.device)
        hidden = self._prefill_last(sequences, prompts, lengths)
        roots = self.base.logits(hidden).argmax(-1)
        self.lengths[where] = lengths
        self.active[where] = 1
        self.tokens[where, 0] = roots
        self.draft(where, hidden)
        return [int(root) for root in roots.tolist()]

    def release(self, sequence: int) -> None:
        """Free a sequence's slot: it stays in the batch at length 0 until the next prefill into it."""
        self.lengths[sequence] = 0
        self.active[sequence] = 0

    def _prefill_last(self, sequences: list[int], prompts: list[list[int]], lengths: torch.Tensor) -> torch.Tensor:
        """Hidden states [b, H] of each prompt's last token, its keys and values cached."""
        device = self.base.device
        if len(prompts) == 1:
            tokens = torch.tensor(prompts, dtype=torch.int64, device=device)
            *_, last = prefill_hidden(self.base, self.cache.sequence(sequences[0]), tokens)
            return last[:, -1]
        # Padding on the right is harmless: its slots lie beyond each length, where nothing looks and steps overwrite.
        longest = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
        scratch = TreeCache.allocate(self.base, batch=len(prompts), length=longest)
        hidden = torch.cat(list(prefill_hidden(self.base, scratch, tokens)), dim=1)
        self.cache.data[:, :, sequences, :, :longest] = scratch.data
        return hidden[torch.arange(len(prompts), device=device), lengths - 1]

    @torch.inference_mode()
    def step(self, longest: int) -> torch.Tensor:
        """Run one step for all sequences.

        Args:
            longest: the largest of ``lengths``, known to the host; it picks the bucket of cache slots to attend to.

        Returns:
            int64 [B, D + 2] on the CPU: accepted count, then the emitted tokens (``accepted + 1`` of them count).
        """
        result, hidden = self.advance(longest)
        self.draft(slice(None), hidden)
        return result

    def advance(self, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A step without its draft: verify, accept, move the cache, set the next root.

        Returns:
            what ``step`` returns, and the hidden states [B, H] from which the next tree is drafted.
        """
        hidden, choices = self.verify(longest)
        outcome = accept_greedy(self.tokens, choices, self.tree)
        if self.tree.depth:
            self.cache.move(self.lengths[:, None] + outcome.path[:, 1:], self.lengths[:, None] + self._depths)
        # In place: a captured graph must find its state at the same address. A free slot must not grow out of the
        # cache, whatever its stale rows accept.
        self.lengths += (outcome.accepted + 1) * self.active
        root = outcome.emitted.gather(1, outcome.accepted[:, None])
        self.tokens[:, :1] = root
        last = hidden[torch.arange(hidden.shape[0], device=hidden.device), outcome.row]
        return torch.cat([outcome.accepted[:, None], outcome.emitted], dim=1).cpu(), last

    def verify(self, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward the current rows: hidden states [B, R, H] and greedy choices int64 [B, R]."""
        slots = self.lengths[:, None] + self._rows
        positions = self.lengths[:, None] + self.tree.depths
        if self.tree.rows == self.cache.batch == 1 and self.base.sees_all_without_mask:
            # One row of one sequence sees every slot written so far: nothing to mask, and kernels are faster for it.
            visible, layered = longest + 1, None
        else:
            visible = bucket(longest + self.tree.rows, self.cache.length)
            mask = row_mask(slots, self.lengths, self.tree.ancestors, visible)
            layered = for_layers(self.base, mask, slots, positions, self.lengths)
        self.cache.aim(slots, visible)
        hidden = self.base.hidden_states(self.tokens, positions, layered, self.cache)
        return hidden, self.base.logits(hidden).argmax(-1)

    def draft(self, which: slice | torch.Tensor, hidden: torch.Tensor) -> None:
        """Fill the rows below the root from the heads' tokens; ``hidden`` is [b, H] of the accepted rows."""
        if self.tree.depth == 0:
            return
        assert self.heads is not None
        proposed = self.heads.propose(hidden, self.tree.depth, self.tree.top_k)
        self.tokens[which, 1:] = proposed[:, self.tree.draft_depth, self.tree.draft_rank]


def bucket(slots: int, limit: int) -> int:
    """Slots rounded up to a bucket, so that shapes repeat; at most ``limit``."""
    return min(-(-slots // LENGTH_BUCKET) * LENGTH_BUCKET, limit)


def prefill_hidden(
    base: BaseModel, cache: TreeCache, tokens: torch.Tensor, *, chunk: int | None = None
) -> Iterator[torch.Tensor]:
    """Write int64 [B, P] tokens to slots 0..P-1 in chunks; yield each chunk's hidden states [B, chunk, H]."""
    batch, total = tokens.shape
    width = chunk or PREFILL_CHUNK
    for start in range(0, total, width):
        piece = tokens[:, start : start + width]
        slots = torch.arange(start, start + piece.shape[1], device=tokens.device).expand(batch, -1)
        lengths = torch.full((batch,), start, dtype=torch.int64, device=tokens.device)
        causal = torch.ones(piece.shape[1], piece.shape[1], dtype=torch.bool, device=tokens.device).tril()
        visible = start + piece.shape[1]
        cache.aim(slots, visible)
        mask = for_layers(base, row_mask(slots, lengths, causal, visible), slots, slots, lengths)
        yield base.hidden_states(piece, slots, mask, cache)
