"""Hydra++'s prefix layer: one more LLaMA layer behind the base model's (Ankner et al. 2024).

At position t it reads the base model's hidden states at 0 .. t (after the final norm, no embeddings beside them), and
its output, normed, is what the heads read in place of the hidden state at t. Sizes, RoPE and norms are the base's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.eagle.draft import Attend, DecoderLayer, EagleConfig, RmsNorm, Rotary, RotaryTable
from mtp_bench.heads.eagle.layouts import rope_parameters


def prefix_config(base: BaseFacts) -> EagleConfig:
    """The layer that the authors' code makes from the base model's config.

    Raises:
        InputError: the base model is not like a LLaMA.
    """
    config = base.config
    odd = [f"no {key}" for key in ("num_attention_heads", "intermediate_size", "rms_norm_eps") if not config.get(key)]
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        odd.append(f"activation {activation}")
    if any(isinstance(value, dict) for value in (config.get("rope_parameters") or {}).values()):
        odd.append("several kinds of RoPE")
    if odd:
        raise InputError(
            f"the prefix layer is a LLaMA layer of the base model's sizes, and {base.name} is no LLaMA: {odd[0]}",
            where="--heads",
            fix="use Hydra heads of the kind mlp, or a LLaMA-like base model",
        )
    heads = int(config["num_attention_heads"])
    return EagleConfig(
        variant="eagle",
        hidden_size=base.hidden_size,
        target_hidden_size=base.hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or base.hidden_size // heads),
        vocab_size=base.vocab_size,
        rms_eps=float(config["rms_norm_eps"]),
        rope=rope_parameters(config, base.name),
        max_positions=int(config.get("max_position_embeddings") or 2048),
        input_norm=True,
    )


class PrefixLayer(nn.Module):
    """The layer made from given tensors, named as its parameters are (`layer.*`, `norm.weight`); never random."""

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.layer = DecoderLayer(config)
            self.norm = RmsNorm(config.hidden_size, config.rms_eps)
        self.load_state_dict(tensors, strict=True, assign=True)
        self._rotary = RotaryTable(config)

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """The base model's hidden states [B, R, H] -> [B, R, H]; see `EagleDraft.forward`."""
        output: Tensor = self.norm(self.layer(hidden, rotary, attend))
        return output

    def causal(self, hidden: Tensor) -> Tensor:
        """A whole text's hidden states [B, L, H] -> [B, L, H], without a cache."""
        output: Tensor = self(hidden, self.rotary(hidden.shape[1]), _causal_attention)
        return output

    def rotary(self, length: int) -> Rotary:
        """Cosines and sines [length, d] of the positions 0 .. length - 1."""
        return self._rotary(length, self.norm.weight)


def _causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)
