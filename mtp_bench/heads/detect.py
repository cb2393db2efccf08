"""What a path holds: a base model, heads, or both in one folder.

Nothing is handed to `AutoConfig`: heads folders have configs that are not model configs, and the tensors' names tell
the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtp_bench.errors import InputError
from mtp_bench.files import read_json
from mtp_bench.heads.eagle.layouts import is_eagle
from mtp_bench.heads.medusa.layouts import Layout, layout_of
from mtp_bench.heads.tensors import WeightFiles, find_weights

FORMAT_MAJOR = 1

Kind = Literal["base_model", "medusa_heads", "medusa_whole_model", "eagle_heads", "hydra_heads", "gguf", "unknown"]
KIND_NAMES: Mapping[Kind, str] = {
    "base_model": "a base model",
    "medusa_heads": "Medusa heads",
    "medusa_whole_model": "a base model with Medusa heads inside",
    "eagle_heads": "an EAGLE draft layer",
    "hydra_heads": "Hydra heads",
    "gguf": "a GGUF file",
    "unknown": "nothing that this program knows",
}


@dataclass(frozen=True, slots=True)
class Detection:
    """What a path is, with what was read to find out. `config` is empty where there is none."""

    path: Path
    kind: Kind
    layout: Layout | None
    weights: WeightFiles | None
    config: Mapping[str, Any]


def detect(path: Path) -> Detection:
    """Find out what a folder or a weight file is, from headers and names.

    Raises:
        InputError: no such path, or a weight file that is damaged or refused.
    """
    path = Path(path)
    if not path.exists():
        raise InputError("no such file or folder", where=str(path), fix="check the path")
    if gguf_file(path) is not None:
        return Detection(path, "gguf", None, None, {})
    folder = path if path.is_dir() else path.parent
    config = read_config(folder)
    if path.is_file() and path.suffix not in (".safetensors", ".pt", ".bin", ".pth"):
        return Detection(path, "unknown", None, None, {})
    weights = find_weights(path)
    if weights is None:
        return Detection(path, "base_model" if _is_model_config(config) else "unknown", None, None, config)
    layout = layout_of(weights.file_of)
    # Not all kinds of Hydra heads can be told by their tensors.
    kind = "hydra_heads" if "hydra_head_arch" in config else _kind(weights.file_of, layout)
    return Detection(path, kind, layout, weights, config)


def require_base_model(path: Path) -> Detection:
    """The same for a path given as `--model`.

    Raises:
        InputError: heads alone, or nothing known, where a base model is needed.
    """
    found = detect(path)
    if found.kind in ("base_model", "medusa_whole_model", "gguf"):
        return found
    if found.kind == "unknown":
        raise InputError("no base model here: neither a model config nor weights", where=str(path))
    base = found.config.get("base_model_name_or_path")
    model = f"--model {base}" if isinstance(base, str) else "the base model with --model"
    raise InputError(
        f"this is {KIND_NAMES[found.kind]}, not a base model",
        where=str(path),
        fix=f"give {model}, and this folder with --heads",
    )


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a path is, or that is the only model in a folder."""
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        return files[0] if files and not (path / "config.json").exists() else None
    with open(path, "rb") as stream:
        return path if stream.read(4) == b"GGUF" else None


def read_config(folder: Path) -> Mapping[str, Any]:
    """The folder's `config.json`, or an empty mapping.

    Raises:
        InputError: it is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError("not a JSON object", where=str(path), fix="download or write the file again")
    return config


def _is_model_config(config: Mapping[str, Any]) -> bool:
    return "model_type" in config and config["model_type"] != "medusa"


def _kind(names: Iterable[str], layout: Layout | None) -> Kind:
    names = tuple(names)
    if layout is not None:
        return "medusa_whole_model" if any(n.endswith("embed_tokens.weight") for n in names) else "medusa_heads"
    if any(name.startswith("hydra_mlp.") for name in names):
        return "hydra_heads"
    if is_eagle(names):
        return "eagle_heads"
    layers = any(".layers." in name or ".h." in name for name in names)
    return "base_model" if layers and any("embed" in n or "wte" in n for n in names) else "unknown"


def base_model_of(found: Detection) -> str | None:
    """The base model that heads say they were trained for; a whole model's heads belong to the folder's own weights."""
    if found.kind == "medusa_whole_model":
        return str(found.path)
    name = found.config.get("base_model_name_or_path")
    return name if isinstance(name, str) and name else None


def check_format(found: Detection) -> None:
    """Raises:
    InputError: the heads were written by a newer version of this program.
    """
    version = str(own_facts(found.config).get("schema_version", f"{FORMAT_MAJOR}.0"))
    if version.split(".")[0] != str(FORMAT_MAJOR):
        raise InputError(
            f"written in heads format {version}; this program reads {FORMAT_MAJOR}.x",
            where=f"{found.path}/config.json:/mtp_bench/schema_version",
            fix="install a newer mtp-bench",
        )


def own_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What this project's own writers put into a config."""
    facts = config.get("mtp_bench")
    return dict(facts) if isinstance(facts, dict) else {}
