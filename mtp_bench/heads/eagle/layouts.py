"""Checkpoint layouts of EAGLE drafts: which tensor is which part, and what the config adds that tensors cannot say.

The same parts go by many names: ``midlayer.`` (SafeAI's EAGLE-3), ``layers.0.`` (EAGLE-1, speculators, NVIDIA),
``transformer.`` (speculators' EAGLE-1). What can be read off the tensors is; the config gives head counts, RoPE, the
norms' switches and the layers that are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mtp_bench.errors import InputError
from mtp_bench.heads.eagle.draft import EagleConfig, Variant, parameter_shapes
from mtp_bench.heads.tensors import Entry

EagleLayout = Literal["eagle", "eagle3", "speculators-eagle", "speculators-eagle3"]

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_LAYER = re.compile(r"(?:midlayer|layers\.0|transformer)\.(.+)")
_PARTS = {
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "fusion_fc.weight": "fc.weight",
    "fusion_fc.bias": "fc.bias",
    "embed_tokens.weight": "embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "norm.weight": "norm.weight",
    "pre_lm_head_layernorm.weight": "norm.weight",
    "input_norm.weight": "input_norm.weight",
    "embedding_layernorm.weight": "embed_norm.weight",
    "hidden_states_layernorm.weight": "feature_norm.weight",
}
_FIX = "download or convert the draft again; nothing is filled in with random weights"


@dataclass(frozen=True, slots=True)
class EaglePlan:
    """A draft that is complete and consistent: its config, where each of its tensors is, and what was noticed.

    ``vocabulary`` holds ``d2t`` (offsets), ``t2d`` or ``token_map`` where the draft vocabulary is reduced.
    """

    layout: EagleLayout
    config: EagleConfig
    entries: Mapping[str, Entry]
    vocabulary: Mapping[str, Entry]
    warnings: tuple[str, ...]


def is_eagle(names: Iterable[str]) -> bool:
    """Whether these tensors are an EAGLE draft's."""
    return any(_strip(name) in ("fc.weight", "fusion_fc.weight") for name in names)


def canonical_name(name: str) -> str | None:
    """This project's name of a stored tensor, None for one that no draft has."""
    name = _strip(name)
    if name in _PARTS:
        return _PARTS[name]
    if match := _LAYER.fullmatch(name):
        return f"layer.{match[1]}"
    return name if re.fullmatch(r"fc_norm\.\d\.weight", name) else None


def make_eagle_plan(
    entries: Mapping[str, Entry],
    config: Mapping[str, Any],
    *,
    target_hidden_size: int | None = None,
    num_layers: int | None = None,
    aux_layers: Sequence[int] | None = None,
) -> EaglePlan:
    """Give every tensor its place, and check that none is missing, surplus or of the wrong shape.

    Args:
        config: ``config.json``.
        target_hidden_size, num_layers: of the base model, where it is known.
        aux_layers: the layers to read, whatever the config says.

    Raises:
        InputError: naming the tensors or the key of the config.
    """
    where = str(next(iter(entries.values())).file)
    parts, vocabulary, surplus = _place(entries)
    if surplus:
        raise InputError(f"tensors that do not belong to an EAGLE draft: {_some(surplus)}", where=where, fix=_FIX)
    missing = [name for name in ("fc.weight", "layer.self_attn.q_proj.weight") if name not in parts]
    if missing:
        raise InputError(f"missing tensors: {_some(missing)}", where=where, fix=_FIX)
    facts = _facts(config)
    variant = _variant(parts, where)
    _check_declared(config, variant, where)
    warnings: list[str] = []
    made = _config(parts, vocabulary, facts, variant, where, target_hidden_size)
    if variant == "eagle3":
        made = _with_layers(made, facts, num_layers, aux_layers, parts, warnings)
    elif aux_layers:
        raise InputError("an EAGLE-1 draft reads the last layer only", where="--aux-layers", fix="leave it out")
    _check_shapes(parts, made, where)
    return EaglePlan(_layout(config, variant), made, parts, vocabulary, tuple(warnings))


def _strip(name: str) -> str:
    return name.removeprefix("model.").removeprefix("draft_model.")


def _place(entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], dict[str, Entry], list[str]]:
    parts: dict[str, Entry] = {}
    vocabulary: dict[str, Entry] = {}
    surplus = []
    for name, entry in entries.items():
        canonical = canonical_name(name)
        if name.endswith("rotary_emb.inv_freq"):
            continue  # a buffer that old checkpoints keep; it follows from the config
        if _strip(name) in ("d2t", "t2d", "token_map"):
            vocabulary[_strip(name)] = entry
        elif canonical is None or canonical in parts:
            surplus.append(name)
        else:
            parts[canonical] = entry
    return parts, vocabulary, surplus


