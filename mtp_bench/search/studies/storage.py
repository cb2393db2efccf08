"""Where a study is kept: in memory, in a journal file, in SQLite, or on a database server.

A worker may be killed at any moment, so no lock here is a file that someone has to remove: each is an ``flock``, which
the kernel lets go when its process ends, however it ends. That needs a file system whose locks work. Local ones do. On
NFS they do where it is mounted with locks (NFSv4, or v3 with its lock daemon); mounted ``nolock``, each machine has
locks of its own, and a journal must not be shared by several machines: give those a database server.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_bench.errors import InputError
from mtp_bench.search.studies.optuna_package import import_optuna

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy.engine import URL

JOURNAL = "journal:"
UNDERSTOOD = (
    "leave it out for a study in memory, or give journal:PATH (a file, any number of workers), sqlite:///PATH "
    "(a file, one worker), postgresql://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE"
)
# Drivers that are known to work, the first one installed is taken where the URL names none.
_DRIVERS = {
    "postgresql": {"psycopg": "psycopg", "psycopg2": "psycopg2"},
    "mysql": {"pymysql": "pymysql", "mysqldb": "MySQLdb"},
}
_INSTALL = {"postgresql": 'pip install "mtp-bench[postgres]"', "mysql": "pip install pymysql"}
_CONNECT_TIMEOUT_S = 10
_CREATE_ATTEMPTS = 5
_FIRST_LINE = b'{"op_code":'
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@contextmanager
def open_storage(text: str | None) -> Iterator[BaseStorage]:
    """The Optuna storage that ``--storage`` names, until the block ends.

    Args:
        text: None = in memory; else ``journal:PATH``, ``sqlite:///PATH``, ``postgresql://...`` or ``mysql://...``.

    Raises:
        InputError: not understood; unreadable; not a journal; a second worker on SQLite; a driver that is not
            installed; a server that cannot be reached, or that fails within the block. No password is shown.
    """
    if text is None:
        yield import_optuna().storages.InMemoryStorage()
    elif text.startswith(JOURNAL):
        with _journal(text.removeprefix(JOURNAL)) as storage:
            yield storage
    else:
        with _database(_parse_url(text)) as storage:
            yield storage


class FileLock:
    """An exclusive lock on a file, held from ``acquire`` to ``release`` or to the end of the process.

    Optuna's journal takes it as its lock object. Its own locks are files, which a killed process leaves behind for the
    others to wait on (30 seconds, then each takes the lock away from whoever holds it by then).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; False when it is held elsewhere and ``wait`` is off."""
        fcntl = _import_fcntl()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let the lock go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class JournalLock(FileLock):
    """The lock on a journal, which removes the half line that a writer killed in the middle of it left at the end.

    Such a line was never confirmed to anyone. Left where it is, the next one would be glued to it and both be lost.
    """

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock and mend the end of the file."""
        taken = super().acquire(wait=wait)
        if taken and self._descriptor is not None:
            try:
                _cut_half_line(self._descriptor)
            except BaseException:
                self.release()
                raise
        return taken


