"""Optuna over integer parameters that name topologies: canonicalised, so that no topology is scored twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from mtp_bench.search.studies.optuna_search import import_optuna

Key = TypeVar("Key", bound=Hashable)
_STARTUP_TRIALS = 20


def integer_study(
    ranges: Mapping[str, tuple[int, int]],
    canonical: Callable[[Mapping[str, int]], Key],
    score: Callable[[Key], float],
    *,
    trials: int,
    seed: int = 0,
    start: Sequence[Mapping[str, int]] = (),
) -> dict[Key, float]:
    """Maximise ``score`` over integers with Optuna's TPE sampler.

    Args:
        ranges: name -> (least, most).
        canonical: parameters -> the topology they name; many may name one.
        score: called once for each topology.
        trials: in all, those that name a known topology included.
        seed: of the sampler; the same seed gives the same trials.
        start: parameters tried first, clipped to the ranges.

    Returns:
        Every topology that was scored, with its score.
    """
    optuna = import_optuna()
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS)
    )
    for wish in start:
        study.enqueue_trial({name: min(max(wish[name], low), high) for name, (low, high) in ranges.items()})
    scored: dict[Key, float] = {}

    def objective(trial: object) -> float:
        parameters = {name: int(trial.suggest_int(name, *limits)) for name, limits in ranges.items()}  # type: ignore[attr-defined]
        key = canonical(parameters)
        if key not in scored:
            scored[key] = score(key)
        return scored[key]

    study.optimize(objective, n_trials=max(trials, len(start)))
    return scored
