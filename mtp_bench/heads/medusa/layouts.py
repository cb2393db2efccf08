"""Checkpoint layouts of Medusa heads: which tensor name means which weight of which head.

Everything is inferred from the tensors themselves, since published `config.json` files are often wrong (the best known
one declares 2 heads beside a file with 5). `make_plan` needs names, shapes and dtypes only, so it serves both the
loader and `inspect`, which reads headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mtp_bench.errors import InputError
from mtp_bench.heads.base import LmHead
from mtp_bench.heads.tensors import Entry

Layout = Literal["medusa-v0.1", "medusa-v2", "medusa-whole-model", "modelopt", "vllm"]

_PART = Literal["weight", "bias", "lm", "lm_shared", "token_map"]
# {i}.{j}.linear.weight (v0.1 and what grew from it); NVIDIA spells a module name out in between.
_BLOCK = re.compile(r"(\d+)\.(?:medusa_layers\.)?(\d+)\.linear\.(weight|bias)")
_LM = re.compile(r"(\d+)\.(?:(\d+)|lm_head)\.weight")
_VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_VLLM_LM = re.compile(r"lm_heads\.(\d+)\.weight")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor. For "lm" `layer` is the index in its name (= number of blocks), -1 where it has none."""

    part: _PART
    head: int = -1
    layer: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a checkpoint holds, complete and consistent. `vocabulary_rows` = rows of the stored LM matrices (None: the
    base model's are used); more rows than the token map has entries means that they are to be gathered by it."""

    layout: Layout
    num_heads: int
    num_layers: int
    hidden_size: int
    lm_head: LmHead
    bias: bool
    vocabulary_rows: int | None
    draft_vocab_size: int | None
    slots: Mapping[Slot, Entry]
    warnings: tuple[str, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All tensors that belong to the heads."""
        return tuple(self.slots.values())


def layout_of(names: Iterable[str]) -> Layout | None:
    """The layout that these tensor names belong to, None when they are not Medusa heads."""
    names = tuple(names)
    if any(_VLLM_BLOCK.fullmatch(_strip(name)) for name in names):
        return "vllm"
    prefixed = [name for name in names if re.match(r"medusa_heads?\.\d", name)]
    if prefixed:
        whole = any(name.endswith("embed_tokens.weight") for name in names)
        return "medusa-whole-model" if whole or prefixed[0].startswith("medusa_head.") else "modelopt"
    if any(_BLOCK.fullmatch(name) for name in names):
        return "medusa-v0.1" if any(_LM.fullmatch(name) for name in names) else "medusa-v2"
    return None


def head_names(names: Iterable[str], layout: Layout) -> tuple[str, ...]:
    """The names to read: all of them, except that a whole model's own weights are left alone."""
    if layout in ("medusa-whole-model", "modelopt"):
        return tuple(name for name in names if re.match(r"medusa_heads?\.", name))
    return tuple(names)


def make_plan(entries: Mapping[str, Entry], layout: Layout, config: Mapping[str, Any]) -> Plan:
    """Give every tensor its place, and check that none is missing, surplus or of the wrong shape.

    Raises:
        InputError: naming the tensors.
    """
    slots, surplus = _place(entries, layout)
    where = str(next(iter(entries.values())).file)
    if surplus:
        raise InputError(f"tensors that do not belong to {layout} heads: {_some(surplus)}", where=where, fix=_FIX)
    num_heads = 1 + max(slot.head for slot in slots)
    num_layers = max(slot.layer + (slot.part != "lm") for slot in slots if slot.head >= 0)
    stray = [e.name for s, e in slots.items() if s.part == "lm" and s.layer not in (-1, num_layers)]
    slots, lm_head, notes = _settle_lm_head(slots, config)
    bias = any(slot.part == "bias" for slot in slots)
    missing = _missing(slots, layout, num_heads, num_layers, lm_head, bias)
    if missing:
        raise InputError(f"missing tensors: {_some(missing)}", where=where, fix=_FIX)
    if stray:
        raise InputError(f"LM matrices in the place of a block: {_some(stray)}", where=where, fix=_FIX)
    hidden = slots[Slot("weight", 0, 0)].shape[0]
    rows = _check_shapes(slots, hidden)
    token_map = slots.get(Slot("token_map"))
    return Plan(
        layout=layout,
        num_heads=num_heads,
        num_layers=num_layers,
        hidden_size=hidden,
        lm_head=lm_head,
        bias=bias,
        vocabulary_rows=rows,
        draft_vocab_size=token_map.shape[0] if token_map else rows,
        slots=slots,
        warnings=(*notes, *config_disagreements(config, layout, num_heads, num_layers, hidden)),
    )


_FIX = "download or convert the heads again; nothing is filled in with random weights"


def config_disagreements(
    config: Mapping[str, Any], layout: Layout, num_heads: int, num_layers: int, hidden_size: int
) -> tuple[str, ...]:
    """Warnings where `config.json` says other numbers than the tensors; the tensors are believed."""
    nested = config.get("medusa") if isinstance(config.get("medusa"), dict) else {}
    heads = [config.get("medusa_num_heads"), (nested or {}).get("num_medusa_heads"), config.get("num_medusa_heads")]
    layers = [config.get("medusa_num_layers"), (nested or {}).get("num_medusa_layers"), config.get("num_medusa_layers")]
    if layout == "vllm":
        heads.append(config.get("num_heads"))
        layers.append(config.get("num_hidden_layers"))
    compared = [("heads", heads, num_heads), ("layers per head", layers, num_layers)]
    compared.append(("hidden size", [config.get("hidden_size")], hidden_size))
    return tuple(
        f"W-CONFIG: config.json says {declared} for {what}, the file stores {stored}; the file is believed"
        for what, values, stored in compared
        for declared in values
        if declared is not None and declared != stored
    )


def _strip(name: str) -> str:
    return name.removeprefix("medusa_heads.").removeprefix("medusa_head.")


def _place(entries: Mapping[str, Entry], layout: Layout) -> tuple[dict[Slot, Entry], list[str]]:
    slots: dict[Slot, Entry] = {}
    surplus = []
    for name, entry in entries.items():
        slot = _vllm_slot(_strip(name)) if layout == "vllm" else _medusa_slot(_strip(name))
        if slot is None or slot in slots:
            surplus.append(name)
        else:
            slots[slot] = entry
    return slots, surplus


def _medusa_slot(name: str) -> Slot | None:
    if match := _BLOCK.fullmatch(name):
        return Slot("bias" if match[3] == "bias" else "weight", int(match[1]), int(match[2]))
    if match := _LM.fullmatch(name):
        return Slot("lm", int(match[1]), -1 if match[2] is None else int(match[2]))
    return None


def _vllm_slot(name: str) -> Slot | None:
    if match := _VLLM_BLOCK.fullmatch(name):
        return Slot("bias" if match[3] == "bias" else "weight", int(match[1]), int(match[2]))
    if match := _VLLM_LM.fullmatch(name):
        return Slot("lm", int(match[1]))
    if name == "lm_head.weight":
        return Slot("lm_shared")
    return Slot("token_map") if name == "token_map" else None


def _settle_lm_head(
    slots: Mapping[Slot, Entry], config: Mapping[str, Any]
) -> tuple[dict[Slot, Entry], LmHead, list[str]]:
    """Decide where the LM matrix comes from, and move each to one kind of place: Slot("lm", i) or Slot("lm_shared").

    With `original_lm_head` vLLM takes the first head's matrix for all heads, and passes over the others.
    """
    own = {Slot("lm", slot.head): entry for slot, entry in slots.items() if slot.part == "lm"}
    rest = {slot: entry for slot, entry in slots.items() if slot.part != "lm"}
    shared = Slot("lm_shared")
    if config.get("original_lm_head") and shared not in rest and Slot("lm", 0) in own:
        rest[shared] = own.pop(Slot("lm", 0))
    if shared in rest:
        unused = [entry.name for entry in own.values()]
        notes = [f"W-UNUSED: one LM head serves all heads; not used: {_some(unused)}"] if unused else []
        return rest, "shared", notes
    return (rest | own, "own", []) if own else (rest, "base", [])


def _missing(
    slots: Mapping[Slot, Entry], layout: Layout, num_heads: int, num_layers: int, lm_head: LmHead, bias: bool
) -> list[str]:
    parts: tuple[Literal["weight", "bias"], ...] = ("weight", "bias") if bias else ("weight",)
    wanted = [Slot(part, i, j) for i in range(num_heads) for j in range(num_layers) for part in parts]
    if lm_head == "own":
        wanted += [Slot("lm", i) for i in range(num_heads)]
    return [_name(slot, layout, num_layers) for slot in wanted if slot not in slots]


def _name(slot: Slot, layout: Layout, num_layers: int) -> str:
    if layout == "vllm":
        block = f"blocks.{slot.head}.layers.{slot.layer}.{slot.part}"
        return f"lm_heads.{slot.head}.weight" if slot.part == "lm" else block
    prefix = {"medusa-whole-model": "medusa_head.", "modelopt": "medusa_heads."}.get(layout, "")
    block = f"{prefix}{slot.head}.{slot.layer}.linear.{slot.part}"
    return f"{prefix}{slot.head}.{num_layers}.weight" if slot.part == "lm" else block


def _check_shapes(slots: Mapping[Slot, Entry], hidden: int) -> int | None:
    """Number of rows of the LM matrices, None when there are none.

    Raises:
        InputError: a tensor whose shape does not follow from the others.
    """
    lm = [entry for slot, entry in slots.items() if slot.part in ("lm", "lm_shared")]
    rows = lm[0].shape[0] if lm and lm[0].shape else None
    for slot, entry in slots.items():
        expected: tuple[int | None, ...] = {"weight": (hidden, hidden), "bias": (hidden,)}.get(
            slot.part, (rows, hidden)
        )
        if slot.part == "token_map":
            expected = (entry.shape[0] if entry.shape else 0,)
        if entry.shape != expected:
            raise InputError(
                f"tensor {entry.name} has shape {list(entry.shape)}, {list(expected)} expected",
                where=str(entry.file),
                fix=_FIX,
            )
    token_map = slots.get(Slot("token_map"))
    if token_map and rows is not None and rows < token_map.shape[0]:
        raise InputError(
            f"token_map has {token_map.shape[0]} entries, the LM matrix {rows} rows", where=str(token_map.file)
        )
    return rows


def _some(names: list[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(sorted(names)[:6]) + more
