"""Short names of well-known models: where their weights are, and what shapes they have.

The shapes make `--load-format dummy` work without a network: verification costs depend on shapes, not on weights.
Figures are those of each model's published `config.json`; a test counts the parameters they lead to.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mtp_bench.errors import InputError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A published model. `parameters` is the published count (tied weights once), `extra` further config fields."""

    hub_id: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    max_positions: int
    parameters: float
    rope_theta: float = 10_000.0
    tie_embeddings: bool = False
    head_dim: int | None = None
    sliding_window: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def known(alias: str) -> bool:
    """Whether an alias is in the table."""
    return alias.lower() in ALIASES


def hub_id(alias: str) -> str | None:
    """The hub id behind an alias, None for an unknown one."""
    shape = ALIASES.get(alias.lower())
    return None if shape is None else shape.hub_id


def config_dict(alias: str) -> dict[str, Any]:
    """Fields, `model_type` among them, that `transformers.AutoConfig.for_model(**fields)` turns into the config.

    Raises:
        InputError: unknown alias.
    """
    shape = ALIASES.get(alias.lower())
    if shape is None:
        raise InputError(f"unknown model alias {alias!r}", where="--model", fix=f"one of: {', '.join(ALIASES)}")
    fields: dict[str, Any] = {
        "model_type": shape.model_type,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tie_embeddings,
    }
    if shape.head_dim is not None:
        fields["head_dim"] = shape.head_dim
    if shape.model_type in _WINDOWED:
        fields["sliding_window"] = shape.sliding_window
    return fields | deepcopy(dict(shape.extra))


# Types whose config has a default window, so that "none" must be said.
_WINDOWED = {"mistral", "gemma2", "gemma3_text", "phi3"}


def _llama3_rope(factor: float) -> dict[str, Any]:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return {"rope_scaling": scaling, "rms_norm_eps": 1e-5, "bos_token_id": 128000, "eos_token_id": 128009}


def _llama(hub: str, h: int, i: int, n: int, a: int, kv: int, parameters: float, **rest: Any) -> ModelShape:
    settings: dict[str, Any] = {"vocab_size": 32_000, "max_positions": 2048} | rest
    return ModelShape(hub, "llama", h, i, n, a, kv, parameters=parameters, **settings)


def _llama3(hub: str, h: int, i: int, n: int, a: int, parameters: float, factor: float, **rest: Any) -> ModelShape:
    settings: dict[str, Any] = {
        "vocab_size": 128_256,
        "max_positions": 131_072,
        "rope_theta": 500_000.0,
        "extra": _llama3_rope(factor),
    }
    return ModelShape(hub, "llama", h, i, n, a, 8, parameters=parameters, **(settings | rest))


def _mistral(hub: str, **rest: Any) -> ModelShape:
    settings: dict[str, Any] = {
        "vocab_size": 32_000,
        "max_positions": 32_768,
        "parameters": 7.242e9,
        "extra": {"rms_norm_eps": 1e-5},
    }
    return ModelShape(hub, "mistral", 4096, 14_336, 32, 32, 8, **(settings | rest))


def _qwen25(size: str, h: int, i: int, n: int, a: int, kv: int, parameters: float, tied: bool = False) -> ModelShape:
    return ModelShape(
        f"Qwen/Qwen2.5-{size}-Instruct",
        "qwen2",
        h,
        i,
        n,
        a,
        kv,
        vocab_size=152_064 if size in ("7B", "14B", "32B") else 151_936,
        max_positions=32_768,
        parameters=parameters,
        rope_theta=1e6,
        tie_embeddings=tied,
        extra={"rms_norm_eps": 1e-6, "bos_token_id": 151643, "eos_token_id": 151645},
    )


def _qwen3(size: str, h: int, i: int, n: int, a: int, parameters: float, tied: bool = False) -> ModelShape:
    return ModelShape(
        f"Qwen/Qwen3-{size}",
        "qwen3",
        h,
        i,
        n,
        a,
        8,
        vocab_size=151_936,
        max_positions=40_960,
        parameters=parameters,
        rope_theta=1e6,
        tie_embeddings=tied,
        head_dim=128,
        extra={"rms_norm_eps": 1e-6, "bos_token_id": 151643, "eos_token_id": 151645},
    )


