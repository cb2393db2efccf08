"""The training record: losses and held-out accuracies as two CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtp_bench.files import read_text, write_text
from mtp_bench.train.accuracy import TOP_KS, HeadAccuracy

LOSS_FILE = "loss.csv"
HELD_OUT_FILE = "heldout.csv"


class TrainingLog:
    """Collects rows and writes them whole, so that a resumed run continues the same files."""

    def __init__(self, folder: Path, num_heads: int) -> None:
        self.folder = folder
        self._loss_columns = ["step", "tokens", "loss", *[f"loss_head{i}" for i in range(num_heads)], "learning_rate"]
        self._held_out_columns = ["tokens_seen", "head", *[f"top{k}" for k in TOP_KS], "n"]
        self._losses: list[list[str]] = []
        self._held_out: list[list[str]] = []

    def start(self, step: int) -> None:
        """Begin at ``step``: 0 = anew, else keep the earlier rows of the files."""
        if step == 0:
            return
        self._losses = [row for row in _rows(self.folder / LOSS_FILE) if int(row[0]) < step]
        seen = int(self._losses[-1][1]) if self._losses else 0
        self._held_out = [row for row in _rows(self.folder / HELD_OUT_FILE) if int(row[0]) <= seen]

    def loss(self, step: int, tokens: int, loss: float, per_head: Sequence[float], learning_rate: float) -> None:
        """Record one step's loss."""
        self._losses.append(
            [str(step), str(tokens), f"{loss:.5f}", *[f"{value:.5f}" for value in per_head], f"{learning_rate:.3e}"]
        )

    def held_out(self, tokens_seen: int, accuracies: Sequence[HeadAccuracy]) -> None:
        """Record one held-out evaluation."""
        for one in accuracies:
            self._held_out.append([str(tokens_seen), str(one.head), *[f"{one.top[k]:.5f}" for k in TOP_KS], str(one.n)])

    def flush(self) -> None:
        """Write both files."""
        write_text(self.folder / LOSS_FILE, _csv([self._loss_columns, *self._losses]))
        write_text(self.folder / HELD_OUT_FILE, _csv([self._held_out_columns, *self._held_out]))


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _rows(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(read_text(path))))[1:] if path.exists() else []
