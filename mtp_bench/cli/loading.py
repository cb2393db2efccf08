"""Loading a base model and its heads as the common options name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_bench.errors import InputError
from mtp_bench.progress import say, warn

if TYPE_CHECKING:
    from mtp_bench.heads.base import HeadsInfo
    from mtp_bench.heads.kinds import AnyHeads
    from mtp_bench.models.base import BaseModel


def load_base(
    model: str, *, dtype: str = "auto", device: str = "auto", attention: str = "auto", engine: str = "auto",
    load_format: str = "auto", seed: int = 0, device_map: str | None = None,
) -> BaseModel:  # fmt: skip
    """Load the base model and say what ``auto`` picked."""
    from mtp_bench.models.load import LoadOptions, load_base_model
    from mtp_bench.models.split import layers_by_place

    if load_format not in ("auto", "dummy"):
        raise InputError(f"unknown load format {load_format!r}", where="--load-format", fix="use auto or dummy")
    dummy = load_format == "dummy"
    base = load_base_model(model, LoadOptions(dtype, device, attention, engine, dummy, seed, device_map))
    picked = str(base.dtype).removeprefix("torch.")
    millions = base.num_parameters / 1e6
    where = str(base.device)
    if base.device_map is not None:
        layers = layers_by_place(base.model, base.device_map)
        where = f"{', '.join(f'{place} ({n} layers)' for place, n in layers.items())}, LM head on {base.device}"
    how = f"{picked} on {where}, {base.attention}, {base.engine}"
    say(f"base model {base.name}: {millions:.0f}M parameters, {how}")
    return base


def find_heads(heads: str | None, model: str) -> Path:
    """The heads' folder or file.

    Raises:
        InputError: none named and none shipped, or the name is unknown.
    """
    from mtp_bench.heads.shipped import default_heads_for, shipped_heads, shipped_names

    name = heads or default_heads_for(model)
    if name is None:
        raise InputError(
            f"no heads are shipped for {model}",
            where="--heads",
            fix="name a folder with Medusa or EAGLE heads, or train some",
        )
    if Path(name).exists():
        return Path(name)
    shipped = shipped_heads(name)
    if shipped is None:
        raise InputError(
            "no such folder, and no shipped heads of that name",
            where=f"--heads {name}",
            fix=f"shipped: {', '.join(shipped_names()) or 'none'}",
        )
    return shipped


def load_heads(
    heads: str | None, base: BaseModel, *, aux_layers: str | None = None, depth: int | None = None
) -> tuple[AnyHeads, HeadsInfo]:
    """Load heads for ``base``; warnings go to stderr and stay in the returned info.

    Args:
        aux_layers: comma-separated layers that an EAGLE-3 draft reads, instead of those its config names.
        depth: how deep an EAGLE draft may draft.
    """
    from mtp_bench.heads import load
    from mtp_bench.heads.base import BaseFacts
    from mtp_bench.heads.eagle.draft import EagleDraft
    from mtp_bench.models.aliases import hub_id

    path = find_heads(heads, base.name)
    hub = hub_id(base.name)
    facts = BaseFacts(
        hidden_size=base.hidden_size,
        vocab_size=base.vocab_size,
        name=base.name,
        lm_head_weight=lambda: base.lm_head_weight,
        embedding_weight=lambda: base.embedding_weight,
        num_layers=base.num_layers,
        aliases=(hub, base.source) if hub else (base.source,),
        weights_hash=base.sha256,
        config=base.config.to_dict(),
    )
    loaded = load.load_heads(
        path, base=facts, dtype=base.dtype, device=base.device, aux_layers=parse_layers(aux_layers)
    )
    info = replace(loaded.info, facts={**loaded.info.facts, "source": heads or path.name})
    if isinstance(loaded.heads, EagleDraft):
        loaded.heads.max_depth = depth or loaded.heads.max_depth
        info = replace(info, facts={**info.facts, "depth": loaded.heads.max_depth})
        say(f"draft {path.name}: {info.method}, {info.layout} layout, {info.bytes / 1e6:.1f} MB")
    elif depth is not None:
        raise InputError(
            f"{info.method} heads are {info.num_heads} deep, as many as there are",
            where="--depth",
            fix="leave it out; it is for EAGLE drafts, which draft as deep as they are asked to",
        )
    else:
        say(f"heads {path.name}: {info.num_heads} heads, {info.layout} layout, {info.bytes / 1e6:.1f} MB")
    for warning in loaded.warnings:
        warn(warning)
    return loaded.heads, info


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """``2,15,27`` -> layer numbers; None and ``auto`` leave it to the draft's config.

    Raises:
        InputError: not a list of layer numbers.
    """
    if text is None or text == "auto":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{text!r} is no list of layers", where="--aux-layers", fix="write e.g. 2,15,27") from error
