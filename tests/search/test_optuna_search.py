import json

import numpy as np
import optuna
import pytest
from acceptance_cases import T3_RATES, cost_table, synthetic_trace, t3_cost

from mtp_bench.errors import InputError
from mtp_bench.search import MarginalSource, exact_search, expected_tokens_per_step, optuna_search

T3 = MarginalSource(T3_RATES)
# Steps of a CPU in bf16, with a draft that costs by depth.
COST = cost_table(
    {1: 40.0, 2: 40.0, 4: 41.0, 8: 43.0, 16: 52.0, 17: 54.0, 32: 60.0, 33: 63.0, 64: 72.0},
    {1: 1.5, 2: 3.0, 3: 4.5, 4: 6.0},
)


def test_unseeded_reaches_the_known_optimum():
    found = optuna_search(T3, t3_cost(), max_nodes=39, trials=200, seed=0, seeded=False)
    assert found.best.value >= 0.99 * 200.0
    assert found.tree.paths == ((0,), (1,), (0, 0))
    assert {trial.origin for trial in found.trials} == {"sampled"}


def test_unseeded_gets_within_one_percent_on_a_trace():
    found = optuna_search(synthetic_trace(1, prompts=60), COST, max_nodes=63, trials=200, seed=0, seeded=False)
    assert 0 <= found.gap < 0.01


@pytest.mark.parametrize("seeded", [True, False])
def test_the_exact_optimum_is_an_upper_bound(seeded):
    rng = np.random.default_rng(2)
    source = MarginalSource(rng.dirichlet(np.full(5, 0.5), size=3)[:, :4])
    found = optuna_search(source, COST, max_nodes=30, trials=60, seeded=seeded)
    assert max(trial.value for trial in found.trials) <= found.exact_value * (1 + 1e-12)
    for trial in found.trials:
        assert trial.value == pytest.approx(1e3 * trial.tokens_per_step / trial.step_ms)


def test_seeded_starts_from_the_exact_optimum():
    found = optuna_search(T3, t3_cost(), max_nodes=39, trials=5)
    assert [trial.origin for trial in found.trials] == [
        "exact optimum",
        "no speculation",
        "chain",
        "sampled",
        "sampled",
    ]
    first, none, chain = found.trials[:3]
    assert found.best == first
    assert found.gap == pytest.approx(0, abs=1e-12)
    assert (none.num_nodes, none.depth, none.tokens_per_step) == (0, 0, 1.0)
    assert (chain.num_nodes, chain.depth) == (3, 3)
    assert found.tree == found.exact.tree == exact_search(T3, t3_cost(), max_nodes=39).tree


def test_no_tree_is_scored_twice():
    found = optuna_search(T3, t3_cost(), max_nodes=12, trials=80, seeded=False)
    scored = [trial.tree_id for trial in found.trials if not trial.cached]
    assert len(set(scored)) == len(scored) < len(found.trials) == 80
    value = {trial.tree_id: trial.value for trial in found.trials if not trial.cached}
    assert all(trial.value == value[trial.tree_id] for trial in found.trials)


def test_the_seed_gives_the_trials():
    runs = [optuna_search(T3, t3_cost(), max_nodes=39, trials=30, seed=s, seeded=False).trials for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_longest_without_costs():
    found = optuna_search(T3, None, max_nodes=7, trials=20, objective="tokens")
    assert found.best.value == found.best.tokens_per_step == pytest.approx(2.412)
    assert found.best.step_ms is None
    assert expected_tokens_per_step(T3, found.tree) == pytest.approx(2.412)


def test_nothing_to_search():
    found = optuna_search(T3, t3_cost(), max_nodes=0, trials=3)
    assert found.tree.num_nodes == 0
    assert found.gap == 0


def test_a_stored_study_goes_on(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    optuna_search(T3, t3_cost(), max_nodes=39, trials=6, storage=storage)
    seen = []
    found = optuna_search(T3, t3_cost(), max_nodes=39, trials=10, storage=storage, on_trial=seen.append)
    assert len(found.trials) == 10
    assert seen == [7, 8, 9, 10]
    assert found.best.origin == "exact optimum"
    assert len({t.tree_id for t in found.trials if not t.cached}) == sum(not t.cached for t in found.trials)


def test_the_document_is_json():
    document = optuna_search(T3, t3_cost(), max_nodes=39, trials=5).document()
    assert json.loads(json.dumps(document))["found_by"] == "exact optimum"
    assert document["trials"] == 5


def test_quiet():
    optuna_search(T3, t3_cost(), max_nodes=3, trials=1)
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_no_trials_is_refused():
    with pytest.raises(InputError, match="0 trials"):
        optuna_search(T3, t3_cost(), max_nodes=3, trials=0)
