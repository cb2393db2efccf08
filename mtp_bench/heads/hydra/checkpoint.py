"""Loading Hydra heads (``hydra_lm_head.pt``): the grounded MLP kind; the other kinds are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts, HeadsInfo
from mtp_bench.heads.detect import Detection
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.tensors import Entry, content_hash

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_LM = re.compile(r"hydra_lm_head\.(\d+)\.(weight|bias)")
_IGNORED = "input_embed_fn.weight"  # a copy of the base model's embedding that leaks in
_FIX = "download the heads again; nothing is filled in with random weights"


def hydra_entries(found: Detection) -> dict[str, Entry]:
    """The heads' tensors, from headers alone where the files have headers, complete and of the right shapes.

    Raises:
        InputError: another kind of Hydra heads, or tensors missing, surplus or of the wrong shape.
    """
    assert found.weights is not None
    names = found.weights.file_of
    where = str(found.path)
    kind = found.config.get("hydra_head_arch")
    if any(name.startswith("prefix_embeding_layer.") for name in names) or kind not in (None, "mlp"):
        raise InputError(
            f"Hydra heads of the kind {kind or 'prefix-mlp'} are not supported",
            where=where,
            fix="use heads of the kind mlp, an EAGLE draft, or Medusa heads",
        )
    entries = found.weights.open([name for name in names if name != _IGNORED])
    surplus = [name for name in entries if not (_BLOCK.fullmatch(name) or _LM.fullmatch(name))]
    if surplus:
        raise InputError(f"tensors that do not belong to Hydra heads: {', '.join(surplus[:6])}", where=where, fix=_FIX)
    wanted = _shapes(entries, where)
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise InputError(f"missing tensors: {', '.join(missing[:6])}", where=where, fix=_FIX)
    for name, entry in entries.items():
        if entry.shape != wanted.get(name):
            expected = wanted.get(name)
            raise InputError(
                f"tensor {name} has shape {list(entry.shape)}, {list(expected) if expected else 'none'} expected",
                where=where,
                fix=_FIX,
            )
    return entries


def _shapes(entries: Mapping[str, Entry], where: str) -> dict[str, tuple[int, ...]]:
    """All names and shapes that follow from how many heads and blocks there are."""
    lm = entries.get("hydra_lm_head.0.weight")
    if lm is None or len(lm.shape) != 2:
        raise InputError("missing tensors: hydra_lm_head.0.weight", where=where, fix=_FIX)
    vocabulary, hidden = lm.shape
    places = [match for name in entries if (match := _BLOCK.fullmatch(name))]
    heads = 1 + max((int(match[1]) for match in places), default=0)
    blocks = 1 + max((int(match[2]) for match in places), default=0)
    bias = "hydra_lm_head.0.bias" in entries
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            width = (head + 2) * hidden if block == 0 else hidden
            shapes[f"hydra_mlp.{head}.{block}.linear.weight"] = (hidden, width)
            shapes[f"hydra_mlp.{head}.{block}.linear.bias"] = (hidden,)
        shapes[f"hydra_mlp.{head}.0.res_connection.weight"] = (hidden, (head + 2) * hidden)
        shapes[f"hydra_mlp.{head}.0.res_connection.bias"] = (hidden,)
        shapes[f"hydra_lm_head.{head}.weight"] = (vocabulary, hidden)
        if bias:
            shapes[f"hydra_lm_head.{head}.bias"] = (vocabulary,)
    return shapes


def hydra_info(found: Detection, entries: Mapping[str, Entry]) -> HeadsInfo:
    """What these heads are; no tensor is read."""
    places = [match for name in entries if (match := _BLOCK.fullmatch(name))]
    base = found.config.get("base_model_name_or_path")
    declared = found.config.get("hydra_num_heads")
    heads = 1 + max(int(match[1]) for match in places)
    warnings: tuple[str, ...] = ()
    if declared is not None and declared != heads:
        warnings = (f"W-CONFIG: config.json says {declared} for heads, the file stores {heads}; the file is believed",)
    return HeadsInfo(
        method="hydra",
        layout="hydra",
        num_heads=heads,
        num_layers=1 + max(int(match[2]) for match in places),
        hidden_size=entries["hydra_lm_head.0.weight"].shape[1],
        draft_vocab_size=None,
        lm_head="own",
        bias=True,
        dtype="+".join(sorted({entry.dtype for entry in entries.values()})),
        parameters=sum(entry.numel for entry in entries.values()),
        bytes=sum(entry.numel * (entry.torch_dtype.itemsize if entry.torch_dtype else 1) for entry in entries.values()),
        base_model=base if isinstance(base, str) else None,
        warnings=warnings,
    )


def load_hydra(found: Detection, base: BaseFacts, dtype: torch.dtype, device: torch.device | str) -> HydraHeads:
    """The heads of a detected path, attached to their base model.

    Raises:
        InputError: as `hydra_entries`, or they do not fit the base model.
    """
    entries = hydra_entries(found)
    info = hydra_info(found, entries)
    _check_fit(entries, base, found.path)
    tensors = {name: entry.load() for name, entry in entries.items()}
    hashed = content_hash(tensors)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}

    def pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    heads = HydraHeads(
        [[pair(f"hydra_mlp.{i}.{j}.linear") for j in range(info.num_layers)] for i in range(info.num_heads)],
        [pair(f"hydra_mlp.{i}.0.res_connection") for i in range(info.num_heads)],
        [(tensors[f"hydra_lm_head.{i}.weight"], tensors.get(f"hydra_lm_head.{i}.bias")) for i in range(info.num_heads)],
        meta=replace(info, hash=hashed),
    ).to(device)
    if base.embedding_weight is not None:
        heads.attach(base.embedding_weight())
    return heads.eval().requires_grad_(False)


def _check_fit(entries: Mapping[str, Entry], base: BaseFacts, path: Path) -> None:
    vocabulary, hidden = entries["hydra_lm_head.0.weight"].shape
    fix = f"use the heads that were trained for {base.name}, or the base model that these were trained for"
    if hidden != base.hidden_size:
        raise InputError(
            f"heads have hidden size {hidden}, the base model {base.name} has {base.hidden_size}",
            where=str(path),
            fix=fix,
        )
    if vocabulary != base.vocab_size:
        raise InputError(
            f"heads have {vocabulary} vocabulary rows, the base model {base.name} has {base.vocab_size}",
            where=str(path),
            fix=fix,
        )
