"""The shapes in the alias table lead to the published parameter counts (on the meta device: no memory, no network)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mtp_bench.errors import InputError
from mtp_bench.models.aliases import ALIASES, config_dict, hub_id, known

# Counts stated on the models' own pages, apart from the table's own figures.
PUBLISHED = {
    "vicuna-7b": 6.738e9,
    "vicuna-13b": 13.016e9,
    "llama-3.1-8b-instruct": 8.03e9,
    "llama-3.1-70b-instruct": 70.6e9,
    "mistral-7b": 7.24e9,
    "qwen2.5-7b": 7.61e9,
    "qwen3-8b": 8.19e9,
    "gemma-2-2b": 2.61e9,
    "phi-3-mini": 3.82e9,
    "tinyllama-1.1b": 1.10e9,
    "smollm2-135m": 134.5e6,
}


def build_config(alias: str):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(**config_dict(alias))


def count_parameters(alias: str) -> int:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(build_config(alias))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("alias", ALIASES)
def test_shapes_give_the_published_parameter_count(alias: str) -> None:
    count = count_parameters(alias)
    assert count == pytest.approx(ALIASES[alias].parameters, rel=0.005)
    if alias in PUBLISHED:
        assert count == pytest.approx(PUBLISHED[alias], rel=0.005)


@pytest.mark.parametrize("alias", ALIASES)
def test_config_keeps_every_field(alias: str) -> None:
    config, shape = build_config(alias), ALIASES[alias]
    assert config.num_key_value_heads == shape.num_kv_heads
    assert config.max_position_embeddings == shape.max_positions
    assert config.tie_word_embeddings == shape.tie_embeddings
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    rope = rope.get("full_attention", rope)
    assert rope["rope_theta"] == shape.rope_theta
    if "rope_scaling" in shape.extra:
        assert rope["rope_type"] == "llama3"
        assert rope["factor"] == shape.extra["rope_scaling"]["factor"]


def test_sliding_windows() -> None:
    assert build_config("mistral-7b").sliding_window == 4096
    assert build_config("mistral-7b-instruct-v0.2").sliding_window is None
    gemma = build_config("gemma-3-1b")
    assert gemma.layer_types.count("full_attention") == 26 // 6
    assert gemma.rope_parameters["sliding_attention"]["rope_theta"] == 10_000.0


def test_lookups() -> None:
    assert hub_id("vicuna-7b") == "lmsys/vicuna-7b-v1.3"
    assert hub_id("Vicuna-7B") == "lmsys/vicuna-7b-v1.3"
    assert hub_id("no-such-model") is None
    assert not known("no-such-model")
    with pytest.raises(InputError, match="unknown model alias 'no-such-model'"):
        config_dict("no-such-model")


def test_config_dict_is_a_fresh_copy() -> None:
    config_dict("vicuna-7b")["hidden_size"] = 1
    assert config_dict("vicuna-7b")["hidden_size"] == 4096


def test_needs_no_torch() -> None:
    code = "import sys, mtp_bench.models.aliases; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
