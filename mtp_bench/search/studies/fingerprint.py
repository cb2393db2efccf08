"""Hashes of inputs by their content, to tell whether two searches ask the same question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of numbers, texts, arrays, and of tuples, lists, dicts and dataclasses of them.

    Of a dataclass the arguments count, not what it has worked out from them since.

    Raises:
        TypeError: something else is in it.
    """
    digest = hashlib.sha256()
    for part in _parts(value):
        # With their lengths, lest two parts be taken for one.
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif value is None or isinstance(value, bool | int | float | str | np.generic):
        plain = value.item() if isinstance(value, np.generic) else value
        yield f"{type(plain).__name__} {plain!r}".encode()
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__name__}".encode()
        for field in fields(value):
            if field.init:
                yield field.name.encode()
                yield from _parts(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        yield f"list {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        for key in sorted(value):
            yield from _parts(key)
            yield from _parts(value[key])
    else:
        raise TypeError(f"no fingerprint of {type(value).__name__}")
