"""One synthetic run, with its report, for all tests that only read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import write_run

from mtp_bench.report.write import Report, make_report


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("results") / "run", max_nodes=24)


@pytest.fixture(scope="session")
def report(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(run_folder, out=tmp_path_factory.mktemp("out"))
