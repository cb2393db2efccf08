"""Errors that reach the user: what is wrong, where, and what to do about it.

Only these are caught by the command line (exit codes below); anything else is a bug and keeps its traceback.
"""

from __future__ import annotations


class MtpBenchError(Exception):
    """Base of all errors a user can cause or mend.

    Args:
        what: what is wrong, as one clause without a full stop.
        where: the file, JSON pointer, step or option it was found at.
        fix: what the user can do.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        place = f"{where}: " if where else ""
        advice = f"\n  -> {fix}" if fix else ""
        super().__init__(f"{place}{what}{advice}")


class InputError(MtpBenchError):
    """Bad input or usage: exit code 2."""


class CheckFailed(MtpBenchError):
    """A check of the program's own results failed (not lossless, below ``--fail-under``): exit code 3."""

    exit_code = 3
