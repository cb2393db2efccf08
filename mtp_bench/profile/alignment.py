"""Do the heads guess the token that they should, or a neighbour of it?

Heads that are trained or loaded one position off give valid tokens that are never accepted; the output stays right, so
nothing but the missing speed tells. Comparing the first head's best token with the neighbouring tokens tells why.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import root_states
from mtp_bench.heads.base import Heads
from mtp_bench.models.base import BaseModel

SHIFTS = (-1, 0, 1)
SAMPLE = 8
# A neighbour must be named this often, and this many times as often as the right token.
CLEAR_RATE, CLEAR_RATIO = 0.2, 4.0


@torch.inference_mode()
def top1_by_shift(base: BaseModel, heads: Heads, answers: Sequence[Answer]) -> dict[int, float]:
    """Share of positions at which the first head's best token is the one ``shift`` places after the right one."""
    sample = [answer for answer in answers if len(answer.tokens) > 2][:SAMPLE]
    hits, count = dict.fromkeys(SHIFTS, 0), 0
    for indices, states in root_states(base, sample):
        for index, piece in zip(indices, states, strict=True):
            text = torch.tensor(sample[index].tokens, device=base.device)
            # The state at row t is that of a step whose root is token t; the first head should name token t + 1.
            starts = len(text) - 2
            named = heads.propose(piece[:starts], 1, 1)[:, 0, 0]
            for shift in SHIFTS:
                hits[shift] += int((named == text[1 + shift : 1 + shift + starts]).sum())
            count += starts
    return {shift: hit / max(count, 1) for shift, hit in hits.items()}


def shift_hint(rates: dict[int, float]) -> str | None:
    """What to tell the user when a neighbour is named far more often than the right token, else None."""
    shift = max((shift for shift in rates if shift), key=lambda shift: rates[shift])
    if rates[shift] < CLEAR_RATE or rates[shift] < CLEAR_RATIO * rates[0]:
        return None
    side = "before" if shift < 0 else "after"
    return (
        f"the heads look shifted by one position: head 1 names the token {side} the one it should at "
        f"{rates[shift]:.0%} of positions, the right one at {rates[0]:.0%}"
    )
