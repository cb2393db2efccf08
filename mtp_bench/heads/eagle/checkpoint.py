"""Loading and writing EAGLE drafts. As for Medusa heads: nothing is made up, and what does not fit is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts, HeadsInfo
from mtp_bench.heads.detect import Detection
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.eagle.layouts import EaglePlan, make_eagle_plan
from mtp_bench.heads.tensors import content_hash
from mtp_bench.heads.writing import write_checkpoint


def eagle_plan(found: Detection, base: BaseFacts | None = None, aux_layers: Sequence[int] | None = None) -> EaglePlan:
    """What a detected path holds, from headers alone where the files have headers.

    Raises:
        InputError: tensors are missing, surplus or of the wrong shape, or the config does not fit them.
    """
    assert found.weights is not None
    return make_eagle_plan(
        found.weights.open(found.weights.file_of),
        found.config,
        target_hidden_size=None if base is None else base.hidden_size,
        num_layers=None if base is None else base.num_layers,
        aux_layers=aux_layers,
    )


def load_eagle(
    found: Detection,
    base: BaseFacts,
    dtype: torch.dtype,
    device: torch.device | str,
    aux_layers: Sequence[int] | None = None,
) -> EagleDraft:
    """The draft of a detected path, attached to its base model.

    Raises:
        InputError: it is damaged, incomplete, or made for another base model.
    """
    plan = eagle_plan(found, base, aux_layers)
    _check_fit(plan, base, found.path)
    tensors = {name: entry.load() for name, entry in plan.entries.items()}
    vocabulary = {name: entry.load() for name, entry in plan.vocabulary.items()}
    token_map = _token_map(plan, vocabulary, base.vocab_size, found.path)
    hashed = content_hash(tensors if token_map is None else {**tensors, "token_map": token_map})
    info = replace(eagle_info(found, plan), hash=hashed, warnings=plan.warnings)
    weights = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    if token_map is not None:
        weights["token_map"] = token_map
    config = plan.config if plan.config.vocab_size else replace(plan.config, vocab_size=base.vocab_size)
    draft = EagleDraft(config, weights, meta=info).to(device)
    if base.embedding_weight is not None and base.lm_head_weight is not None:
        draft.attach(base.embedding_weight(), base.lm_head_weight())
    return draft.eval().requires_grad_(False)


def eagle_info(found: Detection, plan: EaglePlan) -> HeadsInfo:
    """What a plan says about its draft; no tensor is read."""
    config = plan.config
    stored = [*plan.entries.values(), *plan.vocabulary.values()]
    base = found.config.get("base_model_name_or_path")
    verifier = (found.config.get("speculators_config") or {}).get("verifier") or {}
    switches = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm", "input_norm", "embed_norm")
    return HeadsInfo(
        method=config.variant,
        layout=plan.layout,
        num_heads=1,
        num_layers=1,
        hidden_size=config.hidden_size,
        draft_vocab_size=config.draft_vocab_size,
        lm_head="own" if config.own_lm_head else "base",
        bias=config.fc_bias,
        dtype="+".join(sorted({entry.dtype for entry in plan.entries.values()})),
        parameters=sum(entry.numel for entry in plan.entries.values()),
        bytes=sum(entry.numel * (entry.torch_dtype.itemsize if entry.torch_dtype else 1) for entry in stored),
        base_model=base if isinstance(base, str) else verifier.get("name_or_path"),
        warnings=plan.warnings,
        facts={
            "embedding": "own" if config.own_embedding else "the base model's",
            "final_norm": config.final_norm,
            "aux_layers": list(config.aux_layers),
            "attention": f"{config.num_heads} heads, {config.num_kv_heads} for keys and values, {config.head_dim} wide",
            "intermediate_size": config.intermediate_size,
            "rope": dict(config.rope),
            "switches": [name for name in switches if getattr(config, name)],
        },
    )


def _check_fit(plan: EaglePlan, base: BaseFacts, path: Path) -> None:
    config = plan.config
    fix = f"use the draft that was trained for {base.name}, or the base model that this one was trained for"
    if config.target_hidden_size != base.hidden_size:
        raise InputError(
            f"the draft reads features {config.target_hidden_size} wide, those of {base.name} are {base.hidden_size}",
            where=str(path),
            fix=fix,
        )
    rows = config.draft_vocab_size
    if rows is not None and rows > base.vocab_size:
        raise InputError(
            f"the draft vocabulary has {rows} tokens, more than the {base.vocab_size} of {base.name}",
            where=str(path),
            fix=fix,
        )
    if config.own_embedding and config.vocab_size > base.vocab_size:
        raise InputError(
            f"the draft embeds {config.vocab_size} tokens, {base.name} has {base.vocab_size}", where=str(path), fix=fix
        )
    if config.own_lm_head and not plan.vocabulary and rows != base.vocab_size:
        raise InputError(
            f"an LM head of {rows} rows for {base.vocab_size} tokens, and no d2t that says which they are",
            where=str(path),
            fix=fix,
        )
    odd = [e.name for e in plan.entries.values() if e.torch_dtype is None or not e.torch_dtype.is_floating_point]
    if odd:
        raise InputError(
            "quantised drafts are not supported", where=f"{path}: {odd[0]}", fix="use 16- or 32-bit weights"
        )


def _token_map(plan: EaglePlan, stored: Mapping[str, Tensor], vocab_size: int, path: Path) -> Tensor | None:
    """Draft id -> target id, None where they are the same.

    Raises:
        InputError: ids out of range or twice, or d2t and t2d disagree.
    """
    if "token_map" in stored:
        name, ids = "token_map", stored["token_map"].to(torch.int64)
    elif "d2t" in stored:
        name, offsets = "d2t", stored["d2t"].to(torch.int64)
        ids = torch.arange(len(offsets)) + offsets
    else:
        return None
    where = f"{path}: {name}"
    if plan.config.draft_vocab_size is not None and len(ids) != plan.config.draft_vocab_size:
        raise InputError(f"{len(ids)} entries for {plan.config.draft_vocab_size} draft tokens", where=where)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"token ids from {low} to {high}, the base model's go from 0 to {vocab_size - 1}",
            where=where,
            fix="the draft belongs to a base model with another vocabulary",
        )
    if len(set(ids.tolist())) != len(ids):
        raise InputError("the same token id stands there twice", where=where)
    mask = stored.get("t2d")
    if mask is not None and (int(mask.sum()) != len(ids) or not bool(mask[ids].all())):
        raise InputError("d2t and t2d name different tokens", where=f"{path}: t2d", fix="download the draft again")
    return None if torch.equal(ids, torch.arange(vocab_size)) else ids


WriteLayout = Literal["eagle", "eagle3", "speculators"]


def save_eagle(draft: EagleDraft, path: Path, config: Mapping[str, Any], *, layout: WriteLayout | None = None) -> None:
    """Write a folder with ``model.safetensors`` and ``config.json``.

    Args:
        config: ``base_model_name_or_path``, and own facts under ``mtp_bench``.
        layout: the authors' (``eagle``, ``eagle3``; the default is the draft's own) or vLLM's ``speculators``.

    Raises:
        InputError: the layout cannot hold this draft, or the disk is full.
    """
    variant = draft.config.variant
    layout = layout or variant
    if layout != variant and layout != "speculators":
        raise InputError(f"an {variant} draft cannot be written in the {layout} layout", fix=f"write {variant}")
    tensors = {_stored_name(name, layout, variant): tensor for name, tensor in draft.state_dict().items()}
    if variant == "eagle" and not draft.config.own_embedding and layout == "eagle":
        tensors["embed_tokens.weight"] = draft.embedding  # its readers want the frozen copy
    vocab_size = draft.config.vocab_size
    if draft.token_map is not None:
        ids = draft.token_map.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    write_checkpoint(Path(path), "model.safetensors", tensors, _stored_config(draft, layout), config)


def _stored_name(name: str, layout: WriteLayout, variant: str) -> str:
    if layout == "speculators" and variant == "eagle":
        names = {"fc": "fusion_fc", "layer": "transformer", "embed_norm": "embedding_layernorm"}
        if name == "norm.weight":
            return "pre_lm_head_layernorm.weight"
        first, _, rest = name.partition(".")
        return f"{names.get(first, first)}.{rest}"
    renamed = {
        "embed_norm.weight": "embedding_layernorm.weight",
        "feature_norm.weight": "hidden_states_layernorm.weight",
    }
    if name.startswith("layer."):
        return ("midlayer." if layout == "eagle3" else "layers.0.") + name.removeprefix("layer.")
    return renamed.get(name, name)


def _stored_config(draft: EagleDraft, layout: WriteLayout) -> dict[str, Any]:
    config = draft.config
    layer = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope["rope_theta"],
        "rope_parameters": dict(config.rope),
    }
    switches = {
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size if config.target_hidden_size != config.hidden_size else None,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
    }
    if layout == "speculators":
        return _speculators_config(draft, layer, switches)
    if layout == "eagle3":
        return {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **layer, **switches}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **layer, "bias": config.fc_bias}


def _speculators_config(draft: EagleDraft, layer: dict[str, Any], switches: dict[str, Any]) -> dict[str, Any]:
    eagle3 = draft.config.variant == "eagle3"
    own = switches if eagle3 else {"fusion_bias": draft.config.fc_bias, "layernorms": draft.config.embed_norm}
    return {
        "architectures": ["Eagle3Speculator" if eagle3 else "EagleSpeculator"],
        "speculators_model_type": draft.config.variant,
        "speculators_version": "0.3.0",
        "transformer_layer_config": {"model_type": "llama", **layer},
        "vocab_size": draft.config.vocab_size,
        **own,
    }
