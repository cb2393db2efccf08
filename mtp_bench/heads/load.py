"""Loading heads of any kind: detected from names and shapes, checked against themselves and against the base model.

No tensor is ever made up: one that is missing, surplus or of another size is an error, because wrong heads do not
crash, they only never get a token accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.detect import Detection, base_model_of, check_format, detect, own_facts
from mtp_bench.heads.eagle.checkpoint import load_eagle
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.hydra.checkpoint import load_hydra
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import LoadedHeads
from mtp_bench.heads.medusa.checkpoint import load_medusa
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.aliases import hub_id


def load_heads(
    path: Path,
    *,
    base: BaseFacts,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    aux_layers: Sequence[int] | None = None,
) -> LoadedHeads:
    """Load heads from a folder (or one weight file) for a base model, attached to what they borrow from it.

    Args:
        aux_layers: which hidden states an EAGLE-3 draft reads, whatever its config says.

    Raises:
        InputError: not heads; damaged, refused, incomplete or surplus tensors; sizes that do not fit the base model.
    """
    found = detect(Path(path))
    check_format(found)
    if found.kind == "eagle_heads":
        return _told(load_eagle(found, base, dtype, device, aux_layers), found, base)
    if aux_layers:
        raise InputError("only an EAGLE-3 draft reads other layers", where="--aux-layers", fix="leave it out")
    if found.kind == "hydra_heads":
        return _told(load_hydra(found, base, dtype, device), found, base)
    return _told(load_medusa(found, base, dtype, device), found, base)


def _told(heads: EagleDraft | HydraHeads | MedusaHeads, found: Detection, base: BaseFacts) -> LoadedHeads:
    """Heads with their warnings, those about the base model included."""
    warnings = (*heads.meta.warnings, *_base_warnings(found, base))
    heads.meta = replace(heads.meta, warnings=warnings)
    return LoadedHeads(heads, heads.meta, warnings)


def _base_warnings(found: Detection, base: BaseFacts) -> Iterable[str]:
    recorded = own_facts(found.config).get("base_model_hash")
    if recorded and base.weights_hash:
        if recorded != base.weights_hash:
            yield f"W-BASE: heads were trained on base weights {recorded}, {base.name} has {base.weights_hash}"
        return
    trained_for = base_model_of(found)
    names = {_short(hub_id(name) or name) for name in (base.name, *base.aliases)}
    if trained_for is not None and _short(hub_id(trained_for) or trained_for) not in names:
        yield f"W-BASE: heads were trained for {trained_for}, the base model is {base.name}"


def _short(name: str) -> str:
    """The part of a hub id or folder that names the model; who hosts a copy does not matter."""
    return name.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1].lower()
