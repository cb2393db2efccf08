"""Before anything is measured: does verifying a tree give the logits that each path alone gives?

The reference is the model's own stock forward pass over prompt + path, without our cache, mask or attention rows. A
kernel that ignores the mask, a wrong position or a wrong cache slot shows up here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.errors import CheckFailed
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree

# Largest difference of two logits over their standard deviation that rounding explains.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class ProbeResult:
    """Outcome of a probe.

    Attributes:
        worst: largest difference between a node's logits in the tree and on its own path, in standard deviations
            of the logits.
        typical: median of such differences.
        tolerance: what ``worst`` was held against.
        greedy_agreement: share of nodes whose greedy token is the same.
    """

    attention: str
    num_nodes: int
    worst: float
    typical: float
    tolerance: float
    greedy_agreement: float

    @property
    def passed(self) -> bool:
        """Whether tree verification can be trusted."""
        return self.worst <= self.tolerance


@torch.inference_mode()
def probe_tree(base: BaseModel, tree: StaticTree, prompt: list[int], *, seed: int = 0) -> ProbeResult:
    """Compare tree logits with per-path logits for random tokens on ``tree`` behind ``prompt``.

    Raises:
        CheckFailed: they differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = TreeTensors.build(tree, base.device)
    tokens = torch.randint(0, base.vocab_size, (1, tensors.rows), generator=generator).to(base.device)
    cache = TreeCache.allocate(base, batch=1, length=len(prompt) + tensors.rows)
    stepper = TreeStepper(base, None, TreeTensors.build(StaticTree(()), base.device), cache)
    stepper.prefill([0], [prompt])
    stepper.set_rows(tensors, tokens)
    in_tree = base.logits(stepper.verify(len(prompt)).hidden)[0].float()
    with base.stock_attention():
        alone = _path_logits(base, tree, prompt, tokens[0])
    result = _compare(base, tree, in_tree, alone)
    if not result.passed:
        raise CheckFailed(
            f"tree logits differ from per-path logits by {result.worst:.3g} standard deviations "
            f"(tolerance {result.tolerance:g})",
            where=f"probe of {base.name} with {base.attention} attention",
            fix="try --attention sdpa or --attention eager; this model or kernel may not honour tree masks",
        )
    return result


def _path_logits(base: BaseModel, tree: StaticTree, prompt: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """Logits [rows, V] of each row computed on its own path, one leaf at a time, by the stock forward pass."""
    logits = torch.zeros(tree.rows, base.vocab_size)
    for leaf in tree.leaves or (0,):
        rows = [int(row) for row in tree.path_rows[leaf] if row >= 0]
        text = torch.tensor([[*prompt, *[int(tokens[row]) for row in rows]]], device=base.device)
        positions = torch.arange(text.shape[1], device=base.device)[None]
        hidden = base.hidden_states(text, positions, None, None)
        logits[rows] = base.logits(hidden)[0, len(prompt) :].float().cpu()
    return logits


def _compare(base: BaseModel, tree: StaticTree, in_tree: torch.Tensor, alone: torch.Tensor) -> ProbeResult:
    difference = (in_tree.cpu() - alone).abs() / alone.std(dim=-1, keepdim=True)
    agreement = (in_tree.cpu().argmax(-1) == alone.argmax(-1)).float().mean()
    worst = float(difference.max())
    return ProbeResult(
        base.attention,
        tree.num_nodes,
        worst if worst == worst else float("inf"),
        float(difference.median()),
        TOLERANCE[base.dtype],
        float(agreement),
    )
