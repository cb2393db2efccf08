"""The dynamic tree of EAGLE-2: expanding the pool, and keeping its most probable nodes.

Everything is tensor operations with a batch dimension, so that live decoding and the recording of traces share it. At
equal probabilities the node that stands first in the pool wins, so a parent never loses to its child.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from mtp_bench.decode.draft import Drafted
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.ranking import ordered_topk
from mtp_bench.topology import DynamicTree

Run = Callable[[torch.Tensor, torch.Tensor, int, int, torch.Tensor], torch.Tensor]
"""A pass over k nodes of a level: tokens [b, k], hidden [b, k, H], level, nodes expanded before, sees -> [b, k, H]."""
Best = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""See ``EagleDraft.best``."""


class Pool(NamedTuple):
    """All nodes drafted for b sequences, level by level: top_k, then top_k^2 for each further level.

    Attributes:
        tokens: int64 [b, P], target ids.
        scores: float32 [b, P], log-probability of the node's whole path under the draft.
        parents: int64 [b, P], place of the parent in the pool, -1 for the root.
        levels: int64 [P], depth of each place.
    """

    tokens: torch.Tensor
    scores: torch.Tensor
    parents: torch.Tensor
    levels: torch.Tensor


def expand(draft: EagleDraft, output: torch.Tensor, depth: int, top_k: int, run: Run, best: Best | None = None) -> Pool:
    """Draft the pool from the output [b, 1, H] of the root's slot, ``depth - 1`` passes of ``top_k`` nodes each.

    Args:
        best: ``draft.best`` when left out.
    """
    best = best or draft.best
    batch, device = len(output), output.device
    tokens, scores = _children(draft, *best(output, top_k))
    pool_tokens, pool_scores = [tokens], [scores]
    parents = [torch.full((batch, top_k), -1, dtype=torch.int64, device=device)]
    # The nodes expanded next: their place in the pool, and what their pass reads and sees.
    beam = torch.arange(top_k, device=device).expand(batch, -1)
    hidden = draft.feedback(output).expand(-1, top_k, -1)
    itself = torch.eye(top_k, dtype=torch.bool, device=device).expand(batch, -1, -1)
    sees, size = itself, top_k
    for level in range(1, depth):
        output = run(tokens, hidden, level, (level - 1) * top_k, sees)
        children, own = _children(draft, *best(output, top_k))
        joint = (scores[..., None] + own.view(batch, top_k, top_k)).flatten(1)
        pool_tokens.append(children)
        pool_scores.append(joint)
        parents.append(beam.repeat_interleave(top_k, dim=1))
        chosen = ordered_topk(joint, top_k)
        above = chosen // top_k
        tokens, scores = children.gather(1, chosen), joint.gather(1, chosen)
        beam, size = size + chosen, size + top_k**2
        hidden = _rows(draft.feedback(output), above)
        sees = torch.cat([_rows(sees, above), itself], dim=-1)
    # By arithmetic on the device: values from the host could not be part of a CUDA graph.
    places = torch.arange(top_k + (depth - 1) * top_k**2, device=device)
    levels = 2 + torch.div(places - top_k, top_k**2, rounding_mode="floor")
    return Pool(torch.cat(pool_tokens, 1), torch.cat(pool_scores, 1), torch.cat(parents, 1), levels)


def _children(draft: EagleDraft, best: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Target ids of the best tokens below each row, and their log-probabilities: [b, w, k] -> [b, w * k] each."""
    return draft.target_ids(best).flatten(1), shares.flatten(1)


def _rows(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows int64 [b, k] of [b, w, X]: [b, k, X]."""
    return values[torch.arange(len(index), device=index.device)[:, None], index]


def select(pool: Pool, tree: DynamicTree) -> Drafted:
    """Keep the most probable nodes of the pool, in the pool's order (by level)."""
    batch, device = len(pool.tokens), pool.tokens.device
    kept = ordered_topk(pool.scores, tree.num_nodes).sort(dim=1).values
    rows = torch.arange(1, tree.rows, device=device).expand(batch, -1)
    # Row of each place of the pool; one more place stands for the root, which parents call -1.
    row_of = torch.zeros(batch, pool.tokens.shape[1] + 1, dtype=torch.int64, device=device).scatter(1, kept, rows)
    above = pool.parents.gather(1, kept)
    root = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    parents = torch.cat([root, row_of.gather(1, above.remainder(row_of.shape[1]))], dim=1)
    depths = torch.cat([root, pool.levels[kept]], dim=1)
    ancestors, path_rows = _lineage(parents, depths, tree.depth)
    real = torch.ones_like(parents, dtype=torch.bool)
    return Drafted(pool.tokens.gather(1, kept), TreeTensors(tree, parents, depths, real, ancestors, path_rows))


def _lineage(parents: torch.Tensor, depths: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ancestor-or-self masks [b, R, R] and path rows [b, R, depth + 1] of trees given by parents [b, R]."""
    batch, rows = parents.shape
    line = [torch.arange(rows, device=parents.device).expand(batch, -1)]
    for _ in range(depth):
        line.append(parents.gather(1, line[-1]))
    up = torch.stack(line, dim=-1)  # [b, R, depth + 1]: the row itself, its parent, ..., the root
    ancestors = torch.zeros(batch, rows, rows, dtype=torch.bool, device=parents.device).scatter(2, up, True)
    steps_up = (depths[..., None] - torch.arange(depth + 1, device=parents.device)).clamp(min=0)
    return ancestors, up.gather(2, steps_up)
