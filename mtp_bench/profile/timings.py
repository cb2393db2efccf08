"""Timings of a cost sweep that survive being killed: written after every round, taken up by the next run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import read_json, write_json


@dataclass
class Timings:
    """Milliseconds by cell and the cells that failed, of the rounds that are done.

    Attributes:
        path: where they are kept, None = nowhere.
        key: names what is measured; timings under another key are not taken up.
    """

    path: Path | None = None
    key: str = ""
    rounds: int = 0
    by_cell: dict[str, list[float]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)

    @classmethod
    def resume(cls, path: Path, key: str) -> Timings:
        """What an earlier run under ``key`` left in ``path``, or nothing."""
        try:
            stored = read_json(path)
        except InputError:
            return cls(path, key)
        if not isinstance(stored, dict) or stored.get("key") != key:
            return cls(path, key)
        return cls(path, key, stored["rounds"], stored["by_cell"], stored["status"])

    def keep(self, rounds: int, by_cell: Mapping[str, list[float]], status: Mapping[str, str]) -> None:
        """Record that ``rounds`` rounds are done."""
        self.rounds, self.by_cell, self.status = rounds, dict(by_cell), dict(status)
        if self.path is not None:
            document = {"key": self.key, "rounds": rounds, "by_cell": self.by_cell, "status": self.status}
            write_json(self.path, document)

    def discard(self) -> None:
        """Delete the file: the sweep is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
