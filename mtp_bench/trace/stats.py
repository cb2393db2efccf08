"""What steps accepted, and every derived figure by its full name.

Engines count the root and the bonus token differently. Here the raw counts come first and each figure is derived from
them in one place, so that no two parts of the program can disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mtp_bench.errors import InputError


@dataclass(frozen=True, slots=True)
class StepStats:
    """Counts over verification steps.

    Args:
        accepted_histogram: number of steps that accepted 0, 1, ..., depth drafted tokens.
        nodes_per_step: drafted tokens verified per step (N).
    """

    accepted_histogram: tuple[int, ...]
    nodes_per_step: int

    @classmethod
    def from_accepted(cls, accepted: Sequence[int], *, depth: int, nodes_per_step: int | None = None) -> StepStats:
        """Count the accepted drafted tokens of each step; a chain is assumed unless ``nodes_per_step`` is given.

        Raises:
            InputError: a value outside 0..depth (with the step's index), or no step at all.
        """
        histogram = [0] * (depth + 1)
        for step, count in enumerate(accepted):
            if not 0 <= count <= depth:
                raise InputError(f"accepted {count} of at most {depth} drafted tokens", where=f"step {step}")
            histogram[count] += 1
        if not sum(histogram):
            raise InputError("no speculation steps", fix="record at least one step")
        return cls(tuple(histogram), depth if nodes_per_step is None else nodes_per_step)

    @property
    def depth(self) -> int:
        """Most drafted tokens a step can accept."""
        return len(self.accepted_histogram) - 1

    @property
    def steps(self) -> int:
        """Verification passes."""
        return sum(self.accepted_histogram)

    @property
    def drafted_nodes(self) -> int:
        """Drafted tokens verified."""
        return self.steps * self.nodes_per_step

    @property
    def accepted_drafts(self) -> int:
        """Drafted tokens accepted."""
        return sum(length * count for length, count in enumerate(self.accepted_histogram))

    @property
    def emitted_tokens(self) -> int:
        """Accepted drafted tokens plus one bonus token per step."""
        return self.accepted_drafts + self.steps

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafted tokens per step, without the bonus token."""
        return self.accepted_drafts / self.steps

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per step: ``1 + accepted_per_step``."""
        return 1 + self.accepted_per_step

    @property
    def draft_accept_rate_nodes(self) -> float | None:
        """Accepted over verified drafted tokens; None when nothing is drafted."""
        return self.accepted_drafts / self.drafted_nodes if self.drafted_nodes else None

    @property
    def draft_accept_rate_depth(self) -> float | None:
        """Accepted drafted tokens over ``steps * depth``; None when nothing is drafted."""
        return self.accepted_drafts / (self.steps * self.depth) if self.depth else None

    @property
    def depth_accepts(self) -> tuple[int, ...]:
        """Steps that accepted at least d drafted tokens, d = 1..depth."""
        return tuple(sum(self.accepted_histogram[d:]) for d in range(1, self.depth + 1))

    @property
    def unconditional_rates(self) -> tuple[float, ...]:
        """P(first d all accepted), d = 1..depth; they sum to ``accepted_per_step``."""
        return tuple(count / self.steps for count in self.depth_accepts)

    @property
    def conditional_rates(self) -> tuple[float | None, ...]:
        """P(d accepted given d - 1 accepted), d = 1..depth; None where no step got that far."""
        reached = (self.steps, *self.depth_accepts)
        return tuple(got / had if had else None for had, got in pairwise(reached))
