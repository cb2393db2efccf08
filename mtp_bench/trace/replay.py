"""Replay: what real decoding with a tree would have done, from a trace alone.

Start at a prompt's first row, accept what the tree holds, jump past it and its bonus token, repeat. Under greedy
verification this reproduces the live run step for step; it is the figure to report. (Averages over all positions are
higher, because steps start where the previous draft failed.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mtp_bench.topology import Topology
from mtp_bench.trace.ranks import RankTrace
from mtp_bench.trace.stats import StepStats
from mtp_bench.trace.walk import accepted_lengths


@dataclass(frozen=True, eq=False)
class Replay:
    """Steps and tokens by prompt.

    Args:
        steps: int64 [P], verification steps of each prompt.
        tokens: int64 [P], tokens emitted in steps (rows - 1; the first root comes from prefill).
        truncated_steps: steps whose accepted length was cut by the end of the text (at most one a prompt).
        accepted_histogram: int64 [depth + 1], steps that accepted 0, 1, ... drafted tokens.
        num_nodes: nodes of the replayed tree.
        weights: float64 [P], how much each prompt counts; None = all alike. The histogram does not know them.
    """

    steps: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    truncated_steps: int
    accepted_histogram: npt.NDArray[np.int64]
    num_nodes: int
    weights: npt.NDArray[np.float64] | None = None

    @property
    def counted(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(tokens, steps), float64 [P] each: by prompt, times its weight."""
        weights = np.ones(len(self.steps)) if self.weights is None else self.weights
        return weights * self.tokens, weights * self.steps

    @cached_property
    def stats(self) -> StepStats:
        """All figures of the pooled steps."""
        return StepStats(tuple(int(count) for count in self.accepted_histogram), self.num_nodes)

    @property
    def total_steps(self) -> int:
        """Steps over all prompts."""
        return int(self.steps.sum())

    @property
    def total_tokens(self) -> int:
        """Tokens emitted in steps over all prompts."""
        return int(self.tokens.sum())

    @property
    def depth_accepts(self) -> npt.NDArray[np.int64]:
        """int64 [depth]: steps that accepted at least d drafted tokens, d = 1..depth."""
        return np.asarray(np.cumsum(self.accepted_histogram[::-1])[::-1][1:])

    @property
    def tokens_per_step(self) -> float:
        """``sum tokens / sum steps = 1 + accepted_per_step``; 1.0 for a trace without steps."""
        if self.weights is not None:
            tokens, steps = (float(values.sum()) for values in self.counted)
            return tokens / steps if steps else 1.0
        return self.stats.tokens_per_step if self.total_steps else 1.0

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafted tokens per step, without the bonus token."""
        if self.weights is not None:
            return self.tokens_per_step - 1
        return self.stats.accepted_per_step if self.total_steps else 0.0


def replay(trace: RankTrace, tree: Topology) -> Replay:
    """Decode the trace's prompts with ``tree``, without a model.

    A step at row t of a prompt with L rows accepts ``min(accepted(t), L - 2 - t)`` drafted tokens: the last token of
    the text is always a bonus token.
    """
    accepted = accepted_lengths(trace, tree)
    room = trace.tokens_left - 1
    capped = np.minimum(accepted, room)
    starts = _step_starts(trace, capped)
    counts = np.concatenate([[0], np.cumsum(starts)])
    offsets = trace.prompt_offsets
    return Replay(
        steps=counts[offsets[1:]] - counts[offsets[:-1]],
        tokens=np.maximum(trace.prompt_lengths - 1, 0),
        truncated_steps=int(np.count_nonzero(starts & (accepted > room))),
        accepted_histogram=np.bincount(capped[starts], minlength=tree.depth + 1),
        num_nodes=tree.num_nodes,
        weights=trace.weights,
    )


def step_starts(trace: RankTrace, tree: Topology) -> npt.NDArray[np.bool_]:
    """bool [T]: the rows at which the steps of :func:`replay` start."""
    return _step_starts(trace, np.minimum(accepted_lengths(trace, tree), trace.tokens_left - 1))


def _step_starts(trace: RankTrace, capped: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool [T]: rows at which a step starts.

    The cap makes every prompt end exactly on its last row, from where one more "step" of length 1 enters the next
    prompt: a single chain of jumps visits all prompts.
    """
    last = capped < 0
    jumps = np.where(last, 1, capped + 1).tolist()
    visited = bytearray(trace.num_positions)
    row, end = 0, trace.num_positions
    while row < end:
        visited[row] = 1
        row += jumps[row]
    return np.asarray(np.frombuffer(visited, dtype=np.bool_) & ~last)