def _facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config flat: what describes the layer is nested in some formats."""
    facts: dict[str, Any] = {}
    for key in ("model", "transformer_layer_config", "eagle_config"):
        if isinstance(config.get(key), dict):
            facts |= config[key]
    return facts | {key: value for key, value in config.items() if not isinstance(value, dict) or "rope" in key}


def _variant(parts: Mapping[str, Entry], where: str) -> Variant:
    """EAGLE-3's attention reads embedding and feature side by side; EAGLE-1's `fc` has joined them before."""
    hidden = parts["fc.weight"].shape[0]
    width = parts["layer.self_attn.q_proj.weight"].shape[1]
    if width == 2 * hidden:
        return "eagle3"
    if width == hidden:
        return "eagle"
    raise InputError(
        f"attention reads {width} channels beside a hidden size of {hidden}: neither EAGLE-1 nor EAGLE-3",
        where=where,
        fix=_FIX,
    )


def _check_declared(config: Mapping[str, Any], variant: Variant, where: str) -> None:
    names = " ".join(map(str, config.get("architectures") or [])).lower()
    declared = str(config.get("speculators_model_type") or "").lower()
    says: Variant | None = None
    if declared in ("eagle", "eagle3"):
        says = declared  # type: ignore[assignment]
    elif "eagle3" in names:
        says = "eagle3"
    elif config.get("model_type") == "eagle" or "eagleforcausallm" in names:
        says = "eagle"
    if says is not None and says != variant:
        raise InputError(
            f"config.json says {says}, the tensors are those of {variant}",
            where=where,
            fix="use the config that belongs to these weights",
        )


def _config(
    parts: Mapping[str, Entry],
    vocabulary: Mapping[str, Entry],
    facts: Mapping[str, Any],
    variant: Variant,
    where: str,
    target_hidden_size: int | None,
) -> EagleConfig:
    hidden, joined = parts["fc.weight"].shape
    heads = _integer(facts, "num_attention_heads", where)
    kv_heads = int(facts.get("num_key_value_heads") or heads)
    target = joined - hidden if variant == "eagle" else int(facts.get("target_hidden_size") or 0)
    if variant == "eagle3" and not target:
        target = target_hidden_size or joined // 3
    lm_head = parts.get("lm_head.weight")
    reduced = vocabulary.get("d2t") or vocabulary.get("token_map")
    vocab_size = int(facts.get("vocab_size") or 0)
    if "embed_tokens.weight" in parts:
        vocab_size = parts["embed_tokens.weight"].shape[0]
    draft_vocab = lm_head.shape[0] if lm_head else reduced.shape[0] if reduced else None
    stated = facts.get("draft_vocab_size")
    if draft_vocab and stated and stated != draft_vocab:
        raise InputError(
            f"config.json says {stated} draft tokens, the tensors have {draft_vocab}",
            where=where,
            fix="use the config that belongs to these weights",
        )
    return EagleConfig(
        variant=variant,
        hidden_size=hidden,
        target_hidden_size=target,
        intermediate_size=parts["layer.mlp.gate_proj.weight"].shape[0] if "layer.mlp.gate_proj.weight" in parts else 0,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=int(facts.get("head_dim") or hidden // heads),
        vocab_size=vocab_size,
        aux_layers=(),
        rms_eps=float(facts.get("rms_norm_eps") or 1e-6),
        rope=rope_parameters(facts, where),
        max_positions=int(facts.get("max_position_embeddings") or 2048),
        fc_bias="fc.bias" in parts,
        qkv_bias="layer.self_attn.q_proj.bias" in parts,
        own_embedding="embed_tokens.weight" in parts,
        own_lm_head=lm_head is not None,
        final_norm="norm.weight" in parts,
        input_norm=variant == "eagle" and "layer.input_layernorm.weight" in parts,
        embed_norm="embed_norm.weight" in parts,
        feature_norm="feature_norm.weight" in parts,
        norm_before_residual=bool(facts.get("norm_before_residual")),
        norm_output=bool(facts.get("norm_output")),
        norm_before_fc="input_norm.weight" in parts,
        fc_norm="fc_norm.0.weight" in parts,
        draft_vocab_size=draft_vocab,
    )


def _integer(facts: Mapping[str, Any], key: str, where: str) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(
            f"config.json gives no {key}", where=where, fix="put the draft's config.json beside its weights"
        )
    return value


def rope_parameters(facts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """RoPE of a config under transformers' newer names, from ``rope_parameters`` or ``rope_theta``/``rope_scaling``.

    The draft's own config alone counts: published drafts differ from their base models here.

    Raises:
        InputError: a kind of RoPE that this program does not know.
    """
    given: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = facts.get(key)
        if isinstance(value, dict):
            given |= value
    kind = str(given.pop("type", None) or given.get("rope_type") or "default")
    if kind not in ROPE_TYPES:
        raise InputError(f"unknown RoPE type {kind!r}", where=where, fix=f"known: {', '.join(ROPE_TYPES)}")
    theta = given.get("rope_theta") or facts.get("rope_theta") or 10000.0
    return given | {"rope_type": kind, "rope_theta": float(theta)}


def _with_layers(
    config: EagleConfig,
    facts: Mapping[str, Any],
    num_layers: int | None,
    asked: Sequence[int] | None,
    parts: Mapping[str, Entry],
    warnings: list[str],
) -> EagleConfig:
    joined = parts["fc.weight"].shape[1]
    count = joined // config.target_hidden_size
    if count * config.target_hidden_size != joined:
        raise InputError(
            f"fc reads {joined} channels, no multiple of the base model's hidden size {config.target_hidden_size}",
            where=str(parts["fc.weight"].file),
            fix="use the draft that was trained for this base model",
        )
    declared = facts.get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(asked) if asked else aux_layers_of(declared, num_layers, count, warnings)
    if len(layers) != count:
        raise InputError(
            f"{len(layers)} layers are named ({','.join(map(str, layers))}), fc reads {count}",
            where="--aux-layers" if asked else str(parts["fc.weight"].file),
            fix=f"name {count} layers with --aux-layers",
        )
    beyond = [layer for layer in layers if num_layers is not None and not 0 <= layer < num_layers]
    if beyond:
        raise InputError(
            f"layer {beyond[0]} does not exist: the base model has layers 0 to {(num_layers or 0) - 1}",
            where="--aux-layers" if asked else "eagle_aux_hidden_state_layer_ids",
            fix="name layers by what enters them, e.g. --aux-layers 2,16,29",
        )
    return replace(config, aux_layers=layers)


def aux_layers_of(declared: Any, num_layers: int | None, count: int, warnings: list[str]) -> tuple[int, ...]:
    """The layers that are read, by what *enters* them (index of Hugging Face's ``hidden_states``).

    Two conventions are published for the same tensors: inputs (``[2, N/2, N-3]``; vLLM, speculators) and outputs
    (``[1, N/2-1, N-4]``; SpecForge, SGLang). A first id of 1 is taken for the latter.
    """
    standard = (2, num_layers // 2, num_layers - 3) if num_layers is not None else ()
    if not isinstance(declared, (list, tuple)) or not declared:
        if count != 3 or num_layers is None:
            warnings.append(
                "W-LAYERS: the config names no layers to read; the base model decides (third, middle, third last)"
            )
        return standard if standard and count == 3 else tuple([0] * count)
    ids = tuple(int(one) for one in declared)
    if ids == standard:
        return ids
    shifted = tuple(one + 1 for one in ids)
    if shifted == standard or ids[0] == 1:
        return shifted
    if num_layers is not None:
        warnings.append(
            f"W-LAYERS: unusual layers {list(ids)} taken as inputs; the alignment probe tells if they are not"
        )
    return ids


def _check_shapes(parts: Mapping[str, Entry], config: EagleConfig, where: str) -> None:
    expected = parameter_shapes(config)
    missing = [name for name in expected if name not in parts]
    if missing:
        raise InputError(f"missing tensors: {_some(missing)}", where=where, fix=_FIX)
    surplus = [parts[name].name for name in parts if name not in expected]
    if surplus:
        raise InputError(
            f"tensors that do not belong to an {config.variant} draft: {_some(surplus)}", where=where, fix=_FIX
        )
    for name, shape in expected.items():
        if parts[name].shape != tuple(shape):
            raise InputError(
                f"tensor {parts[name].name} has shape {list(parts[name].shape)}, {list(shape)} expected",
                where=where,
                fix=_FIX,
            )


def _layout(config: Mapping[str, Any], variant: Variant) -> EagleLayout:
    if "speculators_model_type" in config:
        return "speculators-eagle" if variant == "eagle" else "speculators-eagle3"
    return variant


def _some(names: list[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(sorted(names)[:6]) + more
