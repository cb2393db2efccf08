"""Acceptance tables as files: the JSON for published numbers, and ``acceptance.csv``.

The JSON must say what its rates are. A cumulative table read as one by rank (or the other way round) gives trees that
look splendid and are wrong, so the kind is never guessed.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.files import read_json, read_text, write_text

KINDS = ("per_rank", "cumulative")
COLUMNS = (
    "depth", "rank", "n", "n_conditional", "hits",
    "rate_unconditional", "rate_conditional", "marginal_hit_rate", "ci_low", "ci_high",
)  # fmt: skip
_ROUNDING = 1e-6  # published rates are rounded
_NEWEST_MAJOR = 1

Floats = npt.NDArray[np.float64]


def read_document(path: Path | str) -> Any:
    """The JSON document at ``path``."""
    return read_json(Path(path))


def parse_document(document: Any, *, where: str) -> tuple[Floats, str]:
    """(rates by rank float64 [D, K], source) of an acceptance document; short rows are filled with 0.

    Raises:
        InputError: with the JSON pointer of the first fault.
    """
    if not isinstance(document, Mapping):
        raise InputError("not a JSON object", where=where, fix='give {"kind": ..., "rates": [[...], ...]}')
    _check_version(document, where)
    kind = document.get("kind")
    if kind not in KINDS:
        said = "not stated" if kind is None else f"{kind!r}"
        raise InputError(
            f"kind is {said}", where=f"{where}#/kind", fix="state per_rank (rate of each rank) or cumulative (top-k)"
        )
    rows = document.get("rates")
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise InputError("no list of rates by depth", where=f"{where}#/rates", fix="give one list of rates per depth")
    by_rank = [_parse_row(row, str(kind), f"{where}#/rates/{d}") for d, row in enumerate(rows)]
    table = np.zeros((len(by_rank), max(len(row) for row in by_rank)))
    for d, row in enumerate(by_rank):
        table[d, : len(row)] = row
    return table, str(document.get("source", ""))


def _check_version(document: Mapping[str, Any], where: str) -> None:
    version = str(document.get("schema_version", "1.0"))
    if not version.split(".")[0].isdigit() or int(version.split(".")[0]) > _NEWEST_MAJOR:
        raise InputError(f"version {version} is not known", where=f"{where}#/schema_version", fix="upgrade mtp-bench")


def _parse_row(row: Any, kind: str, where: str) -> Floats:
    if not isinstance(row, Sequence) or isinstance(row, str) or not row:
        raise InputError("not a list of rates", where=where, fix="give the rates of ranks 0, 1, ... at this depth")
    for rank, rate in enumerate(row):
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate)
        if not number or not 0 <= rate <= 1:
            raise InputError(f"{rate!r} is not a rate in [0, 1]", where=f"{where}/{rank}")
    rates = np.array(row, dtype=np.float64)
    if kind == "cumulative":
        falls = np.flatnonzero(np.diff(rates) < -_ROUNDING)
        if falls.size:
            fix = "is the kind per_rank?"
            raise InputError("a cumulative rate below the one before", where=f"{where}/{int(falls[0]) + 1}", fix=fix)
        rates = np.maximum(np.diff(rates, prepend=0.0), 0.0)
    if rates.sum() > 1 + _ROUNDING:
        raise InputError(f"rates of one depth sum to {rates.sum():.4f} > 1", where=where, fix="is the kind cumulative?")
    return rates


def write_csv(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as ``acceptance.csv``: six decimals, empty where a rate has no observations."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    write_text(Path(path), stream.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def read_csv(path: Path | str) -> Floats:
    """float64 [D, K]: the conditional rates of an ``acceptance.csv``, 0 where empty.

    Raises:
        InputError: a missing column, or a line that does not hold a rate.
    """
    reader = csv.DictReader(io.StringIO(read_text(Path(path))))
    missing = {"depth", "rank", "rate_conditional"} - set(reader.fieldnames or ())
    if missing:
        raise InputError(f"columns missing: {', '.join(sorted(missing))}", where=str(path), fix="give acceptance.csv")
    cells: dict[tuple[int, int], float] = {}
    for row in reader:
        where = f"{path}:{reader.line_num}"
        try:
            depth, rank, rate = int(row["depth"]), int(row["rank"]), float(row["rate_conditional"] or 0)
        except (TypeError, ValueError) as error:
            raise InputError(f"not a number: {error}", where=where) from error
        if depth < 1 or rank < 0 or not 0 <= rate <= 1:
            raise InputError("needs depth >= 1, rank >= 0 and a rate in [0, 1]", where=where)
        cells[depth, rank] = rate
    if not cells:
        raise InputError("no rates", where=str(path))
    table = np.zeros((max(d for d, _ in cells), max(r for _, r in cells) + 1))
    for (depth, rank), rate in cells.items():
        table[depth - 1, rank] = rate
    return table
