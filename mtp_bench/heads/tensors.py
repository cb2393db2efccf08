"""Weight files as lists of named tensors that are read only when asked for.

safetensors files give names, shapes and dtypes from their header alone. Pickles (`.pt`, `.bin`) are opened with
`weights_only=True`: anything that is not a plain tensor is refused before a line of it runs.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mtp_bench.errors import InputError
from mtp_bench.files import read_json

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_NAMES = (
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "hydra_lm_head.pt",
    "model.safetensors",
    "pytorch_model.bin",
)
_SUFFIXES = (".safetensors", ".pt", ".bin", ".pth")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored tensor: what its header says, and how to read it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path
    load: Callable[[], Tensor]

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype, or None for one that this program does not use (8-bit floats and other packed kinds)."""
        dtype = getattr(torch, self.dtype, None)
        return dtype if isinstance(dtype, torch.dtype) else None

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weights of a folder: which file holds which tensor. `unused` names weight files that were passed over."""

    file_of: dict[str, Path]
    unused: tuple[str, ...] = ()

    def open(self, names: Iterable[str]) -> dict[str, Entry]:
        """Entries of the named tensors, in that order; only the files that hold them are touched.

        Raises:
            InputError: a file is missing, damaged or refused, or lacks a tensor that the index promises.
        """
        names = tuple(names)
        files = {path: open_file(path) for path in dict.fromkeys(self.file_of[name] for name in names)}
        for name in names:
            if name not in files[self.file_of[name]]:
                raise InputError(
                    f"tensor {name} is missing; the index promises it", where=str(self.file_of[name]), fix=_AGAIN
                )
        return {name: files[self.file_of[name]][name] for name in names}


_AGAIN = "download or write the file again"


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """ "sha256:..." over named tensors as stored."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def find_weights(path: Path) -> WeightFiles | None:
    """The weights of a folder, or of one weight file; None where there are none.

    Raises:
        InputError: as `WeightFiles.open`, and for an index that is not one.
    """
    if path.is_file():
        return WeightFiles(dict.fromkeys(open_file(path), path))
    for index in _INDEXES:
        if (path / index).is_file():
            return WeightFiles(_read_index(path / index))
    found = sorted(p.name for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    chosen = next((name for name in _NAMES if name in found), None)
    if chosen is None:
        found = [name for name in found if Path(name).stem not in {"training_args", "optimizer", "scheduler"}]
        if not found:
            return None
        chosen = found[0]
        if "-of-" in chosen:
            raise InputError("a sharded model without its index file", where=str(path), fix=_AGAIN)
    return WeightFiles(dict.fromkeys(open_file(path / chosen), path / chosen), _unused(found, chosen))


def open_file(path: Path) -> dict[str, Entry]:
    """All tensors of one weight file.

    Raises:
        InputError: missing, damaged, or a pickle that holds anything but tensors.
    """
    if not path.is_file():
        raise InputError("this weight file is missing", where=str(path), fix=_AGAIN)
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _unused(found: list[str], chosen: str) -> tuple[str, ...]:
    return tuple(name for name in found if name != chosen and (name in _NAMES or Path(name).suffix == ".safetensors"))


def _read_index(path: Path) -> dict[str, Path]:
    document = read_json(path)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InputError("not an index: no weight_map of tensor names to file names", where=str(path), fix=_AGAIN)
    outside = [v for v in weight_map.values() if Path(v).name != v]
    if outside:
        raise InputError(f"the index points outside its folder: {outside[0]}", where=str(path))
    return {str(name): path.parent / file for name, file in weight_map.items()}


def _open_safetensors(path: Path) -> dict[str, Entry]:
    def load(name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            with safe_open(path, framework="pt") as stream:
                tensor: Tensor = stream.get_tensor(name)
            return tensor

        return read

    entries = {}
    try:
        with safe_open(path, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - a handle, not a dict
                part = stream.get_slice(name)
                code = part.get_dtype()
                dtype = str(_DTYPES[code]).removeprefix("torch.") if code in _DTYPES else code.lower()
                entries[name] = Entry(name, tuple(part.get_shape()), dtype, path, load(name))
    except (SafetensorError, OSError) as error:
        raise InputError(f"not a readable safetensors file: {error}", where=str(path), fix=_AGAIN) from error
    return entries


def _open_pickle(path: Path) -> dict[str, Entry]:
    content = _load_pickle(path)
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}, not a state dict", where=str(path), fix=_SAVE_AGAIN)
    others = [f"{name} ({type(value).__name__})" for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise InputError(f"entries that are not tensors: {', '.join(others[:5])}", where=str(path), fix=_SAVE_AGAIN)
    return {
        str(name): Entry(
            str(name), tuple(value.shape), str(value.dtype).removeprefix("torch."), path, partial(_itself, value)
        )
        for name, value in content.items()
    }


def _itself(tensor: Tensor) -> Tensor:
    return tensor


_SAVE_AGAIN = "save the module's state_dict() alone, best as .safetensors"


def _load_pickle(path: Path) -> object:
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        # torch's own message recommends the unsafe way, so it is not passed on.
        raise InputError(
            "refused: this pickle holds something other than tensors; nothing in it was executed",
            where=str(path),
            fix=_SAVE_AGAIN,
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise InputError(f"not a readable PyTorch file: {error}", where=str(path), fix=_AGAIN) from error
    return content
