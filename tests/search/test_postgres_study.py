"""Two workers on a PostgreSQL server that the test starts, and that is gone afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_runs import check_study, finish, read_study, start, write_inputs

from mtp_bench.errors import InputError
from mtp_bench.search.studies.storage import open_storage

USER, PASSWORD = "bench", "ge%heim"


def programs() -> Path | None:
    """The folder of PostgreSQL's server programs."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wanted = [
        folder for folder in folders if all((folder / name).exists() for name in ("initdb", "pg_ctl", "postgres"))
    ]
    return wanted[0] if wanted else None


def as_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: who to be instead."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of an empty database on a Unix socket."""
    if not any(importlib.util.find_spec(driver) for driver in ("psycopg", "psycopg2")):
        pytest.skip("no PostgreSQL driver: pip install 'psycopg[binary]'")
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server (initdb, pg_ctl, postgres) is installed")
    home = Path(tempfile.mkdtemp(prefix="mtp-pg-"))  # short: a socket's path may not be long
    common: dict[str, Any] = {"cwd": home, "stdin": subprocess.DEVNULL, "timeout": 60, **as_user()}
    try:
        (home / "password").write_text(PASSWORD)
        if as_user():
            try:
                for path in (home, home / "password"):
                    shutil.chown(path, "nobody", "nogroup")
            except (LookupError, PermissionError) as error:
                pytest.skip(f"PostgreSQL will not run as root, and there is nobody else to be: {error}")
        data, log = home / "data", home / "log"
        made = subprocess.run(
            [folder / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={home / 'password'}", "-N"],
            capture_output=True, text=True, **common,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        options = f"-k {home} -c listen_addresses= -F"
        subprocess.run(
            [folder / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, **common,
        )  # fmt: skip
        try:
            yield f"postgresql://{USER}:{PASSWORD.replace('%', '%25')}@/postgres?host={home}"
        finally:
            stop = [folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"]
            subprocess.run(stop, stdout=subprocess.DEVNULL, check=True, **common)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def opened(url: str, name: str) -> Any:
    with open_storage(url) as storage:
        return read_study(storage, name)


def test_two_workers_finish_one_study(server: str, tmp_path: Path) -> None:
    """On a database without tables, which both set out to make."""
    arguments = [*write_inputs(tmp_path), "--storage", server, "--study", "two", "--trials", "100"]
    workers = [start(tmp_path, arguments) for _ in range(2)]
    (tmp_path / "go").touch()
    outputs = [finish(worker) for worker in workers]
    trials = opened(server, "two")
    check_study(trials, 100)
    assert len({trial.user_attrs["worker"]["pid"] for trial in trials if "worker" in trial.user_attrs}) == 2
    best = [line for output in outputs for line in output.splitlines() if line.startswith("optuna:")]
    assert len(best) == 2
    assert best[0] == best[1]


def test_a_killed_worker_loses_nothing(server: str, tmp_path: Path) -> None:
    """One of two is killed in the midst of a trial; the other finishes the study with it."""
    arguments = [*write_inputs(tmp_path), "--storage", server, "--study", "kill", "--trials", "60"]
    victim, other = (start(tmp_path, arguments, go=name) for name in ("first", "second"))
    (tmp_path / "first").touch()
    with open_storage(server) as storage:
        while True:
            names = [study.study_name for study in storage.get_all_studies()]
            trials = read_study(storage, "kill") if "kill" in names else []
            if any(
                t.state.name == "RUNNING" and t.number > 5 and "worker" in t.user_attrs and t.params for t in trials
            ):
                break
            assert victim.poll() is None
    victim.kill()
    victim.wait()
    (tmp_path / "second").touch()
    finish(other)
    check_study(opened(server, "kill"), 60)


def test_a_wrong_password_is_not_repeated(server: str) -> None:
    wrong = server.replace("ge%25heim", "fal%25sch")
    with pytest.raises(InputError, match="password authentication failed") as caught, open_storage(wrong):
        pass
    assert "fal%sch" not in str(caught.value)
    assert "fal%25sch" not in str(caught.value)
