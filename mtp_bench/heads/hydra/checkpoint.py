"""Loading Hydra heads (``hydra_lm_head.pt``) for their base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts, HeadsInfo
from mtp_bench.heads.detect import Detection
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.hydra.layout import PREFIX, HydraPlan, PrefixSizes, check_shapes, hydra_plan, prefix_shapes
from mtp_bench.heads.hydra.prefix import PrefixLayer, prefix_config
from mtp_bench.heads.tensors import content_hash


def hydra_info(found: Detection, plan: HydraPlan) -> HeadsInfo:
    """What these heads are; no tensor is read."""
    base = found.config.get("base_model_name_or_path")
    declared = found.config.get("hydra_num_heads")
    stored = plan.entries.values()
    warnings: tuple[str, ...] = ()
    if declared is not None and declared != plan.num_heads:
        warnings = (
            f"W-CONFIG: config.json says {declared} for heads, the file stores {plan.num_heads}; the file is believed",
        )
    facts: dict[str, Any] = {"kind": plan.kind, "hidden_state_offset": _offset(found)}
    if plan.kind == "prefix-mlp":
        facts["prefix_layer"] = plan.prefix_sizes._asdict()
    return HeadsInfo(
        method="hydra",
        layout="hydra",
        num_heads=plan.num_heads,
        num_layers=plan.num_layers,
        hidden_size=plan.entries[f"{plan.lm_head(0)}.weight"].shape[1],
        draft_vocab_size=None,
        lm_head="own",
        bias=True,
        dtype="+".join(sorted({entry.dtype for entry in stored})),
        parameters=sum(entry.numel for entry in stored),
        bytes=sum(entry.numel * (entry.torch_dtype.itemsize if entry.torch_dtype else 1) for entry in stored),
        base_model=base if isinstance(base, str) else None,
        warnings=warnings,
        facts=facts,
    )


def _offset(found: Detection) -> int:
    """How many layers before the last, normed hidden state the one lies that the heads read.

    Raises:
        InputError: no such number.
    """
    offset = found.config.get("hidden_state_offset", 0)
    if not isinstance(offset, int) or offset < 0:
        raise InputError(
            f"hidden_state_offset is {offset!r}, a number of layers expected",
            where=f"{found.path}/config.json",
            fix="put the heads' own config.json beside them",
        )
    return offset


def load_hydra(found: Detection, base: BaseFacts, dtype: torch.dtype, device: torch.device | str) -> HydraHeads:
    """The heads of a detected path, attached to their base model.

    Raises:
        InputError: as `hydra_plan`, or they do not fit the base model.
    """
    plan = hydra_plan(found)
    info = hydra_info(found, plan)
    _check_fit(plan, base, str(found.path))
    aux_layers = _aux_layers(_offset(found), base, str(found.path))
    tensors = {name: entry.load() for name, entry in plan.entries.items()}
    hashed = content_hash(tensors)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}

    def pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    places = [plan.lm_head(i) for i in range(info.num_heads)]
    heads = HydraHeads(
        [[pair(f"{plan.block(i, j)}.linear") for j in range(info.num_layers)] for i in range(info.num_heads)],
        [pair(f"{plan.block(i, 0)}.res_connection") for i in range(info.num_heads)],
        [(tensors[f"{place}.weight"], tensors.get(f"{place}.bias")) for place in places],
        prefix=_prefix(plan, tensors, base),
        aux_layers=aux_layers,
        meta=replace(info, hash=hashed),
    ).to(device)
    if base.embedding_weight is not None:
        heads.attach(base.embedding_weight())
    return heads.eval().requires_grad_(False)


def _prefix(plan: HydraPlan, tensors: Mapping[str, torch.Tensor], base: BaseFacts) -> PrefixLayer | None:
    if plan.kind == "mlp":
        return None
    stored = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    own = {name.replace("layers.0.", "layer."): tensor for name, tensor in stored.items()}
    return PrefixLayer(prefix_config(base), own)


def _aux_layers(offset: int, base: BaseFacts, where: str) -> tuple[int, ...]:
    """The hidden state ``offset`` layers before the last, as the layer that it enters."""
    if offset == 0:
        return ()
    if base.num_layers is None or offset > base.num_layers:
        raise InputError(
            f"the heads read a hidden state {offset} layers before the last, {base.name} has {base.num_layers} layers",
            where=where,
            fix="use the base model that these heads were trained for",
        )
    return (base.num_layers - offset,)


def _check_fit(plan: HydraPlan, base: BaseFacts, where: str) -> None:
    vocabulary, hidden = plan.entries[f"{plan.lm_head(0)}.weight"].shape
    fix = f"use the heads that were trained for {base.name}, or the base model that these were trained for"
    if hidden != base.hidden_size:
        raise InputError(
            f"heads have hidden size {hidden}, the base model {base.name} has {base.hidden_size}", where=where, fix=fix
        )
    if vocabulary != base.vocab_size:
        raise InputError(
            f"heads have {vocabulary} vocabulary rows, the base model {base.name} has {base.vocab_size}",
            where=where,
            fix=fix,
        )
    if plan.kind == "prefix-mlp":
        layer = prefix_config(base)
        sizes = PrefixSizes(
            layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim, layer.intermediate_size
        )
        check_shapes(plan.entries, prefix_shapes(hidden, sizes), where, f" of a layer like those of {base.name}")
