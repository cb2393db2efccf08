"""A whole profile on a tiny model: files, resuming, refusals, and byte-identical repeats and merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import ONEHOT, ToyTokenizer, onehot_base, onehot_heads, random_heads, tiny_base

from mtp_bench.cost import CostTable
from mtp_bench.decode.answers import Answer
from mtp_bench.errors import CheckFailed, InputError
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile import run as run_module
from mtp_bench.profile.alignment import shift_hint, top1_by_shift
from mtp_bench.profile.costs import SweepOptions
from mtp_bench.profile.live import check_live, decode_answers
from mtp_bench.profile.run import ProfileOptions, default_folder, load_answers, run_profile
from mtp_bench.prompts.prompt import Prompt, PromptSet
from mtp_bench.runs import RunFolder
from mtp_bench.topology import StaticTree
from mtp_bench.trace import RankTrace, replay
from mtp_bench.trace.shards import merge_runs

pytestmark = pytest.mark.usefixtures("any_spread_will_do")

QUESTIONS = ("Tell me a story", "Sort a list", "One and one", "Hello", "Who wrote it", "List three", "Say no", "Why")
PROMPTS = PromptSet(
    tuple(
        Prompt(f"p{index}", ("writing", "coding")[index % 2], (text, "And then?")[: 1 + index % 3 // 2])
        for index, text in enumerate(QUESTIONS)
    ),
    name="tests",
    sha256="0" * 64,
)
OPTIONS = ProfileOptions(max_new_tokens=24, batch=3, live_prompts=3)
SWEEP = SweepOptions(rows=(1, 2, 8), contexts=(16,), rounds=2)
FILES = ("acceptance.csv", "answers.jsonl", "trace.npz")


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base(tokenizer=ToyTokenizer())


@pytest.fixture(scope="module")
def heads(base: BaseModel) -> MedusaHeads:
    return random_heads(base, "map")


def profile(
    base: BaseModel,
    heads: MedusaHeads,
    folder: Path,
    options: ProfileOptions = OPTIONS,
    sweep: SweepOptions | None = None,
    prompts: PromptSet = PROMPTS,
) -> RunFolder:
    run = RunFolder(folder)
    run_profile(base, heads, heads.meta, prompts, run, options, sweep, "mtp-bench profile")
    return run


def contents(run: RunFolder) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in FILES}


def test_files_of_a_run(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    run = profile(base, heads, tmp_path / "run", sweep=SWEEP)
    assert sorted(path.name for path in run.path.iterdir()) == sorted([*FILES, "cost.csv", "run.json"])
    trace = RankTrace.load(run.trace)
    answers = load_answers(run, trace)
    assert [len(answer.tokens) for answer in answers] == trace.prompt_lengths.tolist()
    assert trace.categories == tuple(answer.category for answer in answers)
    table = CostTable.from_csv(run.cost)
    assert table.max_rows == 8
    manifest = run.read_manifest()
    assert manifest["kind"] == "profile"
    assert manifest["model"]["sha256"] == base.sha256
    assert manifest["acceptance_rule"] == "greedy"
    assert manifest["first_prompt"]["rendered"] == "u:Tell me a story|"
    assert manifest["live_check"]["exact"] is True
    assert manifest["probe"]["worst"] < 1e-3
    assert manifest["text"]["tokens"] == trace.num_positions
    assert manifest["text"]["trace_sha256"] == trace.digest
    assert manifest["finished"] is not None
    # A reader needs nothing but the standard library.
    assert json.loads(run.manifest.read_text())["prompts"]["count"] == len(QUESTIONS)


def test_same_seed_gives_the_same_bytes(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    first, second = (profile(base, heads, tmp_path / name) for name in ("first", "second"))
    assert contents(first) == contents(second)
    assert first.read_manifest()["key"] == second.read_manifest()["key"]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_merged_shards_equal_one_profile(base: BaseModel, heads: MedusaHeads, tmp_path: Path, count: int) -> None:
    whole = profile(base, heads, tmp_path / "whole")
    shards = [
        profile(base, heads, tmp_path / f"shard{index}", replace(OPTIONS, shard=(index, count)))
        for index in range(count)
    ]
    merged = RunFolder(tmp_path / "merged")
    merge_runs(list(reversed(shards)), merged)
    assert merged.trace.read_bytes() == whole.trace.read_bytes()
    assert merged.acceptance.read_bytes() == whole.acceptance.read_bytes()
    assert load_answers(merged, RankTrace.load(merged.trace)) == load_answers(whole, RankTrace.load(whole.trace))
    own, other = merged.read_manifest(), whole.read_manifest()
    assert own["text"] == pytest.approx(other["text"], abs=0.1)
    assert own["options"] == other["options"]


def test_merging_keeps_the_order_of_many_turns(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    prompts = replace(PROMPTS, prompts=(Prompt("a/2", "writing", ("Q",) * 11), Prompt("b", "coding", ("R", "S"))))
    options = replace(OPTIONS, max_new_tokens=17)
    whole = profile(base, heads, tmp_path / "whole", options, prompts=prompts)
    shards = [
        profile(base, heads, tmp_path / str(index), replace(options, shard=(index, 2)), prompts=prompts)
        for index in range(2)
    ]
    merged = RunFolder(tmp_path / "merged")
    assert merge_runs(shards, merged).prompt_ids[8:12] == ("a/2/9", "a/2/10", "a/2/11", "b")
    assert merged.trace.read_bytes() == whole.trace.read_bytes()


def test_merging_needs_every_shard_once(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    shards = [profile(base, heads, tmp_path / f"s{index}", replace(OPTIONS, shard=(index, 2))) for index in range(2)]
    out = RunFolder(tmp_path / "out")
    for given in (shards[:1], [shards[0], shards[0]], [*shards, shards[1]]):
        with pytest.raises(InputError):
            merge_runs(given, out)
    other = profile(base, heads, tmp_path / "other", replace(OPTIONS, shard=(1, 2), max_new_tokens=20))
    with pytest.raises(InputError, match="another profile"):
        merge_runs([shards[0], other], out)


@pytest.mark.parametrize("lost", [("trace.npz",), ("cost.csv",), ("acceptance.csv", "trace.npz", "cost.csv"), FILES])
def test_resuming_after_losing_files(
    base: BaseModel, heads: MedusaHeads, tmp_path: Path, lost: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = profile(base, heads, tmp_path / "run", sweep=SWEEP)
    before, costs = contents(run), run.cost.read_bytes()
    for name in lost:
        (run.path / name).unlink()
    if "answers.jsonl" not in lost:
        monkeypatch.setattr("mtp_bench.decode.answers.Decoder", _forbidden("the text is there already"))
    profile(base, heads, run.path, sweep=SWEEP)
    assert contents(run) == before
    assert (run.cost.read_bytes() == costs) == ("cost.csv" not in lost)


def _forbidden(reason: str) -> Callable[..., None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(reason)

    return refuse


def test_resuming_after_a_kill(
    base: BaseModel, heads: MedusaHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = profile(base, heads, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "record_trace", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            profile(base, heads, tmp_path / "killed")
    killed = RunFolder(tmp_path / "killed")
    assert killed.read_manifest()["finished"] is None
    assert not killed.trace.exists()
    profile(base, heads, killed.path)
    assert contents(killed) == contents(whole)
    assert killed.read_manifest()["finished"] is not None


def _interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def test_a_folder_with_another_profile_is_refused(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    run = profile(base, heads, tmp_path / "run")
    before = contents(run), run.manifest.read_bytes()
    other_prompts = replace(PROMPTS, sha256="1" * 64)
    with pytest.raises(InputError, match="another model, heads, prompts or settings"):
        profile(base, heads, run.path, replace(OPTIONS, top_k=5))
    with pytest.raises(InputError, match="another model"):
        profile(base, heads, run.path, prompts=other_prompts)
    with pytest.raises(InputError, match="another model"):
        profile(replace(base, sha256="other"), heads, run.path)
    assert (contents(run), run.manifest.read_bytes()) == before


def test_heads_that_never_agree_fail(tmp_path: Path) -> None:
    base = onehot_base(tokenizer=ToyTokenizer(ONEHOT))
    with pytest.raises(CheckFailed, match="shifted by one position") as caught:
        profile(base, onehot_heads(3, shift=-1), tmp_path / "run", replace(OPTIONS, top_k=2))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("shift", "expected"), [(-1, "before"), (0, None), (1, "after")])
def test_shift_of_heads(shift: int, expected: str | None) -> None:
    base = onehot_base()
    answers = [Answer("x", "test", [3], [(4 + index) % ONEHOT for index in range(20)], 0, "length")]
    rates = top1_by_shift(base, onehot_heads(2, shift=shift), answers)
    assert rates == {-1: 0.0, 0: 0.0, 1: 0.0} | {shift: 1.0}
    hint = shift_hint(rates)
    assert (hint is None) == (expected is None)
    assert expected is None or f"the token {expected} the one it should at 100% of positions" in str(hint)


def test_heads_that_are_merely_bad_are_not_called_shifted() -> None:
    assert shift_hint({-1: 0.1, 0: 0.0, 1: 0.05}) is None
    assert shift_hint({-1: 0.5, 0: 0.3, 1: 0.0}) is None
    assert top1_by_shift(onehot_base(), onehot_heads(2), []) == {-1: 0.0, 0: 0.0, 1: 0.0}


def test_perfect_heads_pass(tmp_path: Path) -> None:
    base, heads = onehot_base(tokenizer=ToyTokenizer(ONEHOT)), onehot_heads(3)
    run = profile(base, heads, tmp_path / "run", replace(OPTIONS, top_k=2, max_new_tokens=17))
    chain = StaticTree.from_paths([(0,), (0, 0), (0, 0, 0)])
    assert replay(RankTrace.load(run.trace), chain).tokens_per_step == 4.0


def test_fp32_replay_that_differs_from_live_decoding_fails(
    base: BaseModel, heads: MedusaHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = run_module.record_trace

    def flattering(*args, **kwargs) -> RankTrace:  # type: ignore[no-untyped-def]
        trace = honest(*args, **kwargs)
        ranks = trace.ranks.copy()
        ranks[trace.tokens_left > 1, 0] = 0
        return replace(trace, ranks=ranks)

    monkeypatch.setattr(run_module, "record_trace", flattering)
    with pytest.raises(CheckFailed, match="live decoding and replay must agree"):
        profile(base, heads, tmp_path / "run")


def test_live_check_counts(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    run = profile(base, heads, tmp_path / "run")
    trace = RankTrace.load(run.trace)
    answers = load_answers(run, trace)
    tree = StaticTree.from_paths([(0,), (1,), (2,), (0, 0)])
    live = check_live(base, heads, tree, trace, answers[2:5])
    assert live.exact
    assert live.live_steps == live.replayed_steps == sum(replay(trace, tree).steps[2:5])
    forged = replace(answers[2], tokens=[*answers[2].tokens[:-1], (answers[2].tokens[-1] + 1) % 24])
    spoiled = check_live(base, heads, tree, trace, [forged, answers[3]])
    assert (spoiled.prompts, spoiled.same_text, spoiled.exact) == (2, 1, False)


def test_live_check_compares_steps_as_far_as_the_texts_agree(
    base: BaseModel, heads: MedusaHeads, tmp_path: Path
) -> None:
    run = profile(base, heads, tmp_path / "run")
    trace = RankTrace.load(run.trace)
    answers = load_answers(run, trace)
    tree = StaticTree.from_paths([(0,), (1,), (2,), (0, 0)])
    answer = max(answers, key=lambda one: len(one.tokens))
    whole = check_live(base, heads, tree, trace, [answer])
    assert whole.agreeing_tokens == whole.tokens == len(answer.tokens)
    steps = []
    for at in range(1, len(answer.tokens)):
        # Live decoding gives the true text; the record, whose ranks are the true text's, is forged from ``at`` on.
        forged = replace(answer, tokens=[*answer.tokens[:at], *((token + 1) % 24 for token in answer.tokens[at:])])
        live = check_live(base, heads, tree, trace, [forged])
        assert (live.same_text, live.agreeing_tokens, live.exact) == (0, at, False)
        assert live.same_steps == 1
        assert live.live_steps == live.replayed_steps
        steps.append(live.live_steps)
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] in (whole.live_steps, whole.live_steps - 1)
    ranks = trace.ranks.copy()
    ranks[:, 0] = -1
    nothing_accepted = check_live(base, heads, tree, replace(trace, ranks=ranks), [forged])
    assert nothing_accepted.replayed_steps == len(answer.tokens) - 2 > nothing_accepted.live_steps
    assert nothing_accepted.same_steps == 0


def test_answers_are_decoded_in_their_order(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    run = profile(base, heads, tmp_path / "run")
    answers = load_answers(run, RankTrace.load(run.trace))
    for batch in (1, 3):
        generations = decode_answers(base, heads, StaticTree.from_paths([(0,), (1,)]), answers, batch=batch)
        assert [g.request.key for g in generations] == [answer.id for answer in answers]
        assert [g.tokens for g in generations] == [answer.tokens for answer in answers]


def test_text_of_another_trace_is_refused(base: BaseModel, heads: MedusaHeads, tmp_path: Path) -> None:
    run = profile(base, heads, tmp_path / "run")
    trace = RankTrace.load(run.trace)
    run.answers.write_text("\n".join(run.answers.read_text().splitlines()[:-2]) + "\n")
    with pytest.raises(InputError, match="do not belong together"):
        load_answers(run, trace)
    run.answers.unlink()
    with pytest.raises(InputError, match="no text"):
        load_answers(run, trace)


def test_loops_only_is_an_error(tmp_path: Path) -> None:
    base = onehot_base([token ^ 1 for token in range(ONEHOT)], ToyTokenizer(ONEHOT))
    with pytest.raises(InputError, match="does not loop"):
        profile(base, onehot_heads(3), tmp_path / "run", replace(OPTIONS, max_new_tokens=64))


@pytest.mark.parametrize(
    ("name", "shard", "expected"),
    [
        ("smollm2-135m", (0, 1), "smollm2-135m-cpu-fp32"),
        ("org/Model-7B", (0, 1), "Model-7B-cpu-fp32"),
        ("folder/weights.gguf", (1, 4), "weights-cpu-fp32-shard1of4"),
        ("org/Llama-3.1-8B", (0, 1), "Llama-3.1-8B-cpu-fp32"),
    ],
)
def test_default_folder(base: BaseModel, name: str, shard: tuple[int, int], expected: str) -> None:
    assert default_folder(Path("results"), replace(base, name=name), shard) == Path("results") / expected
