"""Storages by their spelling, their locks, and what they refuse."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from acceptance_cases import T3_RATES, t3_cost

from mtp_bench.cli import run
from mtp_bench.errors import InputError
from mtp_bench.search import MarginalSource, OptunaResult, optuna_search
from mtp_bench.search.studies import storage
from mtp_bench.search.studies.storage import FileLock, JournalLock, open_storage

T3 = MarginalSource(T3_RATES)


def search(where: str | None, trials: int = 12, **more: int | str | bool) -> OptunaResult:
    return optuna_search(T3, t3_cost(), **{"max_nodes": 12, "trials": trials, "storage": where, **more})


@pytest.fixture(params=["journal:{}/study.journal", "sqlite:///{}/study.db"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def test_a_kept_study_is_the_one_in_memory(url: str) -> None:
    kept, memory = search(url, 40), search(None, 40)
    assert kept.trials == memory.trials
    assert kept.document() == memory.document()


def test_a_finished_study_is_only_read(url: str) -> None:
    assert search(url).trials == search(url).trials == search(url, trials=3).trials
    assert len(search(url, trials=15).trials) == 15


def test_studies_of_one_storage_are_apart(url: str) -> None:
    assert len(search(url, 5, study_name="a").trials) == 5
    assert len(search(url, 7, study_name="b", max_nodes=7).trials) == 7


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_nodes": 7}, "budget 12 there, 7 here"),
        ({"max_depth": 2}, "depth 3 there, 2 here"),
        ({"objective": "tokens"}, "objective speed there, tokens here"),
        ({"seeded": False}, "seeded True there, False here"),
        ({"context": 900}, "context None there, 900 here"),
    ],
)
def test_another_question_is_refused(url: str, changed: dict[str, int | str | bool], words: str) -> None:
    before = search(url).trials
    with pytest.raises(InputError, match=f"'mtp-bench' asks another question: .*{words}"):
        search(url, **changed)
    assert search(url).trials == before


def test_other_rates_or_costs_are_another_question(tmp_path: Path) -> None:
    where = f"journal:{tmp_path / 'study'}"
    search(where)
    with pytest.raises(InputError, match="another acceptance"):
        optuna_search(MarginalSource(T3_RATES * 0.9), t3_cost(), max_nodes=12, trials=12, storage=where)
    with pytest.raises(InputError, match="another costs"):
        optuna_search(T3, type(t3_cost())(t3_cost().points[:-1]), max_nodes=12, trials=12, storage=where)


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(study_name="theirs", storage=url).optimize(lambda trial: trial.suggest_float("x", 0, 1), 2)
    with pytest.raises(InputError, match="'theirs' was not made by this command"):
        search(url, study_name="theirs")
    assert len(search(url).trials) == 12


@pytest.mark.parametrize(
    "text",
    ["study.db", "redis://host", "oracle://me:geheim@host/db", "sqlite://", "sqlite:///:memory:", "journal:", "",
     "postgresql+asyncpg://me:geheim@host/db", "postgresql://me:geheim@host:port/db"],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught, open_storage(text):
        pass
    assert "geheim" not in str(caught.value)
    assert caught.value.fix


def test_the_refusal_lists_what_is_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text('{"kind": "per_rank", "rates": [[0.5]]}')
    assert run(["optimize-tree", "--acceptance", str(tmp_path / "rates.json"), "--storage", "mongodb://host/db"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("journal:PATH", "sqlite:///PATH", "postgresql://", "mysql://"))


@pytest.mark.parametrize(
    ("url", "package"), [("postgresql://me:geheim@host/db", "mtp-bench"), ("mysql://h/d", "mysql")]
)
def test_a_missing_driver_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"no driver for .*\n.*pip install .*{package}") as caught, open_storage(url):
        pass
    assert "geheim" not in str(caught.value)


@pytest.mark.skipif(
    not any(importlib.util.find_spec(driver) for driver in ("psycopg", "psycopg2")), reason="no PostgreSQL driver"
)
@pytest.mark.parametrize("query", ["", "?password=heimlich"])
def test_an_unreachable_server_is_said_without_the_password(query: str) -> None:
    url = f"postgresql://me:geheim@127.0.0.1:1/db{query}"
    with pytest.raises(InputError, match=r"postgresql.*@127\.0\.0\.1:1/db: the database cannot be used") as caught:
        search(url)
    assert "geheim" not in str(caught.value)
    assert "heimlich" not in str(caught.value)


# ----- journal files


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes, without a newline")
    with pytest.raises(InputError, match="not an Optuna journal"):
        search(f"journal:{notes}")
    assert notes.read_text() == "my notes, without a newline"


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "study"
    search(f"journal:{journal}")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:5], b'{"op_code":\n', *lines[5:]]))
    with pytest.raises(InputError, match="damaged journal"):
        search(f"journal:{journal}")


@pytest.mark.parametrize("where", ["/proc/no/journal", "{}"])
def test_a_journal_that_cannot_be_written_is_bad_input(where: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot keep a journal"):
        search(f"journal:{where.format(tmp_path)}")


@pytest.mark.parametrize("half", [b"{", b'{"op_code":4,"worker_id":"x', b'{"op_code":' + b"9" * 10_000])
def test_the_half_line_of_a_killed_writer_is_cut(half: bytes, tmp_path: Path) -> None:
    journal = tmp_path / "study"
    search(f"journal:{journal}", 8)
    with open(journal, "ab") as stream:
        stream.write(half)
    assert len(search(f"journal:{journal}", 12).trials) == 12
    assert half not in journal.read_bytes().splitlines()


@pytest.mark.parametrize(
    ("content", "kept"), [(b"", b""), (b"a\n", b"a\n"), (b"a\nb", b"a\n"), (b"ab", b""), (b"\n" + b"b" * 9000, b"\n")]
)
def test_cutting_keeps_whole_lines(content: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    lock = JournalLock(path)
    lock.acquire()
    lock.release()
    assert path.read_bytes() == kept


# ----- locks

HOLD = """
import sys
from pathlib import Path
from mtp_bench.search.studies.storage import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process, lock = holder(path), FileLock(path)
    assert not lock.acquire(wait=False)
    process.kill()
    process.wait()
    assert lock.acquire(wait=False)
    assert not FileLock(path).acquire(wait=False)
    lock.release()
    assert FileLock(path).acquire(wait=False)


def test_a_second_worker_on_sqlite_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates, url = tmp_path / "rates.json", f"sqlite:///{tmp_path / 'study.db'}"
    rates.write_text('{"kind": "per_rank", "rates": [[0.5, 0.2], [0.4, 0.1]]}')
    command = ["optimize-tree", "--acceptance", str(rates), "--storage", url, "--trials", "5"]
    process = holder(tmp_path / "study.db.worker")
    assert run(command) == 2
    said = capsys.readouterr().err
    assert "another worker is at this SQLite study" in said
    assert "journal:PATH" in said
    process.kill()
    process.wait()
    assert run(command) == 0


def test_a_worker_on_sqlite_holds_the_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with open_storage(url), pytest.raises(InputError, match="one at a time"), open_storage(url):
        pass
    with open_storage(url):
        pass