def _gemma2(hub: str, h: int, i: int, n: int, a: int, kv: int, parameters: float) -> ModelShape:
    return ModelShape(
        hub,
        "gemma2",
        h,
        i,
        n,
        a,
        kv,
        vocab_size=256_000,
        max_positions=8192,
        parameters=parameters,
        tie_embeddings=True,
        head_dim=256,
        sliding_window=4096,
        extra={"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    )


def _smollm2(size: str, h: int, i: int, n: int, a: int, kv: int, parameters: float, theta: float) -> ModelShape:
    return _llama(
        f"HuggingFaceTB/SmolLM2-{size}-Instruct",
        h,
        i,
        n,
        a,
        kv,
        parameters,
        vocab_size=49_152,
        max_positions=8192,
        rope_theta=theta,
        tie_embeddings=True,
        extra={"rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2},
    )


_LLAMA2: dict[str, Any] = {"max_positions": 4096, "extra": {"rms_norm_eps": 1e-5}}
_GEMMA3 = ModelShape(
    "google/gemma-3-1b-it",
    "gemma3_text",
    1152,
    6912,
    26,
    4,
    1,
    vocab_size=262_144,
    max_positions=32_768,
    parameters=0.9999e9,
    rope_theta=1e6,
    tie_embeddings=True,
    head_dim=256,
    sliding_window=512,
    extra={"query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0},
)
_PHI3_MINI = ModelShape(
    "microsoft/Phi-3-mini-4k-instruct",
    "phi3",
    3072,
    8192,
    32,
    32,
    32,
    vocab_size=32_064,
    max_positions=4096,
    parameters=3.821e9,
    sliding_window=2047,
    extra={"original_max_position_embeddings": 4096, "pad_token_id": 32_000, "rms_norm_eps": 1e-5},
)
_PHI4 = ModelShape(
    "microsoft/phi-4",
    "phi3",
    5120,
    17_920,
    40,
    40,
    10,
    vocab_size=100_352,
    max_positions=16_384,
    parameters=14.66e9,
    rope_theta=250_000.0,
    extra={"original_max_position_embeddings": 16_384, "pad_token_id": 100_349, "rms_norm_eps": 1e-5},
)

ALIASES: Mapping[str, ModelShape] = MappingProxyType(
    {
        "vicuna-7b": _llama("lmsys/vicuna-7b-v1.3", 4096, 11_008, 32, 32, 32, 6.738e9),
        "vicuna-13b": _llama("lmsys/vicuna-13b-v1.3", 5120, 13_824, 40, 40, 40, 13.016e9),
        "vicuna-33b": _llama("lmsys/vicuna-33b-v1.3", 6656, 17_920, 60, 52, 52, 32.53e9),
        "llama-2-7b-chat": _llama("meta-llama/Llama-2-7b-chat-hf", 4096, 11_008, 32, 32, 32, 6.738e9, **_LLAMA2),
        "llama-2-13b-chat": _llama("meta-llama/Llama-2-13b-chat-hf", 5120, 13_824, 40, 40, 40, 13.016e9, **_LLAMA2),
        "llama-2-70b-chat": _llama("meta-llama/Llama-2-70b-chat-hf", 8192, 28_672, 80, 64, 8, 68.98e9, **_LLAMA2),
        "llama-3.1-8b-instruct": _llama3("meta-llama/Llama-3.1-8B-Instruct", 4096, 14_336, 32, 32, 8.030e9, 8.0),
        "llama-3.1-70b-instruct": _llama3("meta-llama/Llama-3.1-70B-Instruct", 8192, 28_672, 80, 64, 70.55e9, 8.0),
        "llama-3.2-1b": _llama3(
            "meta-llama/Llama-3.2-1B-Instruct", 2048, 8192, 16, 32, 1.236e9, 32.0, tie_embeddings=True, head_dim=64
        ),
        "llama-3.2-3b": _llama3(
            "meta-llama/Llama-3.2-3B-Instruct", 3072, 8192, 28, 24, 3.213e9, 32.0, tie_embeddings=True, head_dim=128
        ),
        "mistral-7b": _mistral("mistralai/Mistral-7B-v0.1", sliding_window=4096),
        "mistral-7b-instruct-v0.2": _mistral("mistralai/Mistral-7B-Instruct-v0.2", rope_theta=1e6),
        "zephyr-7b": _mistral("HuggingFaceH4/zephyr-7b-beta", sliding_window=4096),
        "qwen2.5-0.5b": _qwen25("0.5B", 896, 4864, 24, 14, 2, 0.494e9, tied=True),
        "qwen2.5-1.5b": _qwen25("1.5B", 1536, 8960, 28, 12, 2, 1.544e9, tied=True),
        "qwen2.5-3b": _qwen25("3B", 2048, 11_008, 36, 16, 2, 3.086e9, tied=True),
        "qwen2.5-7b": _qwen25("7B", 3584, 18_944, 28, 28, 4, 7.616e9),
        "qwen2.5-14b": _qwen25("14B", 5120, 13_824, 48, 40, 8, 14.77e9),
        "qwen2.5-32b": _qwen25("32B", 5120, 27_648, 64, 40, 8, 32.76e9),
        "qwen3-0.6b": _qwen3("0.6B", 1024, 3072, 28, 16, 0.596e9, tied=True),
        "qwen3-1.7b": _qwen3("1.7B", 2048, 6144, 28, 16, 1.721e9, tied=True),
        "qwen3-4b": _qwen3("4B", 2560, 9728, 36, 32, 4.022e9, tied=True),
        "qwen3-8b": _qwen3("8B", 4096, 12_288, 36, 32, 8.191e9),
        "qwen3-14b": _qwen3("14B", 5120, 17_408, 40, 40, 14.77e9),
        "qwen3-32b": _qwen3("32B", 5120, 25_600, 64, 64, 32.76e9),
        "gemma-2-2b": _gemma2("google/gemma-2-2b-it", 2304, 9216, 26, 8, 4, 2.614e9),
        "gemma-2-9b": _gemma2("google/gemma-2-9b-it", 3584, 14_336, 42, 16, 8, 9.242e9),
        "gemma-3-1b": _GEMMA3,
        "phi-3-mini": _PHI3_MINI,
        "phi-4": _PHI4,
        "tinyllama-1.1b": _llama(
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2048, 5632, 22, 32, 4, 1.100e9, extra={"rms_norm_eps": 1e-5}
        ),
        "smollm2-135m": _smollm2("135M", 576, 1536, 30, 9, 3, 134.5e6, 100_000.0),
        "smollm2-360m": _smollm2("360M", 960, 2560, 32, 15, 5, 361.8e6, 100_000.0),
        "smollm2-1.7b": _smollm2("1.7B", 2048, 8192, 24, 32, 32, 1.711e9, 130_000.0),
    }
)
