"""Training: the right targets, a loss that learns, resume, files that load back, two sets of prompts that never mix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import ONEHOT, ToyTokenizer, onehot_base, tiny_base
from tiny_training import cycle_answers

from mtp_bench.decode.answers import Answer
from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.load import load_heads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace
from mtp_bench.train.accuracy import accuracy
from mtp_bench.train.features import PAST_END, Features, cached_features, collect, targets_of
from mtp_bench.train.log import HELD_OUT_FILE, LOSS_FILE, TrainingLog
from mtp_bench.train.medusa import MedusaRecipe, draft_vocabulary, scale_inputs, train_medusa
from mtp_bench.train.run import TrainingPlan, _split, run_training

RECIPE = MedusaRecipe(num_heads=3, learning_rate=3e-2, epochs=30, batch=64, lm_head="shared")


def features_of(base: BaseModel, count: int = 24) -> tuple[Features, Features]:
    answers = cycle_answers(count)
    return collect(base, answers[4:], 3), collect(base, answers[:4], 3)


def test_targets_are_the_following_tokens_and_end_with_the_text() -> None:
    targets = targets_of([10, 11, 12], 2)
    assert targets.tolist() == [[11, 12], [12, PAST_END], [PAST_END, PAST_END]]


def test_collected_states_are_those_a_step_drafts_from() -> None:
    base = tiny_base()
    answers = [Answer("a", "math", [1, 2, 3], [4, 5, 6, 7], 0, "length"), Answer("b", "math", [9], [8, 7], 0, "eos")]
    features = collect(base, answers, 2)
    assert len(features) == 6
    for index, answer in enumerate(answers):
        text = torch.tensor([answer.prompt + answer.tokens])
        hidden = base.model(text, output_hidden_states=True).hidden_states[-1][0]
        rows = (features.answer == index).nonzero()[:, 0]
        for t, row in enumerate(rows.tolist()):
            torch.testing.assert_close(features.states[row], hidden[len(answer.prompt) - 1 + t], atol=1e-4, rtol=1e-4)


def test_cached_features_are_reused_and_tied_to_the_text(tmp_path: Path) -> None:
    base, answers = onehot_base(), cycle_answers(6)
    path = tmp_path / "features.safetensors"
    calls: list[int] = []
    first = cached_features(path, base, answers[2:], answers[:2], 3, on_progress=calls.append)
    assert sum(calls) == 120
    again = cached_features(path, base, answers[2:], answers[:2], 3, on_progress=calls.append)
    assert sum(calls) == 120
    assert torch.equal(first[0].states, again[0].states)
    other = [replace(answers[2], tokens=answers[2].tokens[:5]), *answers[3:]]
    assert len(cached_features(path, base, other, answers[:2], 3)[0]) == 65
    path.write_bytes(b"damaged")
    assert len(cached_features(path, base, answers[2:], answers[:2], 3)[0]) == 80


@pytest.mark.parametrize("scaled", [True, False])
def test_training_reaches_perfect_heads_on_a_predictable_model(tmp_path: Path, scaled: bool) -> None:
    base = onehot_base()
    train, held_out = features_of(base)
    before = MedusaHeads.fresh(num_heads=3, num_layers=1, base_lm_head_weight=base.lm_head_weight, lm_head="shared")
    assert accuracy(before, held_out)[0].top[1] < 0.2
    log = TrainingLog(tmp_path, 3)
    recipe = replace(RECIPE, scale_inputs=scaled)
    trained = train_medusa(base, train, held_out, recipe, log=log, checkpoint=tmp_path / "c.pt")
    assert [one.top[1] for one in trained.held_out] == [1.0, 1.0, 1.0]
    assert [one.n for one in trained.held_out] == [76, 72, 68]
    assert not hasattr(trained.heads, "parametrizations")
    # The figures are those of decoding: with such heads every draft of the true path is at rank 0.
    trace = record_trace(base, trained.heads, cycle_answers(4))
    assert (trace.ranks[:16] == 0).all()
    assert (tmp_path / LOSS_FILE).read_text().startswith("step,tokens,loss,loss_head0,loss_head1,loss_head2,")
    assert (tmp_path / HELD_OUT_FILE).read_text().startswith("tokens_seen,head,top1,top2,top3,top5,top10,n")


def test_scaled_inputs_are_another_spelling_of_the_same_heads() -> None:
    base = onehot_base()
    train, _ = features_of(base, 8)
    heads = MedusaHeads.fresh(num_heads=2, num_layers=2, base_lm_head_weight=base.lm_head_weight, lm_head="own", seed=3)
    states = torch.randn(50, ONEHOT) * torch.logspace(-2, 2, ONEHOT)
    before = heads.all_logits(states)
    scale_inputs(heads, states)
    torch.testing.assert_close(heads.all_logits(states), before, rtol=1e-4, atol=1e-4)
    assert len(train) > 0


def test_a_stopped_training_resumes_to_the_same_heads(tmp_path: Path) -> None:
    base = onehot_base()
    train, held_out = features_of(base)
    recipe = replace(RECIPE, epochs=3)
    whole = train_medusa(base, train, held_out, recipe, log=TrainingLog(tmp_path, 3), checkpoint=tmp_path / "a.pt")

    class Killed(Exception):
        pass

    def kill(step: int, steps: int, loss: float) -> None:
        if step == steps - 3:
            raise Killed

    folder = tmp_path / "resumed"
    with pytest.raises(Killed):
        train_medusa(
            base, train, held_out, recipe, log=TrainingLog(folder, 3), checkpoint=folder / "a.pt", on_step=kill
        )
    resumed = train_medusa(base, train, held_out, recipe, log=TrainingLog(folder, 3), checkpoint=folder / "a.pt")
    assert torch.equal(whole.heads.block_weight, resumed.heads.block_weight)
    assert (tmp_path / LOSS_FILE).read_text() == (folder / LOSS_FILE).read_text()
    assert (tmp_path / HELD_OUT_FILE).read_text() == (folder / HELD_OUT_FILE).read_text()


def test_the_base_model_is_frozen(tmp_path: Path) -> None:
    base = onehot_base()
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    train, held_out = features_of(base, 8)
    train_medusa(
        base, train, held_out, replace(RECIPE, epochs=1, lm_head="base"), log=TrainingLog(tmp_path, 3),
        checkpoint=tmp_path / "c.pt",
    )  # fmt: skip
    assert all(torch.equal(before[name], tensor) for name, tensor in base.model.state_dict().items())


def test_draft_vocabulary_is_the_most_frequent_tokens() -> None:
    targets = torch.tensor([[5, 1], [5, 1], [7, 1], [7, 1], [7, 1], [2, 1], [PAST_END, PAST_END]])
    features = Features(torch.zeros(7, 4), targets, torch.zeros(7, dtype=torch.int64))
    assert draft_vocabulary(features, 2, 10).tolist() == [5, 7]
    assert draft_vocabulary(features, 9, 10).tolist() == [2, 5, 7]
    assert draft_vocabulary(features, 0, 10) is None


def test_decay_weighs_later_heads_less(tmp_path: Path) -> None:
    base = onehot_base()
    train, held_out = features_of(base, 8)
    losses = {}
    for decay in (1.0, 0.5):
        recipe = replace(RECIPE, decay=decay, epochs=0.1)
        folder = tmp_path / str(decay)
        train_medusa(base, train, held_out, recipe, log=TrainingLog(folder, 3), checkpoint=folder / "c.pt")
        row = (folder / LOSS_FILE).read_text().splitlines()[1].split(",")
        losses[decay] = [float(value) for value in row[2:6]]
    for decay, (total, *heads) in losses.items():
        assert total == pytest.approx(sum(decay**k * one for k, one in enumerate(heads)), abs=1e-3)


def test_no_text_is_an_error(tmp_path: Path) -> None:
    base = onehot_base()
    empty = Features(torch.zeros(0, ONEHOT), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InputError, match="no text"):
        train_medusa(base, empty, empty, RECIPE, log=TrainingLog(tmp_path, 3), checkpoint=tmp_path / "c.pt")


def test_held_out_conversations_are_whole_and_disjoint() -> None:
    answers = [Answer(f"p{i}{turn}", "math", [1], [2, 3], 0, "eos") for i in range(60) for turn in ("", "/2")]
    train, held_out = _split(answers, None)
    names = [{answer.id.split("/")[0] for answer in part} for part in (train, held_out)]
    assert not names[0] & names[1]
    assert len(held_out) == 6
    assert len(train) + len(held_out) == 120
    assert sum(len(answer.tokens) for answer in _split(answers, 10)[0]) == 10


def test_a_whole_run_writes_heads_that_load_back(tmp_path: Path) -> None:
    base = onehot_base(tokenizer=ToyTokenizer(ONEHOT))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"count from {chr(97 + i)}" for i in range(16)) + "\n")
    plan = TrainingPlan(
        out=tmp_path / "heads", answers=(), prompts=str(prompts), num_prompts=0, self_written=0,
        limit=None, max_new_tokens=24,
        max_tokens=None, batch=4, raw=False, layout="vllm", store_base_rows=False,
    )  # fmt: skip
    record = run_training(base, replace(RECIPE, epochs=20), plan)
    facts = BaseFacts(ONEHOT, ONEHOT, base.name, lambda: base.lm_head_weight, weights_hash=base.sha256)
    loaded = load_heads(plan.out, base=facts, dtype=torch.float32, device=torch.device("cpu"))
    assert loaded.warnings == ()
    assert loaded.info.facts["training_record_sha256"]
    assert json.loads((plan.out / "training.json").read_text()) == record
    assert record["text"]["answers_cut_at_a_loop"] == 0
    assert record["held_out"][0]["top1"] == 1.0
    for name in (LOSS_FILE, HELD_OUT_FILE, "training.png"):
        assert (plan.out / name).is_file()
    # Training that goes on from them begins where they stand.
    assert isinstance(loaded.heads, MedusaHeads)
    before = loaded.heads.block_weight.detach().clone()
    later = replace(RECIPE, epochs=0.5, learning_rate=1e-4, muon_rate=1e-4, start=loaded.info.hash)
    again = run_training(base, later, replace(plan, out=tmp_path / "on"), loaded.heads)
    assert again["recipe"]["start"] == loaded.info.hash
    assert again["held_out"][0]["top1"] == 1.0
    assert not torch.equal(before, loaded.heads.block_weight)
    # The answers are the base model's own.
    lines = (plan.work / "answers.jsonl").read_text().splitlines()[1:]
    answer = json.loads(lines[0])
    assert answer["tokens"] == [(answer["prompt"][-1] + 1 + i) % ONEHOT for i in range(24)]
