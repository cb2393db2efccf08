"""The files of a run folder, read with patience: what is there is used, what is missing or damaged is named.

A report is made while a run is still growing (profiled, not yet optimized) and of runs from elsewhere, so no file is
required. Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from mtp_bench.cost import CostPoint, read_points
from mtp_bench.errors import InputError
from mtp_bench.files import read_json, read_text
from mtp_bench.topology import StaticTree, read_document
from mtp_bench.trace import RankTrace

NEWEST_MAJOR = 1
FILES = {
    "run.json": "mtp-bench profile",
    "trace.npz": "mtp-bench profile",
    "acceptance.csv": "mtp-bench profile",
    "cost.csv": "mtp-bench profile (or measure-cost)",
    "optimize.json": "mtp-bench optimize-tree",
    "topology.json": "mtp-bench optimize-tree",
    "bench.csv": "mtp-bench bench",
    "bench.json": "mtp-bench bench",
    "throughput.json": "mtp-bench bench --batch 1,4,8",
    "schedule.json": "mtp-bench optimize-tree --batch 1,4,8",
    "operating_range.json": "mtp-bench optimize-tree --batch 1,4,8 --context 512,4096",
    "pareto.json": "mtp-bench optimize-tree --batch 1,4,8 --objective pareto",
}
LOSS_FILE, HELD_OUT_FILE = "loss.csv", "heldout.csv"
LOSS_COLUMNS = ("step", "tokens", "loss")
HELD_OUT_COLUMNS = ("tokens_seen", "head", "top1")
ACCEPTANCE_COLUMNS = ("depth", "rank", "rate_conditional")
BENCH_COLUMNS = ("tree", "prompt_id", "tokens", "decode_s")
_TEXT_COLUMNS = ("tree", "prompt_id", "category", "baseline", "lossless")

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RunInputs:
    """What a run folder holds; None for what it does not.

    Args:
        folder: the run folder.
        manifest: ``run.json``.
        trace, acceptance, cost, optimize, tree, bench, bench_summary, throughput, schedule, operating_range, pareto:
            the other files, in the order of :data:`FILES`.
        loss, held_out: the training's CSVs.
        missing: file name -> the command that writes it.
        damaged: what is wrong with files that are there but cannot be used.
    """

    folder: Path
    manifest: Mapping[str, Any] | None = None
    trace: RankTrace | None = None
    acceptance: pd.DataFrame | None = None
    cost: tuple[CostPoint, ...] | None = None
    optimize: Mapping[str, Any] | None = None
    tree: StaticTree | None = None
    bench: pd.DataFrame | None = None
    bench_summary: Mapping[str, Any] | None = None
    throughput: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    operating_range: Mapping[str, Any] | None = None
    pareto: Mapping[str, Any] | None = None
    loss: pd.DataFrame | None = None
    held_out: pd.DataFrame | None = None
    missing: tuple[tuple[str, str], ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing at all could be read."""
        fields = (name for name in self.__dataclass_fields__ if name not in ("folder", "missing", "damaged"))
        return all(getattr(self, name) is None for name in fields)


