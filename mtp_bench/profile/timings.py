"""Timings of a cost sweep that survive being killed: written after every round, taken up by the next run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import read_json, write_json

KEPT = ("rounds", "seconds", "by_cell", "status")


@dataclass
class Timings:
    """Milliseconds by cell and the cells that failed, of the rounds that are done.

    Attributes:
        path: where they are kept, None = nowhere.
        key: names what is measured; timings under another key are not taken up.
        seconds: how long the rounds took, over all runs.
    """

    path: Path | None = None
    key: str = ""
    rounds: int = 0
    seconds: float = 0.0
    by_cell: dict[str, list[float]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)

    @classmethod
    def resume(cls, path: Path, key: str) -> Timings:
        """What an earlier run under ``key`` left in ``path``, or nothing."""
        try:
            stored = read_json(path)
        except InputError:
            return cls(path, key)
        if not isinstance(stored, dict) or stored.get("key") != key or not stored.keys() >= set(KEPT):
            return cls(path, key)
        return cls(path, key, *(stored[name] for name in KEPT))

    def keep(
        self, rounds: int, by_cell: Mapping[str, list[float]], status: Mapping[str, str], seconds: float = 0.0
    ) -> None:
        """Record that ``rounds`` rounds are done, which took ``seconds`` in all."""
        self.rounds, self.seconds, self.by_cell, self.status = rounds, seconds, dict(by_cell), dict(status)
        if self.path is not None:
            write_json(self.path, {"key": self.key, **{name: getattr(self, name) for name in KEPT}})

    def discard(self) -> None:
        """Delete the file: the sweep is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class TimingFolder:
    """Timings of the several stages of one measurement, a file each, all under one key."""

    path: Path
    key: str

    def open(self, stage: str) -> Timings:
        """What is known of ``stage``."""
        return Timings.resume(self.path / f"{stage}.json", self.key)

    def discard(self) -> None:
        """Delete the folder: the measurement is complete."""
        shutil.rmtree(self.path, ignore_errors=True)
