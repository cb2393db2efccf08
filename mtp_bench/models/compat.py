"""Every line that depends on the version of transformers.

Tested range: see ``pyproject.toml``. Only public interfaces are used: ``Cache``, ``AttentionInterface``,
``AutoModelForCausalLM``, ``AutoTokenizer``, ``AutoConfig``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface, LlamaConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

__all__ = [
    "Cache",
    "cache_keyword",
    "drop_quantization",
    "layer_types",
    "register_attention",
    "registered_attention",
    "rotary_table",
    "sliding_window",
]

_ATTENTION = AttentionInterface()


def cache_keyword(decoder: torch.nn.Module) -> str:
    """Name of the decoder's cache argument: ``cache`` (from 5.23 or so) or ``past_key_values`` (before)."""
    names = inspect.signature(inspect.unwrap(type(decoder).forward)).parameters
    return "cache" if "cache" in names else "past_key_values"


def register_attention(name: str, function: Any) -> None:
    """Make an attention function selectable as ``attn_implementation=name``."""
    AttentionInterface.register(name, function)


def registered_attention(name: str) -> Any:
    """The attention function of this name, as a model of that ``attn_implementation`` would call it."""
    return _ATTENTION[name]


def drop_quantization(model: PreTrainedModel) -> None:
    """Forget that a model came from a GGUF file: it holds plain floats, but ``save_pretrained`` refuses it else."""
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    if hasattr(model, "hf_quantizer"):
        model.hf_quantizer = None
    for flag in ("is_quantized", "quantization_method"):
        if hasattr(model, flag):
            setattr(model, flag, None if flag == "quantization_method" else False)


def layer_types(config: Any) -> tuple[str, ...]:
    """Attention type per layer: ``full_attention``, ``sliding_attention`` or what the architecture calls it."""
    declared = getattr(config, "layer_types", None)
    if declared:
        return tuple(declared)
    kind = "sliding_attention" if sliding_window(config) else "full_attention"
    return (kind,) * int(config.num_hidden_layers)


def sliding_window(config: Any) -> int | None:
    """Width in tokens of the sliding window, None where the model has none or does not use it."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    width = getattr(config, "sliding_window", None)
    return int(width) if width else None


def rotary_table(
    rope: Mapping[str, Any], head_dim: int, max_positions: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines float32 [length, head_dim] of RoPE with these parameters, for positions from 0."""
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=max_positions,
        rope_parameters=dict(rope),
    )  # fmt: skip
    cosine, sine = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    return cosine[0], sine[0]
