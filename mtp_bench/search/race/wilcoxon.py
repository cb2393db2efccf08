"""Who has lost so far, as Optuna's ``WilcoxonPruner`` decides it.

That pruner compares a running trial, prompt by prompt, with the best *completed* trial: it was made for candidates that
are decoded one after the other. In an interleaved race nobody is complete until the end. So after each prompt the
pruner is shown a study in memory whose one completed trial is the present leader with the prompts decoded so far, and
is asked about every other candidate's running trial: its own test and its own rules (none is pruned before
``n_startup_steps``, nor while its mean is the better one) decide.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtp_bench.errors import InputError
from mtp_bench.search.studies.optuna_search import import_optuna


def wilcoxon_losers(
    values: Mapping[str, Mapping[int, float]], p_threshold: float, startup_prompts: int
) -> tuple[str, list[str]]:
    """The leader (least mean) and those whom the pruner would stop.

    Args:
        values: candidate -> prompt -> figure, lower is better; all candidates have the same prompts.
        p_threshold: one-sided p-value of the signed-rank test below which a candidate is stopped.
        startup_prompts: prompts before which none is.

    Raises:
        InputError: Optuna or scipy, which the pruner's test needs, is not installed.
    """
    means = {name: float(np.mean(list(own.values()))) for name, own in values.items()}
    leader = min(means, key=lambda name: means[name])
    optuna = _optuna_with_scipy()
    study = optuna.create_study(direction="minimize", pruner=_pruner(optuna, p_threshold, startup_prompts))
    study.add_trial(optuna.trial.create_trial(value=means[leader], intermediate_values=dict(values[leader])))

    def lost(name: str) -> bool:
        running = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING, intermediate_values=dict(values[name])
        )
        return bool(study.pruner.prune(study, running))

    return leader, [name for name in values if name != leader and lost(name)]


def _pruner(optuna: Any, p_threshold: float, startup_prompts: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.pruners.WilcoxonPruner(p_threshold=p_threshold, n_startup_steps=startup_prompts)


def _optuna_with_scipy() -> Any:
    optuna = import_optuna()
    try:
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise InputError("Optuna's WilcoxonPruner needs scipy", where="--measure", fix="pip install scipy") from error
    return optuna
