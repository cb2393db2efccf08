"""The four classic mistakes with EAGLE drafts.

Each leaves the text right and only shortens what is accepted, so each is made here on purpose and must be seen, against
a draft that was trained on a random model's own text.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoding import NO_TREE, answers_of, decode
from tiny_models import prompt_of, tiny_base

from mtp_bench.decode import step as step_module
from mtp_bench.decode.answers import Answer
from mtp_bench.decode.eagle import EagleDrafter
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.models.base import BaseModel
from mtp_bench.profile import alignment
from mtp_bench.profile.alignment import (
    alignment_hint,
    feedback_hint,
    layers_hint,
    offset_hint,
    shift_hint,
    top1_by_feedback,
    top1_by_layers,
    top1_by_offset,
    top1_by_shift,
)
from mtp_bench.topology import chain
from mtp_bench.train.eagle import EagleRecipe, train_eagle
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.texts import collect_texts

LENGTH = 24
RECIPE = EagleRecipe("eagle3", draft_vocab=0, unroll=3, learning_rate=1e-2, epochs=60, batch=512)
LAYERS = (0, 1, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[BaseModel, EagleDraft, list[Answer]]:
    """A base, a draft trained on its text, and that text."""
    folder: Path = tmp_path_factory.mktemp("eagle")
    base = tiny_base()
    prompts = [prompt_of(6, seed) for seed in range(48)]
    answers = answers_of(decode(base, None, NO_TREE, prompts, batch=8, new_tokens=LENGTH))
    texts = collect_texts(base, answers, LAYERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtp_bench.train.eagle.default_aux_layers", lambda layers: LAYERS)
        draft = train_eagle(
            base, texts, texts, RECIPE, log=TrainingLog(folder, 3), checkpoint=folder / "c.pt", evaluations=1
        ).draft
    draft.max_depth = 3
    return base, draft.requires_grad_(False), answers


def tokens_per_step(base: BaseModel, draft: EagleDraft, answers: list[Answer]) -> float:
    generations = decode(base, draft, chain(3), [answer.prompt for answer in answers[:8]], new_tokens=LENGTH)
    assert [g.tokens for g in generations] == [answer.tokens for answer in answers[:8]]
    return 1 + sum(sum(g.accepted) for g in generations) / sum(g.steps for g in generations)


def test_a_trained_draft_is_accepted(trained: Any) -> None:
    base, draft, answers = trained
    assert tokens_per_step(base, draft, answers) > 1.7
    assert shift_hint(top1_by_shift(base, draft, answers)) is None
    assert layers_hint(top1_by_layers(base, draft, answers), draft.aux_layers) is None
    assert offset_hint(top1_by_offset(base, draft, answers)) is None
    assert feedback_hint(top1_by_feedback(base, draft, answers), False) is None
    assert alignment_hint(base, draft, answers) is None


@pytest.mark.parametrize(("offset", "said"), [(1, "one position later"), (-1, "one position earlier")])
def test_features_of_a_neighbouring_position(
    trained: Any, monkeypatch: pytest.MonkeyPatch, offset: int, said: str
) -> None:
    base, draft, answers = trained
    right = alignment.forced_passes

    def displaced(*args: Any, **kwargs: Any) -> Any:
        for forced in right(*args, **kwargs):
            yield forced._replace(features=forced.features.roll(offset, dims=1))

    monkeypatch.setattr(alignment, "forced_passes", displaced)
    shares = top1_by_offset(base, draft, answers)
    assert max(shares, key=lambda key: shares[key]) == offset
    hint = offset_hint(shares)
    assert hint is not None
    assert said in hint


def test_output_fed_back_through_the_norm_by_mistake(trained: Any) -> None:
    base, draft, answers = trained
    shares = top1_by_feedback(base, draft, answers)
    assert not draft.config.norm_output, "the probe leaves the draft as it was"
    # This tiny draft was trained on its plain output, but its outputs are small: the norm hurts it only a little.
    assert shares[False] > shares[True]
    assert feedback_hint({False: 0.5, True: 0.5}, True) is None
    hint = feedback_hint({False: 0.5, True: 0.3}, True)
    assert hint is not None
    assert "norm_output false" in hint


def test_first_token_not_dropped(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base, draft, answers = trained
    right = tokens_per_step(base, draft, answers)
    settled = step_module.Settled

    def undropped(starts: Any, tokens: torch.Tensor, *rest: Any) -> Any:
        return settled(starts, torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1), *rest)

    monkeypatch.setattr(step_module, "Settled", undropped)
    assert tokens_per_step(base, draft, answers) < 0.75 * right


def test_drafted_features_left_in_the_cache(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest settled slot is computed again: the others keep what was drafted for them."""
    base, draft, answers = trained
    right = tokens_per_step(base, draft, answers)
    run = EagleDrafter.run

    def stale(self: Any, cache: Any, tokens: Any, hidden: Any, slots: Any, positions: Any, mask: Any) -> Any:
        before = cache.data.clone()
        output = run(self, cache, tokens, hidden, slots, positions, mask)
        if 1 < tokens.shape[1] <= 4:  # a settling pass of a chain of 3, not a prompt
            cache.data[..., slots[0, 1:], :] = before[..., slots[0, 1:], :]
        return output

    monkeypatch.setattr(EagleDrafter, "run", stale)
    assert tokens_per_step(base, draft, answers) < right


def test_a_wrong_final_norm(trained: Any) -> None:
    base, draft, answers = trained
    right = tokens_per_step(base, draft, answers)
    own = draft.norm.weight.clone()
    # Of another model: a norm left out would show in its gains alone, which so short a training leaves near one.
    draft.norm.weight.copy_(torch.linspace(0, 3, len(own)))
    try:
        assert tokens_per_step(base, draft, answers) < right
    finally:
        draft.norm.weight.copy_(own)


@pytest.mark.parametrize("shift", [1])
def test_an_aux_layer_off_by_one_is_named_by_the_probe(trained: Any, shift: int) -> None:
    base, draft, answers = trained
    right = tokens_per_step(base, draft, answers)
    used = draft.config
    draft.config = replace(used, aux_layers=tuple(layer + shift for layer in LAYERS))
    try:
        assert tokens_per_step(base, draft, answers) < 0.9 * right
        shares = top1_by_layers(base, draft, answers)
        assert max(shares, key=lambda layers: shares[layers]) == LAYERS
        hint = layers_hint(shares, draft.aux_layers)
        assert hint is not None
        assert "inputs of layers 0,1,1" in hint
    finally:
        draft.config = used
