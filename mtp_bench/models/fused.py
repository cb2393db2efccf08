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
from mtp_bench.models.compat import Cache, layer_types, registered_attention
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


class FusedNorm(nn.Module):
    """RMS normalisation over the last dimension by one layer-norm kernel.

    Of x and -x side by side the mean is 0 and the variance the mean square of x, so the first half of their layer norm
    is the RMS norm of x; torch's own ``rms_norm`` is eight operations on a CPU.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self._gain = torch.cat((weight, torch.zeros_like(weight))).detach()
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        both = F.layer_norm(torch.cat((x, -x), dim=-1), self._gain.shape, self._gain, None, self._epsilon)
        return both[..., : x.shape[-1]].contiguous()


class FusedMlp(nn.Module):
    """A gated MLP with SiLU in three products."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        parts = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        self.gate, self.up, self.down = (PackedProduct(part.weight, part.bias) for part in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        return self.down(self._inner(x))

    def onto(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``residual`` plus the MLP of x."""
        return self.down.combined(self._inner(x), residual, "add")

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.up.combined(x, self.gate(x, "swish"), "mul")


class FusedHeads(nn.Module):
    """Queries, keys and values by one product, the former two turned by RoPE."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.head_dim = int(own.head_dim)
        self._queries = own.q_proj.out_features // self.head_dim
        self._keys = own.k_proj.out_features // self.head_dim
        self._product = _merged(own.q_proj, own.k_proj, own.v_proj)
        self._norm = HeadNorm(own, self._queries, self._keys) if hasattr(own, "q_norm") else None

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[B, R, width] -> queries [B, A, R, d], keys and values [B, K, R, d]; RoPE as ``rotation`` gives it."""
        heads = self._product(x).view(*x.shape[:2], self._queries + 2 * self._keys, self.head_dim)
        turned, value = heads[:, :, : -self._keys], heads[:, :, -self._keys :]
        if self._norm is not None:
            turned = self._norm(turned)
        swapped = torch.roll(turned, self.head_dim // 2, dims=-1)
        turned = torch.addcmul(turned * cosine, swapped, sine).transpose(1, 2)
        return turned[:, : self._queries], turned[:, self._queries :], value.transpose(1, 2)


class HeadNorm:
    """RMS norms of query and key heads (Qwen3), which differ only in their gains."""

    def __init__(self, own: Any, queries: int, keys: int) -> None:
        parts = (own.q_norm.weight.expand(queries, -1), own.k_norm.weight.expand(keys, -1))
        self._gain = torch.cat(parts)
        self._epsilon = float(own.q_norm.variance_epsilon)

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """[..., queries + keys, d] -> the same."""
        return F.rms_norm(heads, heads.shape[-1:], None, self._epsilon) * self._gain


class FusedLayer(nn.Module):
    """One decoder layer; a module, so that what enters it can be tapped by a hook."""

    def __init__(self, layer: Any, index: int) -> None:
        super().__init__()
        own = layer.self_attn
        self._index, self._scaling = index, float(own.scaling)
        self._heads, self._output = FusedHeads(own), PackedProduct(own.o_proj.weight, own.o_proj.bias)
        self.attention_norm, self.mlp_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.mlp = FusedMlp(layer.mlp)

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        """[B, R, H] -> [B, R, H]; cosine and sine as ``rotation`` gives them, mask as ``grouped_sdpa`` takes it."""
        query, key, value = self._heads(self.attention_norm(x), cosine, sine)
        keys, values = cache.update(key, value, self._index)
        attend = registered_attention(attention.NAME)
        attended, _ = attend(self, query, keys, values, mask, scaling=self._scaling)
        x = self._output.combined(attended.flatten(2), x, "add")
        return self.mlp.onto(x, self.mlp_norm(x))


class FusedDecoder(nn.Module):
    """The stack below the LM head, called as transformers' own is."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.embed_tokens, self.rotary_emb = decoder.embed_tokens, decoder.rotary_emb
        layers = [FusedLayer(layer, index) for index, layer in enumerate(decoder.layers)]
        self.layers = nn.ModuleList(layers)
        self._in_turn = tuple(zip(layers, layer_types(decoder.config), strict=True))
        self.norm = _norm(decoder.norm)

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
        cosine, sine = rotation(*self.rotary_emb(x, position_ids))
        for layer, kind in self._in_turn:
            mask = attention_mask[kind] if isinstance(attention_mask, dict) else attention_mask
            x = layer(x, cosine, sine, mask, past_key_values)
        return SimpleNamespace(last_hidden_state=self.norm(x))


def rotation(cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE's factors [..., R, d] -> [..., R, 1, d], with the sine's sign for a vector and its halves swapped."""
    half = sine.shape[-1] // 2
    signed = torch.cat((-sine[..., :half], sine[..., half:]), dim=-1)
    return cosine.unsqueeze(-2), signed.unsqueeze(-2)


def _norm(norm: Any) -> FusedNorm:
    return FusedNorm(norm.weight, float(norm.variance_epsilon))


def _merged(*parts: nn.Linear) -> PackedProduct:
    weights: list[torch.Tensor] = [part.weight for part in parts]
    biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
    return PackedProduct(torch.cat(weights), torch.cat(biases) if biases else None)
