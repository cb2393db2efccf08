"""The race: the truly fastest wins, losers stop early, ties go to the smaller, drift is everyone's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_decoding import Simulation, entrants

from mtp_bench.errors import InputError
from mtp_bench.search.race.run import (
    FINISHED,
    NOT_LOSSLESS,
    SLOWER,
    Entrant,
    Lap,
    Race,
    RaceRules,
    balanced_order,
    run_race,
)
from mtp_bench.search.race.verdict import Verdict, decide
from mtp_bench.search.race.wilcoxon import wilcoxon_losers

NODES = {"none": 0, "a": 3, "b": 7, "c": 15, "d": 31, "e": 63}
CLEAR = {"none": 100.0, "a": 140.0, "b": 150.0, "c": 165.0, "d": 145.0, "e": 120.0}
PROMPTS = 18


def race(speeds: dict[str, float], seed: int, prompts: int = PROMPTS, **of_simulation: float) -> tuple[Race, Verdict]:
    simulation = Simulation(speeds, prompts, seed, horizon=prompts * len(speeds), **of_simulation)  # type: ignore[arg-type]
    found = run_race(entrants(NODES), range(prompts), simulation, RaceRules(seed=seed))
    return found, decide(found)


def signed_rank_p(differences: np.ndarray) -> float:
    """One-sided exact p-value by counting all 2^n signs: the test's definition."""
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1
    seen = ranks[differences > 0].sum()
    sums = [np.dot(ranks, signs) for signs in product((0, 1), repeat=len(ranks))]
    return float(np.mean([one >= seen for one in sums]))


def test_the_pruner_is_the_signed_rank_test_against_the_leader() -> None:
    agreed = {True: 0, False: 0}
    for seed in range(60):
        generator = np.random.default_rng(seed)
        fast = generator.normal(10, 1, 9)
        slow = fast + generator.normal(0.3, 0.5, 9)
        values = {"fast": dict(enumerate(fast.tolist())), "slow": dict(enumerate(slow.tolist()))}
        if slow.mean() < fast.mean():
            continue
        leader, losers = wilcoxon_losers(values, 0.1, 2)
        assert leader == "fast"
        lost = signed_rank_p(slow - fast) < 0.1
        assert losers == (["slow"] if lost else [])
        agreed[lost] += 1
    assert min(agreed.values()) > 5


def test_nobody_is_stopped_before_the_startup_prompts() -> None:
    values = {"fast": dict.fromkeys(range(5), 1.0), "slow": {p: 2.0 + p for p in range(5)}}
    assert wilcoxon_losers(values, 0.1, 5) == ("fast", ["slow"])
    assert wilcoxon_losers(values, 0.1, 6) == ("fast", [])


def test_the_truly_fastest_wins_and_losers_stop_early() -> None:
    races = [race(CLEAR, seed) for seed in range(40)]
    assert sum(verdict.winner == "c" for _, verdict in races) >= 39
    assert all(verdict.clear for _, verdict in races if verdict.winner == "c")
    most = PROMPTS * len(NODES)
    saved = [1 - found.decodes / most for found, _ in races]
    assert np.mean(saved) > 0.35
    for found, _ in races:
        assert found.outcomes["none"] == FINISHED
        assert len(found.laps["e"]) < PROMPTS
        assert found.outcomes["e"] == SLOWER


def test_drift_biases_nobody_because_laps_are_interleaved() -> None:
    """The machine halves its speed during the race; one candidate after the other, the first would win."""
    wins = [race(CLEAR, seed, drift=1.0)[1].winner for seed in range(40)]
    assert wins.count("c") >= 38
    simulation = Simulation(CLEAR, PROMPTS, drift=1.0, horizon=PROMPTS * len(CLEAR))
    in_turn = {name: sum(simulation.seconds(name, prompt) for prompt in range(PROMPTS)) for name in CLEAR}
    assert min(in_turn, key=lambda name: in_turn[name]) != "c"


def test_ties_go_to_the_smaller_tree() -> None:
    speeds = {"none": 100.0, "a": 130.0, "b": 165.0, "c": 165.0, "d": 165.0, "e": 120.0}
    verdicts = [race(speeds, seed)[1] for seed in range(40)]
    winners = [one.winner for one in verdicts]
    assert winners.count("b") >= 32
    assert winners.count("b") + winners.count("c") == 40
    assert all("b" in one.tied for one in verdicts if one.winner == "b")


