"""Do the heads guess the token that they should, or a neighbour of it?

Heads that are trained or loaded one position off give valid tokens that are never accepted; the output stays right, so
nothing but the missing speed tells. Comparing the first head's best token with the neighbouring tokens tells why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

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
# Other features must serve this much better than those that are read.
CLEAR_FEATURE_RATIO = 1.15


def alignment_hint(base: BaseModel, heads: AnyHeads, answers: Sequence[Answer]) -> str | None:
    """What to tell the user about heads that would do far better one position or one layer off, else None."""
    hint = shift_hint(top1_by_shift(base, heads, answers))
    if hint is None and isinstance(heads, EagleDraft):
        hint = offset_hint(top1_by_offset(base, heads, answers))
        if hint is None and heads.aux_layers:
            hint = layers_hint(top1_by_layers(base, heads, answers), heads.aux_layers)
        if hint is None and heads.norm is not None:
            hint = feedback_hint(top1_by_feedback(base, heads, answers), heads.config.norm_output)
    return hint


@torch.inference_mode()
def top1_by_shift(base: BaseModel, heads: AnyHeads, answers: Sequence[Answer]) -> dict[int, float]:
    """Share of positions at which the first drafted token is the one ``shift`` places after the right one."""
    sample = [answer for answer in answers if len(answer.tokens) > 2][:SAMPLE]
    hits, count = dict.fromkeys(SHIFTS, 0), 0
    aux_layers = heads.aux_layers if isinstance(heads, EagleDraft | HydraHeads) else ()
    for index, named in _drafted(base, heads, sample, aux_layers):
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
    neighbours = [tuple(layer + shift for layer in draft.aux_layers) for shift in SHIFTS]
    inside = [layers for layers in neighbours if all(0 <= layer < base.num_layers for layer in layers)]
    return {layers: _top1(base, draft, answers, layers) for layers in inside}


@torch.inference_mode()
def top1_by_offset(base: BaseModel, draft: EagleDraft, answers: Sequence[Answer]) -> dict[int, float]:
    """The same where every slot reads the base model's feature of ``offset`` positions later."""
    return {offset: _top1(base, draft, answers, draft.aux_layers, offset=offset) for offset in SHIFTS}


@torch.inference_mode()
def top1_by_feedback(base: BaseModel, draft: EagleDraft, answers: Sequence[Answer]) -> dict[bool, float]:
    """Share of positions at which the second drafted token is right, the first output fed back plain or normed."""
    own, shares = draft.config, {}
    try:
        for normed in (False, True):
            draft.config = replace(own, norm_output=normed)
            shares[normed] = _top1(base, draft, answers, draft.aux_layers, depth=2)
    finally:
        draft.config = own
    return shares


def _top1(
    base: BaseModel,
    draft: EagleDraft,
    answers: Sequence[Answer],
    layers: Sequence[int],
    *,
    offset: int = 0,
    depth: int = 1,
) -> float:
    sample = [answer for answer in answers if len(answer.tokens) > 2][:SAMPLE]
    hits = count = 0
    for index, named in _drafted(base, draft, sample, layers, offset, depth):
        text = torch.tensor(sample[index].tokens, device=base.device)
        hits += int((named[:-depth] == text[depth:]).sum())
        count += len(text) - depth
    return hits / max(count, 1)


def _drafted(
    base: BaseModel,
    heads: AnyHeads,
    answers: Sequence[Answer],
    aux_layers: Sequence[int],
    offset: int = 0,
    depth: int = 1,
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each answer the best token int64 [L] at ``depth`` of a step rooted at each of its tokens.

    Args:
        offset, depth: other than 0 and 1 only for EAGLE drafts.
    """
    for forced in forced_passes(base, answers, aux_layers=aux_layers):
        if isinstance(heads, EagleDraft):
            *_, output = unroll(heads, forced.following, forced.features.roll(-offset, dims=1), depth)
            named = [heads.target_ids(heads.logits(row).argmax(-1)) for row in output]
        elif isinstance(heads, HydraHeads):
            named = list(heads.logits(heads.ground(heads.states(forced.features), forced.following), 0).argmax(-1))
        else:
            named = [heads.propose(row, 1, 1)[:, 0, 0] for row in forced.hidden]
        for place, index in enumerate(forced.indices):
            yield index, named[place][root_rows(answers[index])]


def layers_hint(shares: dict[tuple[int, ...], float], used: tuple[int, ...]) -> str | None:
    """What to tell the user when neighbouring layers serve the draft far better than those it reads, else None."""
    best = max(shares, key=lambda layers: shares[layers])
    if best == used or not _clearly(shares[best], shares[used]):
        return None
    return (
        f"the draft seems trained on the inputs of layers {','.join(map(str, best))} (first token right at "
        f"{shares[best]:.0%} of positions), not {','.join(map(str, used))} ({shares[used]:.0%}): try --aux-layers"
    )


def offset_hint(shares: dict[int, float]) -> str | None:
    """What to tell the user when the features of a neighbouring position serve the draft far better, else None."""
    best = max(shares, key=lambda offset: shares[offset])
    if best == 0 or not _clearly(shares[best], shares[0]):
        return None
    return (
        f"the draft seems trained on features one position {'later' if best > 0 else 'earlier'} (first token right at "
        f"{shares[best]:.0%} of positions, with those it reads at {shares[0]:.0%})"
    )


def feedback_hint(shares: dict[bool, float], used: bool) -> str | None:
    """What to tell the user when the other way of feeding the output back is far better, else None."""
    if not _clearly(shares[not used], shares[used]):
        return None
    return (
        f"the draft seems trained with norm_output {str(not used).lower()} (second token right at "
        f"{shares[not used]:.0%} of positions, as it is read at {shares[used]:.0%}): set it in its config.json"
    )


def _clearly(other: float, own: float) -> bool:
    return other >= CLEAR_RATE and other >= CLEAR_FEATURE_RATIO * own


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
