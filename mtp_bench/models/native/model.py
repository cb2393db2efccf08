"""A base model whose decoding steps are one call of the kernels each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from mtp_bench.models import attention
from mtp_bench.models.compat import layer_types
from mtp_bench.models.fused import can_fuse
from mtp_bench.models.native.library import Layer, Mask, Model, Pass, library
from mtp_bench.models.native.weights import Weights
from mtp_bench.models.pages import huge_pages

MASK_KINDS = ("full_attention", "sliding_attention")


class SlottedCache(Protocol):
    """What the kernels need of a KV cache.

    Attributes:
        data: [layers, 2, B, K, S, d] with the last dimension contiguous.
        slots: int64 [B, R], where the coming rows go.
        visible: slots that they see.
    """

    data: torch.Tensor
    slots: torch.Tensor
    visible: int


def why_not(model: PreTrainedModel) -> str | None:
    """What about the model the kernels do not compute, None where they compute all of it."""
    decoder: Any = model.get_decoder()
    if model.base_model is not decoder or not can_fuse(decoder):
        return f"they know LLaMA, Mistral, Qwen2 and Qwen3 with {attention.NAME}, not {type(decoder).__name__}"
    lanes = int(library().mtp_lanes())
    width, hidden = int(decoder.layers[0].self_attn.head_dim), int(decoder.config.hidden_size)
    if width % (2 * lanes) or hidden % lanes or width > library().mtp_most_width():
        return f"they take {2 * lanes} numbers of a head at a time, and these have {width} (hidden size {hidden})"
    return None


class NativeModel:
    """Packed weights of a model, and the steps made with them; the model itself stays as it is."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.get_decoder()
        head: Any = model.get_output_embeddings()
        self._rotary = decoder.rotary_emb
        self._hidden_size = int(decoder.config.hidden_size)
        self._dtype: torch.dtype = head.weight.dtype
        self._kept = Weights()
        with huge_pages(), torch.no_grad():
            self._model = _model(decoder, head, self._kept)
        steps = {torch.bfloat16: library().mtp_step_bf16, torch.float32: library().mtp_step_fp32}
        self._step: Callable[[Any, Any], None] = steps[self._dtype]

    def choices(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: Any,
        cache: SlottedCache,
        aux_layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``BaseModel.choices``."""
        batch, rows = tokens.shape
        total, shape = batch * rows, self._model
        hidden = torch.empty(batch, rows, self._hidden_size, dtype=self._dtype)
        choices = torch.empty(batch, rows, dtype=torch.int64)
        features = hidden.new_empty(batch, rows, len(aux_layers) * self._hidden_size) if aux_layers else hidden
        cosine, sine = self._rotary(hidden, positions)
        taps = (ctypes.c_int64 * len(aux_layers))(*aux_layers)
        threads = torch.get_num_threads()
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        sizes = (shape.hidden, shape.hidden, width, shape.heads * shape.head_dim, shape.inner)
        scratch = [hidden.new_empty(total, size) for size in sizes]
        scores = torch.empty(threads, library().mtp_queries(), cache.visible + library().mtp_lanes())
        best, best_choice = torch.empty(threads, total), choices.new_empty(threads, total)
        turns = (factor.expand(batch, -1, -1) for factor in (cosine, sine))
        read = [tensor.contiguous() for tensor in (tokens, cache.slots, *turns)]  # named, so that none is freed early
        masks = _masks(mask)
        self._step(
            shape,
            Pass(
                batch, rows, cache.visible, threads,
                *(tensor.data_ptr() for tensor in read),
                cache.data.data_ptr(), *cache.data.stride()[:5],
                (Mask * 2)(*masks),
                ctypes.addressof(taps), len(aux_layers), features.data_ptr(),
                *(tensor.data_ptr() for tensor in (*scratch, scores, best, hidden, best_choice, choices)),
            ),
        )  # fmt: skip
        return hidden, features, choices


def _masks(mask: Any) -> list[Mask]:
    """One for each of ``MASK_KINDS``."""
    of_kind = [mask.get(kind) for kind in MASK_KINDS] if isinstance(mask, dict) else [mask, mask]
    return [
        Mask(None, 0, 0) if one is None else Mask(one.data_ptr(), one.stride(0) if len(one) > 1 else 0, one.stride(2))
        for one in of_kind
    ]


def _model(decoder: Any, head: Any, kept: Weights) -> Model:
    own, config = decoder.layers[0].self_attn, decoder.config
    kinds = layer_types(config)
    layers = [_layer(layer, kinds[index], kept) for index, layer in enumerate(decoder.layers)]
    heads, kv_heads = (part.out_features // own.head_dim for part in (own.q_proj, own.k_proj))
    norm = getattr(own, "q_norm", None)
    return Model(
        len(layers), config.hidden_size, heads, kv_heads, own.head_dim, decoder.layers[0].mlp.down_proj.in_features,
        decoder.norm.variance_epsilon, 0.0 if norm is None else norm.variance_epsilon, own.scaling,
        kept.address(decoder.embed_tokens.weight),
        (Layer * len(layers))(*layers),
        kept.address(decoder.norm.weight),
        kept.matrix(head),
    )  # fmt: skip


def _layer(layer: Any, kind: str, kept: Weights) -> Layer:
    own, mlp = layer.self_attn, layer.mlp
    gains = [getattr(own, name, None) for name in ("q_norm", "k_norm")]
    return Layer(
        kept.matrix(own.q_proj, own.k_proj, own.v_proj),
        kept.matrix(own.o_proj),
        kept.gated(mlp.gate_proj, mlp.up_proj),
        kept.matrix(mlp.down_proj),
        kept.address(layer.input_layernorm.weight),
        kept.address(layer.post_attention_layernorm.weight),
        *(None if gain is None else kept.address(gain.weight) for gain in gains),
        MASK_KINDS.index(kind),
    )
