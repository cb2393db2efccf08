"""What a folder is, told from headers: nothing is loaded but what pickles force one to read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.heads.base import HeadsInfo
from mtp_bench.heads.detect import KIND_NAMES, Detection, Kind, detect, gguf_file
from mtp_bench.heads.eagle.checkpoint import eagle_info, eagle_plan
from mtp_bench.heads.hydra.checkpoint import hydra_info
from mtp_bench.heads.hydra.layout import hydra_plan
from mtp_bench.heads.medusa.checkpoint import heads_info, plan_of

_GGUF_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` reports. `model` describes the base model part, `heads` the heads part, where there is one."""

    path: Path
    kind: Kind
    model: dict[str, Any] = field(default_factory=dict)
    heads: HeadsInfo | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict that JSON can hold."""
        heads = None if self.heads is None else self.heads.to_dict()
        return {"path": str(self.path), "kind": self.kind, "model": self.model or None, "heads": heads}


def inspect_path(path: Path) -> Inspection:
    """Say what a folder or weight file is.

    Raises:
        InputError: no such path; a damaged, refused or incomplete checkpoint.
    """
    found = detect(path)
    heads = heads_info(found, plan_of(found)) if found.layout is not None else None
    if found.kind == "eagle_heads":
        heads = eagle_info(found, eagle_plan(found))
    if found.kind == "hydra_heads":
        heads = hydra_info(found, hydra_plan(found))
    model: dict[str, Any] = {}
    if found.kind == "gguf":
        model = _gguf_facts(path)
    elif found.kind in ("base_model", "medusa_whole_model"):
        model = _model_facts(found)
    return Inspection(Path(path), found.kind, model, heads)


def describe(inspection: Inspection) -> str:
    """The report for a terminal: one fact a line."""
    lines = [f"{inspection.path}: {KIND_NAMES[inspection.kind]}"]
    lines += [f"  {key.replace('_', ' ')}: {_number(value)}" for key, value in inspection.model.items()]
    if inspection.heads is not None:
        lines += _heads_lines(inspection.heads)
    return "\n".join(lines)


_LM_HEADS = {"own": "one per head", "shared": "one for all heads", "base": "the base model's"}


def _heads_lines(info: HeadsInfo) -> list[str]:
    if info.method in ("eagle", "eagle3"):
        return _draft_lines(info)
    vocabulary = "the base model's" if info.draft_vocab_size is None else f"{info.draft_vocab_size:,} tokens"
    facts = {
        "layout": info.layout,
        **_hydra_facts(info.facts),
        "heads": info.num_heads,
        "layers per head": f"{info.num_layers}, {'with' if info.bias else 'without'} bias",
        "hidden size": f"{info.hidden_size:,}",
        "LM head": _LM_HEADS[info.lm_head],
        "draft vocabulary": vocabulary,
        "parameters": f"{info.parameters:,}",
        "bytes": f"{info.bytes:,} ({info.bytes / 2**20:,.1f} MiB, {info.dtype})",
        "for base model": info.base_model or "not stated",
    }
    lines = [f"  {key}: {value}" for key, value in facts.items()]
    return lines + [f"  warning {warning}" for warning in info.warnings]


def _hydra_facts(own: Mapping[str, Any]) -> dict[str, str]:
    """What Hydra heads have beside what Medusa heads do."""
    if "kind" not in own:
        return {}
    offset, prefix = own["hidden_state_offset"], own.get("prefix_layer")
    before = f"{offset} layers before the last" if offset else "the last, after the final norm"
    facts = {"kind": own["kind"], "reads the hidden state of": before}
    if prefix is not None:
        sizes = ", ".join(f"{part} {rows:,}" for part, rows in prefix.items())
        facts["prefix layer"] = f"{sizes} wide; heads, RoPE and norms are the base model's"
    return facts


def _draft_lines(info: HeadsInfo) -> list[str]:
    own = info.facts
    layers = ", ".join(map(str, own["aux_layers"])) or "the last, after the final norm"
    facts = {
        "method": info.method,
        "layout": info.layout,
        "hidden size": f"{info.hidden_size:,}",
        "fc bias": "yes" if info.bias else "no",
        "reads the inputs of layers" if own["aux_layers"] else "reads the hidden state of": layers,
        "attention": own["attention"],
        "MLP": f"{own['intermediate_size']:,} wide",
        "RoPE": ", ".join(f"{key} {value}" for key, value in own["rope"].items()),
        "embedding": own["embedding"],
        "LM head": "own" if info.lm_head == "own" else "the base model's",
        "final norm": "yes" if own["final_norm"] else "no",
        "switches": ", ".join(own["switches"]) or "none",
        "draft vocabulary": "the base model's"
        if info.draft_vocab_size is None
        else f"{info.draft_vocab_size:,} tokens",
        "parameters": f"{info.parameters:,}",
        "bytes": f"{info.bytes:,} ({info.bytes / 2**20:,.1f} MiB, {info.dtype})",
        "for base model": info.base_model or "not stated",
    }
    lines = [f"  {key}: {value}" for key, value in facts.items()]
    return lines + [f"  warning {warning}" for warning in info.warnings]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model_facts(found: Detection) -> dict[str, Any]:
    keys = (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    facts = {key: found.config[key] for key in keys if key in found.config}
    weights = found.weights
    if weights is None:
        return facts | {"weights": "none (usable with --load-format dummy)"}
    files = set(weights.file_of.values())
    missing = sorted(file.name for file in files if not file.is_file())
    if missing:
        raise InputError(f"weight files are missing: {', '.join(missing)}", where=str(found.path), fix="download them")
    facts |= {"tensors": len(weights.file_of), "bytes": sum(file.stat().st_size for file in files)}
    if all(file.suffix == ".safetensors" for file in files):  # pickles would have to be read whole
        facts["parameters"] = sum(entry.numel for entry in weights.open(weights.file_of).values())
    return facts


def _gguf_facts(path: Path) -> dict[str, Any]:
    """Version and tensor count from the head of the file: magic, uint32 version, uint64 tensors, uint64 metadata."""
    file = gguf_file(path)
    assert file is not None
    with open(file, "rb") as stream:
        head = stream.read(24)
    if len(head) < 24 or head[:4] != b"GGUF":
        raise InputError(
            "not a readable GGUF file: it ends inside its header", where=str(file), fix="download it again"
        )
    version, tensors = struct.unpack("<IQ", head[4:16])
    if version not in _GGUF_VERSIONS:
        raise InputError(f"GGUF version {version}; this program reads 2 and 3", where=str(file))
    return {"file": file.name, "gguf_version": version, "tensors": tensors, "bytes": file.stat().st_size}
