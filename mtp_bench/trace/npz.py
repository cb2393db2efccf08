"""Arrays in one ``.npz`` file whose bytes depend on the arrays alone.

``numpy.savez`` stamps every member with the current time, so two equal traces would differ as files. Here the members
are written with a fixed date, owner and order.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError
from mtp_bench.files import write_bytes

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip member can carry
_UNIX = 3


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The ``.npz`` file of ``arrays`` in the given order, equal arrays giving equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_ZIP_EPOCH)
            info.create_system = _UNIX
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, member.getvalue(), compresslevel=6)
    return buffer.getvalue()


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write ``arrays`` to ``path`` atomically."""
    write_bytes(Path(path), npz_bytes(arrays))


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of a ``.npz`` file, by name.

    Raises:
        InputError: missing, not a zip of arrays, cut short, or holding pickled objects (never loaded).
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise InputError("no such file", where=str(path), fix="check the path") from error
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"damaged or not a .npz file ({error})", where=str(path), fix="copy the file again or record the run again"
        ) from error