def test_equal_laps_are_a_tie_that_the_smallest_wins() -> None:
    laps = {name: Lap(64, 32, 1.0) for name in NODES}
    found = run_race(entrants(NODES), range(10), lambda prompt, names: {name: laps[name] for name in names})
    verdict = decide(found)
    assert set(found.outcomes.values()) == {FINISHED}
    assert verdict.winner == "none"
    assert set(verdict.tied) == set(NODES)
    assert not verdict.clear
    assert "smallest" in verdict.rule
    assert verdict.ratio is not None
    assert verdict.ratio.bounds == (1.0, 1.0)


def test_a_clear_winner_beats_the_runner_up_by_the_paired_interval() -> None:
    speeds = {"none": 100.0, "a": 101.0, "b": 102.0, "c": 150.0, "d": 140.0, "e": 103.0}
    found, verdict = race(speeds, 3, own_spread=0.01, noise=0.005, prompts=6)  # too few to stop anybody
    assert verdict.winner == verdict.fastest == "c"
    assert verdict.runner_up == "d"
    assert verdict.ratio is not None
    assert verdict.ratio.value == pytest.approx(140 / 150, rel=0.01)
    assert verdict.ratio.high < 1
    assert found.tokens_per_s("c") == pytest.approx(150, rel=0.01)


def test_plain_decoding_can_win() -> None:
    speeds = dict(zip(NODES, (100.0, 80.0, 85.0, 70.0, 60.0, 50.0), strict=True))
    found, verdict = race(speeds, 0)
    assert verdict.winner == "none"
    assert verdict.clear
    assert verdict.runner_up is not None  # stopped early, as all are
    assert found.decodes < PROMPTS * len(NODES) / 2


def test_a_smaller_tree_is_stopped_only_when_the_interval_says_so() -> None:
    """The ranks are against it on 13 prompts of 14, but one on which it shines leaves the pooled speeds open."""
    seconds = {"quirky": [0.5] + [1.05] * 13, "steady": [1.0] * 14}

    def heat(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        return {name: Lap(64, 32, seconds[name][prompt]) for name in names}

    small = run_race([Entrant("quirky", 7), Entrant("steady", 15)], range(14), heat)
    assert small.outcomes == {"quirky": FINISHED, "steady": FINISHED}
    assert decide(small).winner == "quirky"
    large = run_race([Entrant("quirky", 15), Entrant("steady", 7)], range(14), heat)
    assert large.outcomes == {"quirky": SLOWER, "steady": FINISHED}


def test_who_is_not_lossless_is_out_at_once_and_cannot_win() -> None:
    simulation = Simulation({**CLEAR, "c": 300.0}, PROMPTS)

    def heat(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        laps = simulation(prompt, names)
        if prompt == 2 and "c" in laps:
            laps["c"] = Lap(laps["c"].tokens, laps["c"].steps, laps["c"].seconds, diverged=True, lossless=False)
        return laps

    found = run_race(entrants(NODES), range(PROMPTS), heat)
    assert found.outcomes["c"] == NOT_LOSSLESS
    assert len(found.laps["c"]) == 3
    verdict = decide(found)
    assert verdict.winner == verdict.fastest == "b"
    assert "c" not in (*verdict.tied, verdict.runner_up)


def test_every_order_is_tried() -> None:
    """Whoever decodes first finds another cache than who comes last."""
    orders: list[tuple[str, ...]] = []

    def heat(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        orders.append(tuple(names))
        return {name: Lap(64, 32, 1.0) for name in names}

    run_race(entrants(NODES), range(60), heat, RaceRules(startup_prompts=60))
    assert {order[0] for order in orders} == {order[-1] for order in orders} == set(NODES)
    assert len(set(orders)) > 45


def test_a_race_needs_candidates_and_prompts() -> None:
    for who, prompts in (([], [0]), ([Entrant("a", 1)], []), ([Entrant("a", 1), Entrant("a", 2)], [0])):
        with pytest.raises(InputError, match="a race of"):
            run_race(who, prompts, Simulation({"a": 1.0}, 1))


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.integers(0, 5))
def test_balanced_order_takes_from_every_category_in_turn(categories: list[str], seed: int) -> None:
    order = balanced_order(categories, seed)
    assert sorted(order) == list(range(len(categories)))
    for done in range(len(order) + 1):
        taken = [categories[index] for index in order[:done]]
        waiting = {name: categories.count(name) - taken.count(name) for name in set(categories)}
        rounds = [taken.count(name) for name in waiting if waiting[name]]
        assert not rounds or max(rounds) - min(rounds) <= 1
