"""EAGLE training: what it reads, that it learns, resumes, and writes what loads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import ONEHOT, onehot_base, tiny_base
from tiny_training import cycle_answers

from mtp_bench.decode.answers import Answer
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.eagle.checkpoint import save_eagle
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.eagle.unroll import unroll
from mtp_bench.heads.load import load_heads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace
from mtp_bench.train.eagle import EagleRecipe, default_aux_layers, eagle_accuracy, fresh_eagle, train_eagle
from mtp_bench.train.log import TrainingLog
from mtp_bench.train.texts import Texts, cached_texts, collect_texts, shuffled, text_groups

RECIPE = EagleRecipe("eagle3", draft_vocab=0, unroll=3, learning_rate=1e-2, epochs=40, batch=64, noise=0.0)
ANSWERS = [Answer("a", "math", [1, 2, 3], [4, 5, 6, 7], 0, "length"), Answer("b", "math", [9], [8, 7], 0, "eos")]


def facts(base: BaseModel) -> BaseFacts:
    return BaseFacts(
        base.hidden_size, base.vocab_size, base.name, lambda: base.lm_head_weight, lambda: base.embedding_weight,
        num_layers=base.num_layers, weights_hash=base.sha256,
    )  # fmt: skip


def cycle_texts(base: BaseModel, variant: str) -> tuple[Texts, Texts]:
    layers = default_aux_layers(base.num_layers) if variant == "eagle3" else ()
    answers = cycle_answers()
    return collect_texts(base, answers[4:], layers), collect_texts(base, answers[:4], layers)


def test_collected_features_are_the_inputs_of_the_layers() -> None:
    base = tiny_base()
    texts = collect_texts(base, ANSWERS, (0, 2))
    assert texts.offsets.tolist() == [0, 6, 8]
    assert texts.roots.tolist() == [2, 0]
    assert texts.answer_positions == 6
    for index, answer in enumerate(ANSWERS):
        text = torch.tensor([answer.prompt + answer.tokens])
        states = base.model(text[:, :-1], output_hidden_states=True).hidden_states
        rows = slice(int(texts.offsets[index]), int(texts.offsets[index + 1]))
        expected = torch.cat([states[0], states[2]], dim=-1)[0]
        torch.testing.assert_close(texts.features[rows], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(texts.hidden[rows], states[-1][0], atol=1e-4, rtol=1e-4)
        assert texts.following[rows].tolist() == text[0, 1:].tolist()


def test_a_batch_is_padded_and_knows_its_answers() -> None:
    texts = collect_texts(tiny_base(), ANSWERS, ())
    batch = texts.batch([0, 1])
    assert batch.following.tolist() == [[2, 3, 4, 5, 6, 7], [8, 7, 0, 0, 0, 0]]
    assert batch.answered.tolist() == [[False, False, True, True, True, True], [True, True] + [False] * 4]
    assert batch.features is batch.hidden


def test_unroll_does_not_depend_on_padding_or_on_the_rest_of_the_batch() -> None:
    base = tiny_base()
    texts = collect_texts(base, ANSWERS, (0, 1, 2))
    draft = fresh_eagle(base, replace(RECIPE, seed=3), texts)
    whole = texts.batch([0, 1])
    alone = texts.batch([1])
    for both, one in zip(
        unroll(draft, whole.following, whole.features, 2),
        unroll(draft, alone.following, alone.features, 2),
        strict=True,
    ):
        torch.testing.assert_close(both[1, :1], one[0, :1])


def test_every_epoch_sees_every_group_once_and_a_resumed_run_the_same() -> None:
    texts = collect_texts(tiny_base(), cycle_answers(12), ())
    groups = text_groups(texts, 64)
    assert sorted(index for group in groups for index in group) == list(range(12))
    order = list(shuffled(groups, 1, 0, 2 * len(groups)))
    assert sorted(map(tuple, order[: len(groups)])) == sorted(map(tuple, groups))
    assert order[3:] == list(shuffled(groups, 1, 3, 2 * len(groups)))


@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_a_draft_learns_a_closed_form_text_and_loads_back(variant: str, tmp_path: Path) -> None:
    base = onehot_base()
    train, held_out = cycle_texts(base, variant)
    recipe = replace(RECIPE, variant=variant)
    trained = train_eagle(
        base, train, held_out, recipe, log=TrainingLog(tmp_path, 3), checkpoint=tmp_path / "c.pt", evaluations=2
    )
    assert [one.top[1] > 0.95 for one in trained.held_out] == [True] * 3
    save_eagle(trained.draft, tmp_path / "draft", {"base_model_name_or_path": base.name})
    again = load_heads(tmp_path / "draft", base=facts(base)).heads
    assert isinstance(again, EagleDraft)
    again.max_depth = 3
    trace = record_trace(base, again, cycle_answers(4), top_k=4)
    assert (trace.ranks[:8, 0] == 0).mean() > 0.9
    # Training that goes on from it begins where it stands, not where a fresh draft does.
    written = {name: tensor.clone() for name, tensor in again.state_dict().items()}
    on = train_eagle(
        base, train, held_out, replace(recipe, epochs=0.2, learning_rate=1e-4, muon_rate=0.0, start="it"),
        log=TrainingLog(tmp_path / "on", 3), checkpoint=tmp_path / "on.pt", start=again,
    )  # fmt: skip
    assert [one.top[1] > 0.95 for one in on.held_out] == [True] * 3
    moved = [not torch.equal(written[name], tensor) for name, tensor in on.draft.state_dict().items()]
    assert any(moved)


def test_accuracy_is_what_the_trace_says(tmp_path: Path) -> None:
    base = tiny_base()
    answers = cycle_answers(6)
    texts = collect_texts(base, answers, default_aux_layers(base.num_layers))
    draft = fresh_eagle(base, replace(RECIPE, draft_vocab=10), texts)
    draft.max_depth = 3
    trace = record_trace(base, draft, answers, top_k=10)
    for one in eagle_accuracy(draft, texts, 3):
        ranks = trace.ranks[:, one.head]
        # Past the end of an answer there is no true token: a trace says -1 there, the accuracy leaves it out.
        assert one.n == sum(max(0, len(a.tokens) - 1 - one.head) for a in answers)
        assert one.top[5] == pytest.approx(((ranks >= 0) & (ranks < 5)).sum() / one.n)


def test_stopped_training_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    base = onehot_base()
    texts = cycle_texts(base, "eagle3")
    recipe = replace(RECIPE, epochs=4)

    class Stop(Exception):
        pass

    def stop(step: int, steps: int, loss: float) -> None:
        if step == steps // 2 + 1:
            raise Stop

    whole = train_eagle(
        base, *texts, recipe=recipe, log=TrainingLog(tmp_path / "a", 3), checkpoint=tmp_path / "a.pt", evaluations=4
    )
    with pytest.raises(Stop):
        train_eagle(
            base, *texts, recipe=recipe, log=TrainingLog(tmp_path / "b", 3), checkpoint=tmp_path / "b.pt",
            evaluations=4, on_step=stop,
        )  # fmt: skip
    resumed = train_eagle(
        base, *texts, recipe=recipe, log=TrainingLog(tmp_path / "b", 3), checkpoint=tmp_path / "b.pt", evaluations=4
    )
    for one, other in zip(whole.draft.parameters(), resumed.draft.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (tmp_path / "a" / "loss.csv").read_bytes() == (tmp_path / "b" / "loss.csv").read_bytes()


def test_texts_are_kept_for_a_second_run(tmp_path: Path) -> None:
    base, path = tiny_base(), tmp_path / "texts.safetensors"
    first = cached_texts(path, base, (ANSWERS[:1], ANSWERS[1:]), (0, 1))
    written = path.stat().st_mtime_ns
    again = cached_texts(path, base, (ANSWERS[:1], ANSWERS[1:]), (0, 1))
    assert path.stat().st_mtime_ns == written
    assert torch.equal(first[0].features, again[0].features)
    cached_texts(path, base, (ANSWERS[:1], ANSWERS[1:]), (1, 2))
    assert path.stat().st_mtime_ns != written


def test_draft_vocabulary_is_of_the_answers_only() -> None:
    base = onehot_base()
    texts = collect_texts(base, [Answer("a", "t", [9, 9, 9, 9], [1, 2, 1, 3], 0, "length")], (0, 1, 2))
    draft = fresh_eagle(base, replace(RECIPE, draft_vocab=2), texts)
    assert draft.token_map is not None
    assert len(draft.token_map) == 2
    assert 1 in draft.token_map.tolist()
    assert draft.token_map.max() < ONEHOT
    assert 9 not in draft.token_map.tolist()
