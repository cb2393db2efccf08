"""One decoding step: verify the rows, accept, move the cache, draft the next tree.

The baseline is the same step with a topology of no nodes. All state lives in device tensors with a batch dimension;
the only host traffic is the one small tensor that ``TreeStepper.step`` returns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mtp_bench.decode.accept import Acceptance, accept_greedy
from mtp_bench.decode.cache import TreeCache, bucket
from mtp_bench.decode.draft import Settled, Which
from mtp_bench.decode.drafters import drafter_for
from mtp_bench.decode.masks import for_layers, row_mask
from mtp_bench.decode.native_step import native_accept, native_move
from mtp_bench.decode.prefill import prefill
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel


class Verified(NamedTuple):
    """What the base model says about the rows of a tree.

    Attributes:
        hidden: [B, R, H] final hidden states; features: [B, R, F] what the draft reads of them or of earlier layers.
        choices: int64 [B, R], the greedy token after each row.
    """

    hidden: torch.Tensor
    features: torch.Tensor
    choices: torch.Tensor


class TreeStepper:
    """Device state of B sequences decoded with one topology.

    Attributes:
        tokens: int64 [B, R], root and drafted tokens of the coming step.
        lengths: int64 [B], cached tokens of each sequence, which is also its root's position.
        active: int64 [B], 1 for sequences in flight, 0 for free slots, whose rows are computed but lead nowhere.
    """

    def __init__(self, base: BaseModel, heads: AnyHeads | None, tree: TreeTensors, cache: TreeCache) -> None:
        self.base, self.cache = base, cache
        self.drafter = drafter_for(heads, tree.tree, cache, base.engine)
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
        hidden, features = self._prefill(sequences, prompts)
        last = hidden[torch.arange(len(prompts), device=self.base.device), lengths - 1]
        roots = self.base.logits(last).argmax(-1)
        self.lengths[where] = lengths
        self.active[where] = 1
        self.tokens[where, 0] = roots
        if self.drafter is not None:
            # The draft reads each feature beside the token after it: the prompt without its first, then the root.
            following = _padded([[*prompt[1:], 0] for prompt in prompts], self.base.device)
            following[torch.arange(len(prompts), device=self.base.device), lengths - 1] = roots
            self.draft(where, Settled(torch.zeros_like(lengths), following, features, lengths, 0))
        return [int(root) for root in roots.tolist()]

    def release(self, sequence: int) -> None:
        """Free a sequence's slot: it stays in the batch at length 0 until the next prefill into it."""
        self.lengths[sequence] = 0
        self.active[sequence] = 0

    def _prefill(self, sequences: list[int], prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [b, P, H] and features [b, P, F] of the prompts, their keys and values cached."""
        aux_layers = self.drafter.aux_layers if self.drafter is not None else ()
        tokens = _padded(prompts, self.base.device)
        if len(prompts) == 1:
            return prefill(self.base, self.cache.sequence(sequences[0]), tokens, aux_layers=aux_layers)
        # Padding on the right is harmless: its slots lie beyond each length, where nothing looks and steps overwrite.
        scratch = TreeCache.allocate(self.base, batch=len(prompts), length=tokens.shape[1])
        result = prefill(self.base, scratch, tokens, aux_layers=aux_layers)
        self.cache.take_over(sequences, scratch)
        return result

    @torch.inference_mode()
    def step(self, longest: int) -> torch.Tensor:
        """Run one step for all sequences.

        Args:
            longest: the largest of ``lengths``, known to the host; it picks the bucket of cache slots to attend to.

        Returns:
            int64 [B, D + 2] on the CPU: accepted count, then the emitted tokens (``accepted + 1`` of them count).
        """
        return self.step_on_device(longest).cpu()

    @torch.inference_mode()
    def advance(self, longest: int) -> tuple[torch.Tensor, Settled]:
        """A step without its draft: verify, accept, move the cache, set the next root.

        Returns:
            what ``step`` returns, and what the next tree is drafted from.
        """
        result, settled = self.advance_on_device(longest)
        return result.cpu(), settled

    def step_on_device(self, longest: int) -> torch.Tensor:
        """``step`` without waiting for its result; ``longest`` may be larger than any of the lengths."""
        result, settled = self.advance_on_device(longest)
        self.draft(slice(None), settled)
        return result

    def advance_on_device(self, longest: int) -> tuple[torch.Tensor, Settled]:
        """``advance`` without waiting for its result."""
        verified = self.verify(longest)
        return self.settle(verified, self.accept(verified), longest)

    @torch.inference_mode()
    def draft_again(self, settled: Settled) -> None:
        """Draft for all sequences from the very tensors that an earlier call read, for timing."""
        self.draft(slice(None), settled)

    def accept(self, verified: Verified) -> Acceptance:
        """The longest path of each tree that the base model would have taken."""
        accept = native_accept if self.base.engine == "native" else accept_greedy
        return accept(self.tokens, verified.choices, self.tree)

    def settle(self, verified: Verified, outcome: Acceptance, longest: int) -> tuple[torch.Tensor, Settled]:
        """Move the accepted rows of the cache to their places and set the next root; the step's result, and what the
        next tree is drafted from."""
        starts = self.lengths.clone()
        if self.tree.depth:
            self._move(starts[:, None] + outcome.path[:, 1:], starts[:, None] + self._depths)
        counts = outcome.accepted + 1
        # In place: a captured graph must find its state at the same address. A free slot must not grow out of the
        # cache, whatever its stale rows accept.
        self.lengths += counts * self.active
        self.tokens[:, :1] = outcome.emitted.gather(1, outcome.accepted[:, None])
        features = verified.features
        if self.drafter is not None:  # nothing else reads them
            features = features[torch.arange(len(starts), device=starts.device)[:, None], outcome.path]
        settled = Settled(starts, outcome.emitted, features, counts, longest)
        return torch.cat([outcome.accepted[:, None], outcome.emitted], dim=1), settled

    def _move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self.base.engine == "native":
            native_move(self.cache, source, target)
        else:
            self.cache.move(source, target)

    def verify(self, longest: int) -> Verified:
        """Forward the current rows."""
        slots = self.lengths[:, None] + self._rows
        positions = self.lengths[:, None] + self.tree.depths
        if self.masks_every_row():
            visible = bucket(longest + self.tree.rows, self.cache.length)
            mask = row_mask(slots, self.lengths, self.tree.ancestors, visible)
            plain = self.base.engine == "native"
            layered = for_layers(self.base, mask, slots, positions, self.lengths, plain=plain)
        else:
            visible, layered = longest + 1, None
        self.cache.aim(slots, visible)
        aux_layers = self.drafter.aux_layers if self.drafter is not None else ()
        return Verified(*self.base.choices(self.tokens, positions, layered, self.cache, aux_layers))

    def masks_every_row(self) -> bool:
        """One row of one sequence sees every slot written so far: nothing to mask, and kernels are faster for it."""
        return not (self.tree.rows == self.cache.batch == 1 and self.base.sees_all_without_mask)

    def draft(self, which: Which, settled: Settled) -> None:
        """Fill the rows below the root from what was settled."""
        if self.drafter is None:
            return
        tokens, tree = self.drafter.draft(which, settled)
        if self.tree.nodes is not None:
            tokens = tokens.gather(1, self.tree.nodes[which])
        self.tokens[which, 1 : tokens.shape[1] + 1] = tokens
        if tree is not None:
            self.tree.put(which, tree)


def _padded(sequences: list[list[int]], device: torch.device) -> torch.Tensor:
    """int64 [b, longest], zeros behind the shorter ones."""
    longest = max(len(sequence) for sequence in sequences)
    return torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences], device=device)
