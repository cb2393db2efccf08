"""Do the heads guess the token that they should, or a neighbour of it?

Heads that are trained or loaded one position off give valid tokens that are never accepted; the output stays right, so
nothing but the missing speed tells. Comparing the first head's best token with the neighbouring tokens tells why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.teacher import forced_passes, root_rows
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.eagle.unroll import unroll
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel

SHIFTS = (-1, 0, 1)
SAMPLE = 8
# A neighbour must be named this often, and this many times as often as the right token.
CLEAR_RATE, CLEAR_RATIO = 0.2, 4.0
CLEAR_LAYER_RATIO = 1.15


@torch.inference_mode()
def top1_by_shift(base: BaseModel, heads: AnyHeads, answers: Sequence[Answer]) -> dict[int, float]:
    """Share of positions at which the first drafted token is the one ``shift`` places after the right one."""
    sample = [answer for answer in answers if len(answer.tokens) > 2][:SAMPLE]
    hits, count = dict.fromkeys(SHIFTS, 0), 0
    aux_layers = heads.aux_layers if isinstance(heads, EagleDraft) else ()
    for index, named in _first_tokens(base, heads, sample, aux_layers):
        text = torch.tensor(sample[index].tokens, device=base.device)
        # Row t is a step whose root is token t; the first drafted token should be token t + 1.
        starts = len(text) - 2
        for shift in SHIFTS:
            hits[shift] += int((named[:starts] == text[1 + shift : 1 + shift + starts]).sum())
        count += starts
    return {shift: hit / max(count, 1) for shift, hit in hits.items()}


@torch.inference_mode()
def top1_by_layers(base: BaseModel, draft: EagleDraft, answers: Sequence[Answer]) -> dict[tuple[int, ...], float]:
    """Share of positions at which the first drafted token is right, for the layers read, one below and one above."""
    sample = [answer for answer in answers if len(answer.tokens) > 2][:SAMPLE]
    shares = {}
    for shift in SHIFTS:
        layers = tuple(layer + shift for layer in draft.aux_layers)
        if not all(0 <= layer < base.num_layers for layer in layers):
            continue
        hits = count = 0
        for index, named in _first_tokens(base, draft, sample, layers):
            text = torch.tensor(sample[index].tokens, device=base.device)
            hits += int((named[:-1] == text[1:]).sum())
            count += len(text) - 1
        shares[layers] = hits / max(count, 1)
    return shares


def _first_tokens(
    base: BaseModel, heads: AnyHeads, answers: Sequence[Answer], aux_layers: Sequence[int]
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each answer the best token int64 [L] at depth 1 of a step rooted at each of its tokens."""
    for forced in forced_passes(base, answers, aux_layers=aux_layers):
        if isinstance(heads, EagleDraft):
            output = next(unroll(heads, forced.following, forced.features, 1))
            named = [heads.target_ids(heads.logits(row).argmax(-1)) for row in output]
        elif isinstance(heads, HydraHeads):
            named = list(heads.logits(heads.ground(forced.hidden, forced.following), 0).argmax(-1))
        else:
            named = [heads.propose(row, 1, 1)[:, 0, 0] for row in forced.hidden]
        for place, index in enumerate(forced.indices):
            yield index, named[place][root_rows(answers[index])]


def layers_hint(shares: dict[tuple[int, ...], float], used: tuple[int, ...]) -> str | None:
    """What to tell the user when neighbouring layers serve the draft far better than those it reads, else None."""
    best = max(shares, key=lambda layers: shares[layers])
    if best == used or shares[best] < CLEAR_RATE or shares[best] < CLEAR_LAYER_RATIO * shares[used]:
        return None
    return (
        f"the draft seems trained on the inputs of layers {','.join(map(str, best))} (first token right at "
        f"{shares[best]:.0%} of positions), not {','.join(map(str, used))} ({shares[used]:.0%}): try --aux-layers"
    )


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
