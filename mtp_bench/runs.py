"""Run folders: where a run's files are, and its manifest.

A run is a folder ``results/NAME/`` of plain files, each re-readable without torch:
``run.json`` (manifest), ``trace.npz``, ``acceptance.csv``, ``cost.csv``, ``optimize.json``, ``topology.json``,
``schedule.json``, ``operating_range.json``, ``pareto.json``, ``measured.csv``, ``bench.csv``, ``bench.json``,
``throughput.csv``, ``throughput.json``, ``plots/``, ``report.html``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.files import read_json, write_json

SCHEMA = "mtp-bench/run"
VERSION = 1
RESULTS = Path("results")


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def manifest(self) -> Path:
        """What was run, on what."""
        return self.path / "run.json"

    @property
    def trace(self) -> Path:
        """Rank trace."""
        return self.path / "trace.npz"

    @property
    def answers(self) -> Path:
        """The text the trace was recorded on."""
        return self.path / "answers.jsonl"

    @property
    def acceptance(self) -> Path:
        """Acceptance rates by depth and rank."""
        return self.path / "acceptance.csv"

    @property
    def cost(self) -> Path:
        """Measured step costs."""
        return self.path / "cost.csv"

    @property
    def optimize(self) -> Path:
        """What optimize-tree found."""
        return self.path / "optimize.json"

    @property
    def topology(self) -> Path:
        """The winning topology."""
        return self.path / "topology.json"

    @property
    def bench_csv(self) -> Path:
        """Real decoding, prompt by prompt."""
        return self.path / "bench.csv"

    @property
    def bench_json(self) -> Path:
        """Real decoding, summed up."""
        return self.path / "bench.json"

    @property
    def race(self) -> Path:
        """Laps of a race of optimize-tree --measure that is not over."""
        return self.path / "race.jsonl"

    @property
    def measured_csv(self) -> Path:
        """Laps of the last such race: real decoding, prompt by prompt."""
        return self.path / "measured.csv"

    @property
    def schedule(self) -> Path:
        """The best topology by batch size."""
        return self.path / "schedule.json"

    @property
    def operating_range(self) -> Path:
        """The best topology by batch size and context."""
        return self.path / "operating_range.json"

    @property
    def pareto(self) -> Path:
        """Latency of one user against total throughput."""
        return self.path / "pareto.json"

    @property
    def throughput(self) -> Path:
        """Real decoding in batches."""
        return self.path / "throughput.json"

    def read_manifest(self) -> dict[str, Any]:
        """The manifest.

        Raises:
            InputError: missing, damaged, or written by a newer version.
        """
        document = read_json(self.manifest)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError("not a run manifest", where=str(self.manifest), fix="run mtp-bench profile again")
        if int(document.get("version", 0)) > VERSION:
            raise InputError(
                f"written by a newer mtp-bench (run version {document['version']}, this one reads {VERSION})",
                where=str(self.manifest),
                fix="upgrade mtp-bench",
            )
        return document

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Work in this folder alone; the folder is made, and removed again if nothing was written.

        The lock is the kernel's and ends with the process, however that ends. Where file systems have none, nothing
        is locked.

        Raises:
            InputError: another process works in it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with _locked(self.path):
                yield
        finally:
            with suppress(OSError):
                self.path.rmdir()

    def claim(self, key: str, holds: str) -> dict[str, Any] | None:
        """The manifest of an earlier, perhaps unfinished run of the same ``key`` in this folder; None = a new folder.

        Args:
            holds: what the folder may hold instead, for the message.

        Raises:
            InputError: the folder belongs to another run.
        """
        if not self.manifest.exists():
            return None
        earlier = self.read_manifest()
        if earlier.get("key") != key:
            raise InputError(
                f"the folder holds {holds}",
                where=str(self.path),
                fix="name another folder with --out, or delete this one",
            )
        return earlier

    def write_manifest(self, facts: dict[str, Any]) -> None:
        """Write the manifest with its schema and version."""
        write_json(self.manifest, {"schema": SCHEMA, "version": VERSION, **facts})


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if os.name == "nt":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                "another process is working in this folder", where=str(folder), fix="wait for it, or use another --out"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def newest_run(results: Path = RESULTS) -> RunFolder:
    """The run profiled last.

    Raises:
        InputError: there is none.
    """
    manifests = sorted(results.glob("*/run.json"), key=lambda path: (path.stat().st_mtime_ns, str(path)))
    if not manifests:
        raise InputError(
            f"no run in {results}/", where=str(results), fix="run mtp-bench profile first, or name one with --profile"
        )
    return RunFolder(manifests[-1].parent)


def open_run(name: str | None) -> RunFolder:
    """A run by path, or by name under ``results/``; the newest when ``name`` is None.

    Raises:
        InputError: no such run.
    """
    if name is None:
        return newest_run()
    for path in (Path(name), RESULTS / name):
        if path.is_dir():
            return RunFolder(path)
    raise InputError("no such run folder", where=name, fix="give the path of a folder that mtp-bench profile wrote")