def _cut_half_line(descriptor: int, block: int = 4096) -> None:
    end = position = os.fstat(descriptor).st_size
    while position > 0:
        start = max(position - block, 0)
        newline = os.pread(descriptor, position - start, start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position < end:
        os.ftruncate(descriptor, position)


@contextmanager
def _journal(name: str) -> Iterator[BaseStorage]:
    if not name:
        raise InputError("no file named", where="--storage", fix=UNDERSTOOD)
    path = Path(name)
    optuna = import_optuna()
    try:
        _check_journal(path)
        lock = JournalLock(path)
        try:
            storage = optuna.storages.JournalStorage(
                optuna.storages.journal.JournalFileBackend(str(path), lock_obj=lock)
            )
        except (ValueError, KeyError, AssertionError) as error:
            raise InputError("a damaged journal", where=name, fix="give another file, or mend this one") from error
        yield storage
    except OSError as error:
        fix = "give a path on a local disk, or a database server" if error.errno in _NO_LOCKS else "check the path"
        raise InputError(f"cannot keep a journal: {error.strerror or error}", where=name, fix=fix) from error


def _check_journal(path: Path) -> None:
    """Refuse a file that is something else, before anything is written to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with open(path, "rb") as stream:
            start = stream.read(len(_FIRST_LINE))
        if not _FIRST_LINE.startswith(start):
            raise InputError("not an Optuna journal", where=str(path), fix="give another file; this one is untouched")


def _parse_url(text: str) -> URL:
    """The parts of a database URL, with a driver."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The text may hold a password: not repeated.
        raise InputError("not understood", where="--storage", fix=UNDERSTOOD) from None
    dialect = url.get_backend_name()
    if dialect == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InputError("SQLite without a file is gone with the process", where="--storage", fix=UNDERSTOOD)
        return url
    drivers = _DRIVERS.get(dialect)
    if drivers is None:
        raise InputError(f"{dialect!r} is not understood", where="--storage", fix=UNDERSTOOD)
    wanted = url.drivername.partition("+")[2]
    if wanted and wanted not in drivers:
        raise InputError(
            f"driver {wanted!r} is not known", where="--storage", fix=f"leave it out, or use {' or '.join(drivers)}"
        )
    for driver in [wanted] if wanted else drivers:
        if find_spec(drivers[driver]) is not None:
            return url.set(drivername=f"{dialect}+{driver}")
    raise InputError(f"no driver for {dialect} is installed", where="--storage", fix=_INSTALL[dialect])


@contextmanager
def _database(url: URL) -> Iterator[BaseStorage]:
    from sqlalchemy.exc import SQLAlchemyError

    optuna = import_optuna()
    is_file = url.get_backend_name() == "sqlite"
    guard = FileLock(Path(f"{url.database}.worker")) if is_file else None
    storage: Any = None
    try:
        if guard is not None:
            Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
            if not guard.acquire(wait=False):
                raise InputError(
                    "another worker is at this SQLite study, which takes one at a time",
                    where=_shown(url),
                    fix="wait for it, or share a study by journal:PATH or on a database server",
                )
        storage = _connect(url)
        yield storage
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError, ImportError) as error:
        what = f"the database cannot be used: {_without_secrets(error, url)}"
        fix = "check the URL and the server; finished trials are kept, run again to go on"
        # Without its cause: the driver's own text may hold the password.
        raise InputError(what, where=_shown(url), fix=fix) from None
    finally:
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()
        if guard is not None:
            guard.release()


def _connect(url: URL) -> Any:
    """Optuna's storage, its tables made where they are missing."""
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    optuna = import_optuna()
    arguments = {} if url.get_backend_name() == "sqlite" else {"connect_timeout": _CONNECT_TIMEOUT_S}
    engine = sqlalchemy.create_engine(url, connect_args=arguments)
    engine.connect().close()  # whether the server answers at all
    engine.dispose()
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        try:
            return optuna.storages.RDBStorage(
                url.render_as_string(hide_password=False),
                engine_kwargs={"connect_args": arguments, "pool_pre_ping": True},
            )
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError):
            # Workers that start together on an empty database all make its tables, and all but one of them fail.
            if attempt == _CREATE_ATTEMPTS:
                raise
            time.sleep(0.2 * attempt)


def _shown(url: URL) -> str:
    """A URL as it may be printed: no password, and no query, which can hold one too."""
    return url.set(query={}).render_as_string(hide_password=True)


def _without_secrets(error: BaseException, url: URL) -> str:
    cause = getattr(error, "orig", None) or error.__cause__ or error
    text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    secrets = [url.password, *(url.query.get(key) for key in ("password", "passwd"))]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text


def _import_fcntl() -> Any:
    try:
        import fcntl
    except ImportError as error:
        raise InputError(
            "file locks need Linux or macOS", where="--storage", fix="give a PostgreSQL or MySQL URL"
        ) from error
    return fcntl
