"""Reading and writing result files: atomic writes, hashes, JSON with a clear error.

A file is written to a temporary name beside its target and renamed, so that a full disk or a kill leaves either the
old file or the new one, never half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block ends without an error.

    Raises:
        InputError: the file cannot be written (no space, no permission); the old file is untouched.
    """
    path = Path(path)
    # The suffix is kept because numpy and matplotlib choose the format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        # Some writers make files that only their owner can read; results are for everyone the folder is for.
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"cannot write: {error.strerror or error}",
            where=str(path),
            fix="free some space or choose another folder with --out; nothing was half written",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files in ``folder`` whose writers were killed."""
    for path in Path(folder).glob(".*.tmp*"):
        writer = re.search(r"\.(\d+)\.tmp", path.name)
        if writer is not None and not _alive(int(writer[1])):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically as UTF-8."""
    write_bytes(path, text.encode())


def dump_json(document: Any) -> str:
    """The one JSON spelling of this project: two spaces, insertion order, trailing newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` to ``path`` atomically as JSON."""
    write_text(path, dump_json(document))


def read_text(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        InputError: missing, unreadable or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError("no such file", where=str(path), fix="check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read: {error}", where=str(path)) from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: missing, unreadable, or not JSON (with line and column).
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(
            f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}", fix="mend or rewrite the file"
        ) from error


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(document: Any) -> str:
    """Hex SHA-256 of a document's canonical JSON (sorted keys, no spaces)."""
    return sha256_bytes(json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
