"""A loaded base model: the stock transformers module with the few facts and calls the decoder needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel

from mtp_bench.models import attention, flex
from mtp_bench.models.compat import Cache, cache_keyword, layer_types, sliding_window
from mtp_bench.models.compiled import compiled
from mtp_bench.models.engines import Engine
from mtp_bench.models.fused import packed_model
from mtp_bench.models.native.model import NativeModel
from mtp_bench.models.split import runs_on

LayerMask = torch.Tensor | BlockMask
Mask = LayerMask | dict[str, LayerMask] | None


@dataclass(frozen=True, eq=False)
class BaseModel:
    """The target LLM that verifies.

    Attributes:
        name: what the user asked for (alias, hub id or path).
        source: where the weights came from (folder, hub id, or ``dummy``).
        model: decoder-only causal LM, in evaluation mode.
        tokenizer: its tokenizer, None for dummy weights.
        sha256: fingerprint of the weights (of the config for dummy weights).
        engine: how decoding steps run; prefill and teacher-forced passes are always eager.
        device_map: device of each module by its name, where they are on several (see ``models.split``).
    """

    name: str
    source: str
    model: PreTrainedModel
    tokenizer: Any
    sha256: str
    engine: Engine = "eager"
    device_map: Mapping[str, str] | None = None

    @cached_property
    def config(self) -> Any:
        """The text model's config."""
        return self.model.config.get_text_config()

    @cached_property
    def decoder(self) -> torch.nn.Module:
        """The stack below the LM head."""
        decoder = self.model.get_decoder()
        assert isinstance(decoder, torch.nn.Module)
        return decoder

    @cached_property
    def lm_head(self) -> torch.nn.Module:
        """The output projection [V, H]."""
        head = self.model.get_output_embeddings()
        assert isinstance(head, torch.nn.Module)
        return head

    @property
    def lm_head_weight(self) -> torch.Tensor:
        """Weight of the output projection, [V, H]."""
        weight = self.lm_head.weight
        assert isinstance(weight, torch.Tensor)
        return weight

    @property
    def device(self) -> torch.device:
        """Device of the weights; of a split model, where its LM head is, and with it heads and all state of a step."""
        return self.lm_head_weight.device

    @cached_property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """Where each decoder layer runs, and with it its keys and values."""
        if self.device_map is None:
            return (self.device,) * self.num_layers
        stack: Any = self.decoder.layers
        return tuple(runs_on(layer) for layer in stack[: self.num_layers])

    @cached_property
    def _entry(self) -> torch.device:
        """Where the decoder begins: no hook moves the positions that it derives a causal mask from."""
        return self.device if self.device_map is None else runs_on(self.model.get_input_embeddings())

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the weights."""
        return self.lm_head_weight.dtype

    @property
    def attention(self) -> str:
        """Name of the attention implementation in use."""
        return str(self.config._attn_implementation)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """V, rows of the LM head."""
        return int(self.lm_head_weight.shape[0])

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.config.num_hidden_layers)

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads per layer (GQA)."""
        return int(getattr(self.config, "num_key_value_heads", None) or self.config.num_attention_heads)

    @property
    def num_attention_heads(self) -> int:
        """Query heads per layer."""
        return int(self.config.num_attention_heads)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        explicit = getattr(self.config, "head_dim", None)
        return int(explicit or self.config.hidden_size // self.config.num_attention_heads)

    @property
    def max_positions(self) -> int:
        """Context limit of the model in tokens."""
        return int(getattr(self.config, "max_position_embeddings", 1 << 30))

    @cached_property
    def layer_types(self) -> tuple[str, ...]:
        """Attention type per layer."""
        return layer_types(self.config)

    @cached_property
    def sliding_window(self) -> int | None:
        """Sliding window in tokens, None without one."""
        return sliding_window(self.config)

    @property
    def sees_all_without_mask(self) -> bool:
        """Whether a single row without a mask attends to all keys: our attention, and no layer with a window."""
        return self.attention == attention.NAME and set(self.layer_types) == {"full_attention"}

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ids: set[int] = set()
        for holder in (getattr(self.model, "generation_config", None), self.config, self.tokenizer):
            value = getattr(holder, "eos_token_id", None)
            ids.update(value if isinstance(value, (list, tuple)) else [value] if value is not None else [])
        return frozenset(int(token) for token in ids)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters, tied weights counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights, tied weights counted once."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one cached token takes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * torch.finfo(self.dtype).bits // 8

    @cached_property
    def _cache_keyword(self) -> str:
        return cache_keyword(self.decoder)

    def hidden_states(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: Mask,
        cache: Cache | None,
    ) -> torch.Tensor:
        """Final normed hidden states.

        Args:
            tokens: int64 [B, R].
            positions: int64 [B, R], position of each row in its sequence.
            mask: bool [B, 1, R, S] (True = visible), one per attention type where the model mixes them, as
                ``decode.masks`` lays it out, or None for a plain causal pass without a cache (inside
                ``stock_attention`` where layers have windows, and with FlexAttention).
            cache: the KV cache to write into, or None.

        Returns:
            [B, R, H] in the model's dtype, on ``device``.
        """
        output = self.decoder(
            input_ids=tokens,
            position_ids=positions.to(self._entry),
            attention_mask=mask,
            use_cache=cache is not None,
            **{self._cache_keyword: cache},
        )
        hidden = output.last_hidden_state
        assert isinstance(hidden, torch.Tensor)
        return hidden.to(self.device)

    def features(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: Mask,
        cache: Cache | None,
        aux_layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Final hidden states, and beside them the features that a draft reads.

        Args:
            aux_layers: layers whose *input* is wanted (index i of Hugging Face's ``hidden_states``); none = the final
                hidden states themselves.

        Returns:
            hidden states [B, R, H], and features [B, R, H * max(1, number of layers)], in the order of ``aux_layers``.
        """
        self._tap(aux_layers)
        return self._features(tokens, positions, mask, cache, tuple(aux_layers))

    def choices(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: Cache, aux_layers: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A decoding step's pass, run by the engine.

        Returns:
            hidden states and features as ``features`` gives them, and the greedy token after each row, int64 [B, R].
        """
        if self.engine == "native":
            return self.native.choices(tokens, positions, mask, cache, aux_layers)
        if self.engine == "packed":
            return self._packed.choices(tokens, positions, mask, cache, aux_layers)
        self._tap(aux_layers)
        run = compiled(self, "_choices") if self.engine == "compiled" else self._choices
        hidden, features, chosen = run(tokens, positions, mask, cache, tuple(aux_layers))
        return hidden, features, chosen

    @cached_property
    def native(self) -> NativeModel:
        """The kernels' form of the model, for decoding steps."""
        return NativeModel(self.model)

    @cached_property
    def _packed(self) -> BaseModel:
        """The same model with packed and, where its kind is known, fused layers, for decoding steps."""
        return replace(self, model=packed_model(self.model), engine="eager")

    def _choices(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: Cache, aux_layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, features = self._features(tokens, positions, mask, cache, aux_layers)
        # On a CPU argmax of bf16 takes four times as long; both give the first of equal logits.
        return hidden, features, self.logits(hidden).max(-1).indices

    def _features(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: Mask,
        cache: Cache | None,
        aux_layers: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.hidden_states(tokens, positions, mask, cache)
        if not aux_layers:
            return hidden, hidden
        return hidden, torch.cat([self._inputs[layer].to(hidden.device) for layer in aux_layers], dim=-1)

    @cached_property
    def _inputs(self) -> dict[int, torch.Tensor]:
        """What last entered the tapped layers."""
        return {}

    def _tap(self, layers: Sequence[int]) -> None:
        """Note the inputs of these layers from now on; hooks that come and go would be compiled anew each time."""
        stack: Any = self.decoder.layers
        for layer in set(layers) - self._inputs.keys():
            self._inputs[layer] = torch.empty(0)

            def note(module: torch.nn.Module, args: Any, kwargs: dict[str, Any], layer: int = layer) -> None:
                self._inputs[layer] = args[0] if args else kwargs["hidden_states"]

            stack[layer].register_forward_pre_hook(note, with_kwargs=True)

    @property
    def embedding_weight(self) -> torch.Tensor:
        """Input embedding [V, H]."""
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        return weight

    @contextmanager
    def stock_attention(self) -> Iterator[None]:
        """Run the block with transformers' own attention: the reference that ours is compared with.

        Ours also cannot do without a mask where layers have a sliding window, because it is not told of the window.
        """
        ours = self.attention
        if ours in (attention.NAME, flex.NAME):
            soft_capped = getattr(self.config, "attn_logit_softcapping", None)
            self.model.set_attn_implementation("eager" if soft_capped else "sdpa")
        try:
            yield
        finally:
            self.model.set_attn_implementation(ours)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """LM-head product, [.., H] -> [.., V]; monotone post-processing (soft-capping, scale) left out: greedy only."""
        logits = self.lm_head(hidden)
        assert isinstance(logits, torch.Tensor)
        return logits
