"""The command that is being run, as results record it."""

from __future__ import annotations

import shlex
import sys
from contextvars import ContextVar

running: ContextVar[tuple[str, ...] | None] = ContextVar("running", default=None)


def command_line() -> str:
    """The command as it can be typed again, also where another program runs it."""
    arguments = running.get()
    return shlex.join(["mtp-bench", *(sys.argv[1:] if arguments is None else arguments)])
