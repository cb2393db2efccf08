"""Loading Medusa heads: what the file holds is checked against itself and against the base model, then taken as is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts, HeadsInfo
from mtp_bench.heads.detect import KIND_NAMES, Detection, base_model_of, own_facts
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.medusa.layouts import Plan, Slot, head_names, make_plan
from mtp_bench.heads.tensors import Entry


def load_medusa(found: Detection, base: BaseFacts, dtype: torch.dtype, device: torch.device | str) -> MedusaHeads:
    """The heads of a detected path, attached to the base model's LM head if they use it.

    Raises:
        InputError: no Medusa heads; tensors missing, surplus or of the wrong size; or made for another base model.
    """
    plan = plan_of(found)
    _check_fit(plan, base, found.path)
    tensors = {slot: entry.load() for slot, entry in plan.slots.items()}
    token_map = tensors.get(Slot("token_map"))
    if token_map is not None:
        _check_token_map(token_map, base.vocab_size, found.path)
    info = replace(heads_info(found, plan), hash=content_hash(plan, tensors), warnings=plan.warnings)
    heads = _assemble(plan, tensors, info, dtype).to(device)
    if heads.lm_head == "base":
        heads.attach(base.lm_head_weight() if base.lm_head_weight else None)
        heads.meta = replace(info, draft_vocab_size=heads.draft_vocab_size)
    return heads.eval().requires_grad_(False)


def plan_of(found: Detection) -> Plan:
    """The plan of the heads at a detected path, from headers alone where the files have headers.

    Raises:
        InputError: the path holds no heads, or their tensors are not complete.
    """
    if found.layout is None or found.weights is None:
        raise _refusal(found)
    names = head_names(found.weights.file_of, found.layout)
    plan = make_plan(found.weights.open(names), found.layout, found.config)
    if found.layout == "vllm" and plan.lm_head == "base" and own_facts(found.config).get("lm_head") != "base":
        raise InputError(
            "missing tensors: lm_heads.0.weight (the vLLM layout stores the LM matrix)", where=str(found.path)
        )
    unused = tuple(f"W-UNUSED: {name} lies beside the weights that were read" for name in found.weights.unused)
    return replace(plan, warnings=plan.warnings + unused)


def heads_info(found: Detection, plan: Plan) -> HeadsInfo:
    """What a plan says about its heads; no tensor is read."""
    entries = plan.entries
    sizes = [entry.numel * _element_size(entry) for entry in entries]
    weights = [entry for slot, entry in plan.slots.items() if slot.part != "token_map"]
    return HeadsInfo(
        method="medusa",
        layout=plan.layout,
        num_heads=plan.num_heads,
        num_layers=plan.num_layers,
        hidden_size=plan.hidden_size,
        draft_vocab_size=plan.draft_vocab_size,
        lm_head=plan.lm_head,
        bias=plan.bias,
        dtype="+".join(sorted({entry.dtype for entry in weights})),
        parameters=sum(entry.numel for entry in weights),
        bytes=sum(sizes),
        base_model=base_model_of(found),
        warnings=plan.warnings,
        facts=own_facts(found.config),
    )


def content_hash(plan: Plan, tensors: Mapping[Slot, Tensor]) -> str:
    """ "sha256:..." over the heads' tensors as stored, the same in whatever layout they are kept."""
    digest = hashlib.sha256()
    for slot in sorted(tensors, key=lambda s: (s.part, s.head, s.layer)):
        tensor = tensors[slot].contiguous()
        digest.update(f"{slot.part} {slot.head} {slot.layer} {plan.slots[slot].dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def _refusal(found: Detection) -> InputError:
    if found.kind in ("base_model", "gguf"):
        return InputError(
            "this is a base model; heads needed",
            where=str(found.path),
            fix="give it with --model, and a heads folder with --heads; `mtp-bench train-heads` makes heads",
        )
    return InputError(
        f"no Medusa heads here; this is {KIND_NAMES[found.kind]}",
        where=str(found.path),
        fix="give a folder with medusa_lm_head.pt, medusa_lm_head.safetensors or model.safetensors",
    )


def _check_fit(plan: Plan, base: BaseFacts, path: Path) -> None:
    fix = f"use the heads that were trained for {base.name}, or the base model that these were trained for"
    if plan.hidden_size != base.hidden_size:
        raise InputError(
            f"heads have hidden size {plan.hidden_size}, the base model {base.name} has {base.hidden_size}",
            where=str(path),
            fix=fix,
        )
    reduced = plan.slots.get(Slot("token_map"))
    allowed = {base.vocab_size, reduced.shape[0]} if reduced else {base.vocab_size}
    if plan.vocabulary_rows is not None and plan.vocabulary_rows not in allowed:
        raise InputError(
            f"heads have {plan.vocabulary_rows} vocabulary rows, the base model {base.name} has {base.vocab_size}",
            where=str(path),
            fix=fix,
        )
    unreadable = [e.name for e in plan.entries if e.torch_dtype is None]
    integers = [s.part for s, e in plan.slots.items() if s.part != "token_map" and not _is_float(e)]
    if unreadable or integers:
        raise InputError("quantised heads are not supported", where=str(path), fix="use the 16- or 32-bit heads")


def _check_token_map(token_map: Tensor, vocab_size: int, path: Path) -> None:
    where = f"{path}: token_map"
    if token_map.is_floating_point() or token_map.dtype == torch.bool or len(token_map) == 0:
        raise InputError(
            f"must hold at least one integer token id, is {token_map.dtype} {list(token_map.shape)}", where=where
        )
    low, high = int(token_map.min()), int(token_map.max())
    if low < 0 or high >= vocab_size:
        raise InputError(f"token ids from {low} to {high}, the base model's go from 0 to {vocab_size - 1}", where=where)
    if len(set(token_map.tolist())) != len(token_map):
        raise InputError("the same token id stands there twice", where=where)


def _assemble(plan: Plan, tensors: Mapping[Slot, Tensor], info: HeadsInfo, dtype: torch.dtype) -> MedusaHeads:
    heads, layers = range(plan.num_heads), range(plan.num_layers)

    def stack(part: Any) -> Tensor:
        return torch.stack([torch.stack([tensors[Slot(part, i, j)].to(dtype) for i in heads]) for j in layers])

    token_map = tensors.get(Slot("token_map"))
    token_map = None if token_map is None else token_map.to(torch.int64)

    def rows(tensor: Tensor) -> Tensor:
        gather = token_map is not None and len(tensor) > len(token_map)
        return (tensor[token_map] if gather else tensor).to(dtype)

    lm_weight = None
    if plan.lm_head == "own":
        lm_weight = torch.stack([rows(tensors[Slot("lm", i)]) for i in heads])
    elif plan.lm_head == "shared":
        lm_weight = rows(tensors[Slot("lm_shared")])
    return MedusaHeads(
        stack("weight"),
        stack("bias") if plan.bias else None,
        lm_head=plan.lm_head,
        lm_weight=lm_weight,
        token_map=token_map,
        meta=info,
    )


def _is_float(entry: Entry) -> bool:
    return entry.torch_dtype is not None and entry.torch_dtype.is_floating_point


def _element_size(entry: Entry) -> int:
    return entry.torch_dtype.itemsize if entry.torch_dtype is not None else 1
