"""Writing heads of any kind: tensors as safetensors, facts as ``config.json``, each file atomically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mtp_bench.files import atomic_path, write_json
from mtp_bench.heads.detect import FORMAT_MAJOR

_SCHEMA_VERSION = f"{FORMAT_MAJOR}.0"


def write_checkpoint(
    folder: Path,
    name: str,
    tensors: Mapping[str, Tensor],
    own: Mapping[str, Any],
    config: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors and ``config.json``: what the caller says (``config``), the layout's ``own`` keys over it, and this
    project's facts under ``mtp_bench``, each file atomically.

    Raises:
        OSError: the disk is full.
    """
    facts = config.get("mtp_bench", {})
    document = {**config, **own, "mtp_bench": {"schema_version": _SCHEMA_VERSION, **facts, **(extra or {})}}
    plain = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
    with atomic_path(folder / name) as temporary:
        try:
            save_file(plain, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(str(error)) from error
    write_json(folder / "config.json", document)