def read_run(folder: Path, *, training: Path | None = None) -> RunInputs:
    """Read a run folder.

    Args:
        folder: ``results/NAME``.
        training: folder of ``loss.csv`` and ``heldout.csv`` (or the former itself); by default the run folder and
            its ``training/`` are looked at.

    Raises:
        InputError: no such folder, or ``training`` names one without those files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("no such run folder", where=str(folder), fix="name a folder that mtp-bench profile wrote")
    loss_path, held_out_path = _training_files(folder, training)
    damaged: list[str] = []

    def attempt(path: Path, reader: Callable[[Path], T]) -> T | None:
        if not path.is_file():
            return None
        try:
            return reader(path)
        except InputError as error:
            damaged.append(f"{error.where or path}: {error.what}")
            return None

    return RunInputs(
        folder=folder,
        manifest=attempt(folder / "run.json", _document),
        trace=attempt(folder / "trace.npz", RankTrace.load),
        acceptance=attempt(folder / "acceptance.csv", _table(ACCEPTANCE_COLUMNS)),
        cost=attempt(folder / "cost.csv", _points),
        optimize=attempt(folder / "optimize.json", _document),
        tree=attempt(folder / "topology.json", _static_tree),
        bench=attempt(folder / "bench.csv", _table(BENCH_COLUMNS)),
        bench_summary=attempt(folder / "bench.json", _document),
        throughput=attempt(folder / "throughput.json", _document),
        schedule=attempt(folder / "schedule.json", _document),
        operating_range=attempt(folder / "operating_range.json", _document),
        pareto=attempt(folder / "pareto.json", _document),
        loss=attempt(loss_path, _table(LOSS_COLUMNS)),
        held_out=attempt(held_out_path, _table(HELD_OUT_COLUMNS)),
        missing=tuple((name, command) for name, command in FILES.items() if not (folder / name).is_file()),
        damaged=tuple(damaged),
    )


def _static_tree(path: Path) -> StaticTree | None:
    """The winner where it can be drawn; a dynamic tree has no fixed shape."""
    topology = read_document(path).topology
    return topology if isinstance(topology, StaticTree) else None


def _training_files(folder: Path, training: Path | None) -> tuple[Path, Path]:
    if training is not None and training.is_file():
        return training, training.with_name(HELD_OUT_FILE)
    places = [training] if training is not None else [folder, folder / "training"]
    for place in places:
        if (place / LOSS_FILE).is_file() or (place / HELD_OUT_FILE).is_file():
            return place / LOSS_FILE, place / HELD_OUT_FILE
    if training is not None:
        fix = "name the folder that mtp-bench train-heads wrote"
        raise InputError(f"neither {LOSS_FILE} nor {HELD_OUT_FILE}", where=str(training), fix=fix)
    return folder / LOSS_FILE, folder / HELD_OUT_FILE


def read_training(folder: Path) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """(loss log, held-out log) of a training's folder; None for one that is not there.

    Raises:
        InputError: a log is damaged.
    """
    logs = ((folder / LOSS_FILE, LOSS_COLUMNS), (folder / HELD_OUT_FILE, HELD_OUT_COLUMNS))
    loss, held_out = (_table(columns)(path) if path.is_file() else None for path, columns in logs)
    return loss, held_out


def _document(path: Path) -> Mapping[str, Any]:
    """A JSON object of a version that is known."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError("not a JSON object", where=str(path))
    said = f"{document.get('schema', '')} {document.get('version', '')}".strip()
    version = re.search(r"(\d+)(?:\.\d+)*$", said)
    if version and int(version.group(1)) > NEWEST_MAJOR:
        raise InputError(f"written by a newer version ({said})", where=str(path), fix="upgrade mtp-bench")
    return document


def _points(path: Path) -> tuple[CostPoint, ...]:
    return tuple(read_points(path))


def _table(columns: tuple[str, ...]) -> Callable[[Path], pd.DataFrame]:
    """A reader of CSV files that have at least ``columns``, with at least one line."""

    def read(path: Path) -> pd.DataFrame:
        text = read_text(path)
        try:
            # Only the empty cell is unknown: "none" and "NA" are fine names for trees and prompts.
            kinds = dict.fromkeys(_TEXT_COLUMNS, str)
            frame = pd.read_csv(StringIO(text), dtype=kinds, keep_default_na=False, na_values=[""])
        except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
            raise InputError(f"not a CSV table: {error}", where=str(path)) from error
        missing = [name for name in columns if name not in frame.columns]
        if missing:
            raise InputError(f"columns missing: {', '.join(missing)}", where=str(path))
        if frame.empty:
            raise InputError("no lines", where=str(path))
        wrong = [name for name in frame.columns if name not in _TEXT_COLUMNS and frame[name].dtype.kind not in "iufb"]
        if set(wrong) & set(columns):
            raise InputError(f"not numbers: column {wrong[0]}", where=str(path))
        return frame

    return read
