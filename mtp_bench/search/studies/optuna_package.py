"""Optuna, imported only where a study is really made."""

from __future__ import annotations

from typing import Any

from mtp_bench.errors import InputError


def import_optuna() -> Any:
    """The package, told to be quiet.

    Raises:
        InputError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("Optuna is not installed", fix="pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
