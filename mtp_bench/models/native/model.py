"""A base model whose decoding steps are one call of the kernels each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from mtp_bench.models import attention
from mtp_bench.models.compat import layer_types
from mtp_bench.models.fused import can_fuse
from mtp_bench.models.native.library import Layer, Model, kernel, library
from mtp_bench.models.native.passes import MASK_KINDS, SlottedCache, native_pass
from mtp_bench.models.native.weights import Weights

# The others' frequencies depend on how long the text is.
FIXED_ROPES = ("default", "linear", "llama3", "yarn")
TABLE_STEP = 1024


def why_not(model: PreTrainedModel) -> str | None:
    """What about the model the kernels do not compute, None where they compute all of it."""
    decoder: Any = model.get_decoder()
    if model.base_model is not decoder or not can_fuse(decoder):
        return f"they know LLaMA, Mistral, Qwen2 and Qwen3 with {attention.NAME}, not {type(decoder).__name__}"
    return odd_sizes(int(decoder.layers[0].self_attn.head_dim), int(decoder.config.hidden_size))


def odd_sizes(head_dim: int, hidden: int) -> str | None:
    """Why layers of these sizes cannot be computed, None where they can."""
    taken = 2 * int(library().mtp_lanes())
    if head_dim % taken or hidden % taken or head_dim > library().mtp_most_width():
        return f"they take {taken} numbers of a head at a time, and these have {head_dim} (hidden size {hidden})"
    return None


class NativeModel:
    """Packed weights of a model, and the steps made with them; the model itself stays as it is."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.get_decoder()
        head: Any = model.get_output_embeddings()
        self._rotary = RotaryTable(decoder.rotary_emb, head.weight.dtype)
        self._kept = Weights()
        with torch.no_grad():
            self._model = _model(decoder, head, self._kept)
        self._dtype: torch.dtype = head.weight.dtype
        self._step = kernel("step", self._dtype)

    def choices(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: Any,
        cache: SlottedCache,
        aux_layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``BaseModel.choices``; masks are bool, as ``row_mask`` makes them."""
        batch, rows = tokens.shape
        threads = torch.get_num_threads()
        hidden = torch.empty(batch, rows, self._model.hidden, dtype=self._dtype)
        choices, best_choices = torch.empty_like(tokens), tokens.new_empty(threads, batch * rows)
        best = torch.empty(threads, batch * rows)
        features = hidden.new_empty(batch, rows, len(aux_layers) * self._model.hidden) if aux_layers else hidden
        taps = (ctypes.c_int64 * len(aux_layers))(*aux_layers)
        tokens = tokens.contiguous()
        rotary, turns = self._rotary(positions, cache.visible)
        with native_pass(self._model, rotary, turns, mask, cache, hidden.new_empty) as step:
            step.tokens, step.hidden, step.features = tokens.data_ptr(), hidden.data_ptr(), features.data_ptr()
            step.taps, step.taps_count = ctypes.addressof(taps), len(aux_layers)
            step.choices, step.best_choice = choices.data_ptr(), best_choices.data_ptr()
            step.best = best.data_ptr()
            self._step(self._model, step)
        return hidden, features, choices


class RotaryTable:
    """RoPE's factors of a model: a table of all positions, where they depend on nothing else."""

    def __init__(self, rotary: Any, dtype: torch.dtype) -> None:
        self._rotary, self._like = rotary, torch.empty(1, dtype=dtype)
        self._fixed = rotary.rope_type in FIXED_ROPES
        self._table = self._of(torch.arange(0)[None])

    def __call__(self, positions: torch.Tensor, bound: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """For positions int64 [B, R] below ``bound``: cosines and sines [positions, d], and which each row takes."""
        if not self._fixed:
            return self._of(positions), torch.arange(positions.numel()).view(positions.shape)
        if len(self._table[0]) < bound:
            self._table = self._of(torch.arange(max(2 * len(self._table[0]), bound + TABLE_STEP))[None])
        return self._table, positions

    def _of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = self._rotary(self._like, positions)
        return cosine.flatten(0, 1), sine.flatten(0, 1)


def _model(decoder: Any, head: Any, kept: Weights) -> Model:
    kinds = layer_types(decoder.config)
    layers = [layer_of(layer, kept, kinds[index]) for index, layer in enumerate(decoder.layers)]
    model = model_of(decoder.layers[0], decoder.config.hidden_size, decoder.norm.variance_epsilon, layers)
    model.embedding = kept.address(decoder.embed_tokens.weight)
    model.norm = kept.place(decoder.norm.weight)
    model.lm_head = kept.matrix(head)
    return model


def model_of(layer: Any, hidden: int, epsilon: float, layers: Sequence[Layer]) -> Model:
    """The structure without embedding, last norm and LM head; sizes are those of ``layer``, one of its own."""
    own = layer.self_attn
    heads, kv_heads = (part.out_features // own.head_dim for part in (own.q_proj, own.k_proj))
    norm = getattr(own, "q_norm", None)
    return Model(
        len(layers), hidden, heads, kv_heads, own.head_dim, layer.mlp.down_proj.in_features,
        epsilon, 0.0 if norm is None else norm.variance_epsilon, getattr(own, "scaling", own.head_dim**-0.5),
        layer=(Layer * len(layers))(*layers),
    )  # fmt: skip


def layer_of(layer: Any, kept: Weights, kind: str = MASK_KINDS[0], *, normed: bool = True) -> Layer:
    """A decoder layer's weights.

    Args:
        normed: the layer norms what its attention reads; else that is given in each pass.
    """
    own, mlp = layer.self_attn, layer.mlp
    gains = [getattr(own, name, None) for name in ("q_norm", "k_norm")]
    return Layer(
        kept.matrix(own.q_proj, own.k_proj, own.v_proj),
        kept.matrix(own.o_proj),
        kept.gated(mlp.gate_proj, mlp.up_proj),
        kept.matrix(mlp.down_proj),
        kept.place(layer.input_layernorm.weight) if normed else None,
        kept.place(layer.post_attention_layernorm.weight),
        *(None if gain is None else kept.place(gain.weight) for gain in gains),
        MASK_KINDS.index(kind),
    )
