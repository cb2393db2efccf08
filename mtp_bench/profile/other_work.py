"""What else the processors did while something was measured: other programs, and the other guests of a shared host.

A load average cannot tell: it counts the measurement itself. The kernel's own accounts can: processor time by kind,
less what this process used of it.
"""

from __future__ import annotations

import os
from pathlib import Path

ACCOUNTS = Path("/proc/stat")
PROCESSES = Path("/proc")
# Columns of the line of all processors, in clock ticks (proc(5)).
IDLE, IOWAIT, STEAL, COLUMNS = 3, 4, 7, 8
# Fields of a process after its name: its parent, and the ticks of itself and of children that have ended.
PARENT, TICKS = 1, slice(11, 15)


class Meanwhile:
    """Looks at the accounts when it is made, and again when asked."""

    def __init__(self) -> None:
        self._start = _accounts()

    def other_work(self) -> dict[str, float] | None:
        """Shares of all processors' time since this was made, 0 to 1: ``programs``, used by others on this machine, and
        ``stolen``, wanted here but given to other guests by the hypervisor.

        None where the kernel keeps no such accounts, or no time has passed.
        """
        end = _accounts()
        if self._start is None or end is None:
            return None
        total, busy, stolen, own = (after - before for before, after in zip(self._start, end, strict=True))
        if total <= 0:
            return None
        # Kept in ticks, each rounded in its own way: the difference may fall below nothing.
        return {"programs": round(max(0.0, busy - own) / total, 4), "stolen": round(stolen / total, 4)}


def _accounts() -> tuple[float, float, float, float] | None:
    """Seconds of all processors: in all, busy with programs, stolen; and of this process and its children."""
    try:
        ticks = [int(field) for field in ACCOUNTS.read_text(encoding="ascii").splitlines()[0].split()[1:]][:COLUMNS]
    except (OSError, ValueError, IndexError):
        return None
    if len(ticks) < COLUMNS:
        return None
    second = os.sysconf("SC_CLK_TCK")
    total, idle, stolen = sum(ticks), ticks[IDLE] + ticks[IOWAIT], ticks[STEAL]
    own = sum(os.times()[:4]) + _living_children() / second
    return total / second, (total - idle - stolen) / second, stolen / second, own


def _living_children() -> int:
    """Ticks of the processes that this one started, and of theirs; those that have ended are among our own times."""
    parents, ticks = {}, {}
    for path in PROCESSES.glob("[0-9]*/stat"):
        try:
            # The name stands in parentheses and may hold anything.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process], ticks[process] = int(fields[PARENT]), sum(map(int, fields[TICKS]))
        except (OSError, ValueError, IndexError):
            # It has ended meanwhile.
            continue
    ours, found = {os.getpid()}, 0
    while children := {process for process, parent in parents.items() if parent in ours} - ours:
        found += sum(ticks[process] for process in children)
        ours |= children
    return found
