"""The decoding step of LLaMA-like models in few operations, for ``--engine packed``.

The stock forward makes some sixty small operations in each layer, and behind weights that have just been streamed
through the caches each of them starts cold. Here a layer takes about fifteen: the products that share an input are one
or follow each other in oneDNN's own loop (SiLU, the gate's product, both residual sums), and a norm is one kernel.
Models of other kinds keep the stock forward, with packed linear layers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from mtp_bench.models import attention
from mtp_bench.models.compat import Cache, layer_types
from mtp_bench.models.packed import PackedProduct, pack_linears, shared_copy
from mtp_bench.models.pages import huge_pages

# Decoders of transformers whose layers are LLaMA's, but for biases and norms of the heads.
FUSED_DECODERS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def packed_model(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model for decoding steps: it shares all parameters, its products are packed, its layers fused."""
    twin = shared_copy(model)
    decoder = twin.get_decoder()
    with huge_pages(), torch.no_grad():
        if twin.base_model is decoder and can_fuse(decoder):
            setattr(twin, twin.base_model_prefix, FusedDecoder(decoder))
        pack_linears(twin)
    return twin


def can_fuse(decoder: Any) -> bool:
    """Whether ``FusedDecoder`` computes what this decoder does."""
    known = type(decoder).__name__ in FUSED_DECODERS and type(decoder).__module__.startswith("transformers.")
    return (
        known
        and decoder.config._attn_implementation == attention.NAME
        and decoder.config.hidden_act == "silu"
        and all(
            type(part) is nn.Linear for name, part in decoder.named_modules() if name.rpartition(".")[2] in PROJECTIONS
        )
    )


class FusedNorm:
    """RMS normalisation over the last dimension by one layer-norm kernel.

    Of x and -x side by side the mean is 0 and the variance the mean square of x, so the first half of their layer norm
    is the RMS norm of x; torch's own ``rms_norm`` is eight operations on a CPU.
    """

    def __init__(self, norm: Any) -> None:
        self._gain = torch.cat((norm.weight, torch.zeros_like(norm.weight)))
        self._epsilon = float(norm.variance_epsilon)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        both = F.layer_norm(torch.cat((x, -x), dim=-1), self._gain.shape, self._gain, None, self._epsilon)
        return both[..., : x.shape[-1]].contiguous()


class FusedLayer(nn.Module):
    """One decoder layer; a module, so that what enters it can be tapped by a hook."""

    def __init__(self, layer: Any, index: int) -> None:
        super().__init__()
        own, mlp = layer.self_attn, layer.mlp
        self.index = index
        self.head_dim, self.scaling = int(own.head_dim), float(own.scaling)
        self.queries = own.q_proj.out_features // self.head_dim
        self.keys = own.k_proj.out_features // self.head_dim
        self.attention_norm, self.mlp_norm = FusedNorm(layer.input_layernorm), FusedNorm(layer.post_attention_layernorm)
        self.qkv = _merged(own.q_proj, own.k_proj, own.v_proj)
        self.output, self.gate, self.up, self.down = (
            PackedProduct(part.weight, part.bias) for part in (own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self.head_norm = HeadNorm(own, self.queries, self.keys) if hasattr(own, "q_norm") else None

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        """[B, R, H] -> [B, R, H]; cosine and sine as ``_rotation`` gives them, mask as ``grouped_sdpa`` takes it."""
        batch, rows, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, rows, self.queries + 2 * self.keys, self.head_dim)
        turned, value = heads[:, :, : -self.keys], heads[:, :, -self.keys :]
        if self.head_norm is not None:
            turned = self.head_norm(turned)
        swapped = torch.roll(turned, self.head_dim // 2, dims=-1)
        turned = torch.addcmul(turned * cosine, swapped, sine).transpose(1, 2)
        query, key = turned[:, : self.queries], turned[:, self.queries :]
        keys, values = cache.update(key, value.transpose(1, 2), self.index)
        attended, _ = attention.grouped_sdpa(self, query, keys, values, mask, scaling=self.scaling)
        x = self.output.combined(attended.flatten(2), x, "add")
        inner = self.mlp_norm(x)
        inner = self.up.combined(inner, self.gate(inner, "swish"), "mul")
        return self.down.combined(inner, x, "add")


class HeadNorm:
    """RMS norms of query and key heads (Qwen3), which differ only in their gains."""

    def __init__(self, own: Any, queries: int, keys: int) -> None:
        parts = (own.q_norm.weight.expand(queries, -1), own.k_norm.weight.expand(keys, -1))
        self._gain = torch.cat(parts)
        self._epsilon = float(own.q_norm.variance_epsilon)

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """[..., queries + keys, d] -> the same."""
        return F.rms_norm(heads, heads.shape[-1:], None, self._epsilon) * self._gain


class FusedDecoder(nn.Module):
    """The stack below the LM head, called as transformers' own is."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.embed_tokens, self.rotary_emb = decoder.embed_tokens, decoder.rotary_emb
        layers = [FusedLayer(layer, index) for index, layer in enumerate(decoder.layers)]
        self.layers = nn.ModuleList(layers)
        self._in_turn = tuple(zip(layers, layer_types(decoder.config), strict=True))
        self.norm = FusedNorm(decoder.norm)

    def get_decoder(self) -> FusedDecoder:
        """Itself, as transformers' decoders answer."""
        return self

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
        past_key_values: Cache,
        use_cache: bool = True,
    ) -> SimpleNamespace:
        """``last_hidden_state`` [B, R, H] of tokens and positions int64 [B, R]; masks as ``BaseModel`` takes them."""
        x = self.embed_tokens(input_ids)
        cosine, sine = _rotation(*self.rotary_emb(x, position_ids))
        for layer, kind in self._in_turn:
            mask = attention_mask[kind] if isinstance(attention_mask, dict) else attention_mask
            x = layer(x, cosine, sine, mask, past_key_values)
        return SimpleNamespace(last_hidden_state=self.norm(x))


def _rotation(cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE's factors [B, R, d] -> [B, R, 1, d], with the sine's sign for a vector and its halves swapped."""
    half = sine.shape[-1] // 2
    signed = torch.cat((-sine[..., :half], sine[..., half:]), dim=-1)
    return cosine[:, :, None], signed[:, :, None]


def _merged(*parts: nn.Linear) -> PackedProduct:
    weights: list[torch.Tensor] = [part.weight for part in parts]
    biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
    return PackedProduct(torch.cat(weights), torch.cat(biases) if biases else None)
