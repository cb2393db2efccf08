"""EAGLE draft layers: one transformer layer that predicts the base model's next features, token by token.

Slot t of the draft reads the embedding of token t + 1 beside the base model's feature at position t, and its output
says token t + 2 (so the first token of a text is never read). Further tokens are drafted by feeding the draft its own
output in place of the feature that the base model has not computed yet; once it has, the slot is computed again.

* ``eagle`` (EAGLE-1 and EAGLE-2, Li et al. 2024): the feature is the last hidden state after the final norm; `fc` joins
  it with the embedding; the output goes straight into the base model's LM head.
* ``eagle3`` (EAGLE-3, Li et al. 2025): the features are the hidden states that enter three layers (`aux_layers`),
  joined by `fc`; attention reads the normed embedding beside the normed feature; norm and LM head are the draft's own,
  the latter often over a reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtp_bench.errors import InputError
from mtp_bench.heads.base import HeadsInfo, LmBest, LmHead, LmProduct
from mtp_bench.heads.ranking import best_of, ordered_topk
from mtp_bench.heads.vocabulary import inverse_map
from mtp_bench.models.compat import rotary_table

Variant = Literal["eagle", "eagle3"]
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of RoPE, [R, d] or [B, R, d] each."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes queries [B, A, R, d], keys and values [B, K, R, d] of the rows at hand; gives [B, R, A, d]."""

DEFAULT_DEPTH = 6


@dataclass(frozen=True)
class EagleConfig:
    """Sizes and switches of a draft layer.

    Attributes:
        hidden_size: H, of the draft; target_hidden_size: of the base model's features.
        aux_layers: the base model's hidden states that are read, as indices into Hugging Face's ``hidden_states``
            (i = what enters layer i); empty for ``eagle``, which reads the last one after the final norm.
        rope: RoPE parameters as transformers names them, ``rope_theta`` and ``rope_type`` at least.
        fc_bias, qkv_bias, own_embedding, own_lm_head, final_norm: parts that are there or not.
        input_norm, embed_norm, feature_norm: norms that some descendants of EAGLE-1 add: over what attention reads,
            over the embedding, over the base model's feature.
        norm_before_residual: the residual is the normed feature, not the raw one (eagle3).
        norm_output: the output that is fed back is normed (eagle3).
        norm_before_fc, fc_norm: one norm over all features before `fc`, or one for each layer's.
        draft_vocab_size: rows of the own LM head, None where the base model's is used.
    """

    variant: Variant
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    aux_layers: tuple[int, ...] = ()
    rms_eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_positions: int = 2048
    fc_bias: bool = False
    qkv_bias: bool = False
    own_embedding: bool = False
    own_lm_head: bool = False
    final_norm: bool = False
    input_norm: bool = False
    embed_norm: bool = False
    feature_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    draft_vocab_size: int | None = None

    @property
    def feature_size(self) -> int:
        """Width F of the base model's features that the draft reads."""
        return self.target_hidden_size * max(1, len(self.aux_layers))


class RmsNorm(nn.RMSNorm):
    """In the input's dtype, so that the fused kernel serves it under autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class RotaryTable:
    """Cosines and sines of a layer's positions, kept for the next call."""

    def __init__(self, config: EagleConfig) -> None:
        self._config = config
        self._known: Rotary | None = None

    def __call__(self, length: int, like: Tensor) -> Rotary:
        """[length, d] each of the positions 0 .. length - 1, in the dtype and on the device of ``like``."""
        known, config = self._known, self._config
        if known is None or len(known[0]) < length or (known[0].device, known[0].dtype) != (like.device, like.dtype):
            # Kept beyond this call, so no inference tensors: training may follow.
            with torch.inference_mode(False):
                cosine, sine = rotary_table(config.rope, config.head_dim, config.max_positions, max(length, 512))
                known = cosine.to(like.device, like.dtype), sine.to(like.device, like.dtype)
            self._known = known
        return known[0][:length], known[1][:length]


class EagleParts(nn.Module):
    """The parts that a config asks for, with whatever weights the device in use gives them (none, on ``meta``)."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        h, f, eagle3 = config.hidden_size, config.feature_size, config.variant == "eagle3"
        self.fc = nn.Linear(f if eagle3 else h + f, h, bias=config.fc_bias)
        self.layer = _Eagle3Layer(config) if eagle3 else DecoderLayer(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, h) if config.own_embedding else None
        self.embed_norm = RmsNorm(h, config.rms_eps) if config.embed_norm else None
        self.feature_norm = RmsNorm(f, config.rms_eps) if config.feature_norm else None
        self.norm = RmsNorm(h, config.rms_eps) if config.final_norm else None
        rows = config.draft_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(h, rows, bias=False) if config.own_lm_head else None
        self.input_norm = RmsNorm(f, config.rms_eps) if config.norm_before_fc else None
        norms = [RmsNorm(config.target_hidden_size, config.rms_eps) for _ in config.aux_layers]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None


def parameter_shapes(config: EagleConfig) -> dict[str, torch.Size]:
    """Name and shape of every parameter that a draft of ``config`` has."""
    with torch.device("meta"):
        parts = EagleParts(config)
    return {name: parameter.shape for name, parameter in parts.named_parameters()}


class EagleDraft(EagleParts):
    """A draft layer made from given tensors; never random (see `fresh_eagle` in `train.eagle` for untrained ones).

    Args:
        config: what it is made of.
        tensors: all parameters by name, no more and no fewer; `token_map` int64 [V'] (draft id -> target id) beside
            them where the draft vocabulary is reduced.
        meta: what this draft is; made up from the tensors when left out.
    """

    token_map: Tensor | None
    _draft_id: Tensor | None
    _base_embedding: Tensor | None
    _base_rows: Tensor | None

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor], *, meta: HeadsInfo | None = None) -> None:
        with torch.device("meta"):
            super().__init__(config)
        self.max_depth = DEFAULT_DEPTH
        plain = {name: tensor for name, tensor in tensors.items() if name != "token_map"}
        self.load_state_dict(plain, strict=True, assign=True)
        token_map = tensors.get("token_map")
        self.register_buffer("token_map", token_map, persistent=False)
        self.register_buffer("_draft_id", None if token_map is None else inverse_map(token_map), persistent=False)
        # The base model's, so neither parameters nor in the state dict.
        self.register_buffer("_base_embedding", None, persistent=False)
        self.register_buffer("_base_rows", None, persistent=False)
        self._rotary = RotaryTable(config)
        self.lm_product: LmProduct | None = None
        self.lm_best: LmBest | None = None
        self.meta = meta if meta is not None else self._describe()

    def attach(self, embedding: Tensor, lm_rows: Tensor) -> None:
        """Take the base model's embedding [V, H] and LM matrix [V, H], where this draft has none of its own.

        Raises:
            InputError: they do not fit.
        """
        for mine, rows in ((self.embed_tokens, embedding), (self.lm_head, lm_rows)):
            if mine is None and rows.shape[1] != self.config.hidden_size:
                raise InputError(
                    f"the draft has hidden size {self.config.hidden_size}, the base model {rows.shape[1]}",
                    fix="use the draft that was trained for this base model",
                )
        weight = self.fc.weight
        if self.embed_tokens is None:
            self._base_embedding = embedding.detach().to(weight.device, weight.dtype)
        if self.lm_head is None:
            rows = lm_rows.detach()
            if self.token_map is not None:
                rows = rows.index_select(0, self.token_map.to(rows.device))
            self._base_rows = rows.to(weight.device, weight.dtype)

    @property
    def method(self) -> str:
        """``eagle`` or ``eagle3``."""
        return self.config.variant

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Which of the base model's hidden states are read; empty = the last, normed one."""
        return self.config.aux_layers

    @property
    def lm_rows(self) -> Tensor:
        """The LM matrix in use, [V', H]."""
        rows = self._base_rows if self.lm_head is None else self.lm_head.weight
        if rows is None:
            raise RuntimeError("attach() the base model before using this draft")
        return rows

    @property
    def draft_vocab_size(self) -> int:
        """V', the number of tokens that the draft chooses from."""
        return int(self.lm_rows.shape[0])

    @property
    def embedding(self) -> Tensor:
        """The embedding in use, [V, H]."""
        rows = self._base_embedding if self.embed_tokens is None else self.embed_tokens.weight
        if rows is None:
            raise RuntimeError("attach() the base model before using this draft")
        return rows

    def embed(self, tokens: Tensor) -> Tensor:
        """Target ids int64 [...] -> embeddings [..., H]."""
        return F.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """The base model's features [..., F] -> what `forward` takes as hidden, [..., H]."""
        if self.config.variant == "eagle":
            return features
        if self.input_norm is not None:
            features = self.input_norm(features)
        elif self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(self, tokens: Tensor, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """One pass of the layer.

        Args:
            tokens: int64 [B, R], the tokens one past the slots.
            hidden: [B, R, H], fused features of the base model, or this draft's `feedback`.
            rotary: cosines and sines [B, R, d] (or [R, d]) of the slots' positions, see `rotary`.
            attend: attention over whatever the rows may see.

        Returns:
            [B, R, H], to be given to `logits` and `feedback`.
        """
        embedded = self.embed(tokens)
        output: Tensor
        if self.config.variant == "eagle":
            if self.embed_norm is not None:
                embedded = self.embed_norm(embedded)
            if self.feature_norm is not None:
                hidden = self.feature_norm(hidden)
            output = self.layer(self.fc(torch.cat([embedded, hidden], dim=-1)), rotary, attend)
        else:
            output = self.layer(embedded, hidden, rotary, attend)
        return output

    def feedback(self, output: Tensor) -> Tensor:
        """What the next level reads in place of the base model's features."""
        if self.config.norm_output and self.norm is not None:
            normed: Tensor = self.norm(output)
            return normed
        return output

    def logits(self, output: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [..., H] -> [..., V']."""
        normed = self.norm(output) if self.norm is not None else output
        return F.linear(normed, self.lm_rows) if self.lm_product is None else self.lm_product(normed)

    def top(self, output: Tensor, top_k: int) -> Tensor:
        """``best`` without the log-probabilities, which cost a pass over the logits."""
        return ordered_topk(self.logits(output), top_k) if self.lm_best is None else self.best(output, top_k)[0]

    def best(self, output: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """Draft ids int64 and log-probabilities float32 [..., top_k] of the most probable tokens, [..., H] given."""
        if self.lm_best is not None:
            return self.lm_best(output if self.norm is None else self.norm(output), top_k)
        return best_of(self.logits(output), top_k)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids -> target ids."""
        return draft_ids if self.token_map is None else self.token_map[draft_ids]

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        """Target ids -> draft ids, -1 where the draft vocabulary lacks the token."""
        if self._draft_id is None:
            return target_ids
        return self._draft_id[target_ids.clamp(max=len(self._draft_id) - 1)]

    def rotary(self, length: int) -> Rotary:
        """Cosines and sines [length, d] of the positions 0 .. length - 1, kept for the next call."""
        return self._rotary(length, self.fc.weight)

    @property
    def num_parameters(self) -> int:
        """Parameters that this draft holds itself."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def num_bytes(self) -> int:
        """Bytes of these parameters and of the token map."""
        tensors = [*self.parameters(), *([] if self.token_map is None else [self.token_map])]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _describe(self) -> HeadsInfo:
        config = self.config
        lm_head: LmHead = "own" if config.own_lm_head else "base"
        return HeadsInfo(
            method=config.variant,
            layout="memory",
            num_heads=1,
            num_layers=1,
            hidden_size=config.hidden_size,
            draft_vocab_size=config.draft_vocab_size,
            lm_head=lm_head,
            bias=config.fc_bias,
            dtype=str(self.fc.weight.dtype).removeprefix("torch."),
            parameters=self.num_parameters,
            bytes=self.num_bytes,
            facts={"aux_layers": list(config.aux_layers)},
        )


class DecoderLayer(nn.Module):
    """LLaMA's decoder layer. EAGLE-1's does not norm its input, embedding and feature joined; few descendants do."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.rms_eps
        self.self_attn = _Attention(config, h)
        self.mlp = _Mlp(h, config.intermediate_size)
        self.input_layernorm = RmsNorm(h, eps) if config.input_norm else None
        self.post_attention_layernorm = RmsNorm(h, eps)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        normed = x if self.input_layernorm is None else self.input_layernorm(x)
        hidden: Tensor = x + self.self_attn(normed, rotary, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class _Eagle3Layer(nn.Module):
    """EAGLE-3's decoder layer: attention reads the normed embedding beside the normed feature."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.rms_eps
        self.self_attn = _Attention(config, 2 * h)
        self.mlp = _Mlp(h, config.intermediate_size)
        self.input_layernorm = RmsNorm(h, eps)
        self.hidden_norm = RmsNorm(h, eps)
        self.post_attention_layernorm = RmsNorm(h, eps)
        self._norm_before_residual = config.norm_before_residual

    def forward(self, embedded: Tensor, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self._norm_before_residual else hidden
        x = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        attended: Tensor = residual + self.self_attn(x, rotary, attend)
        output: Tensor = attended + self.mlp(self.post_attention_layernorm(attended))
        return output


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig, width: int) -> None:
        super().__init__()
        d, bias = config.head_dim, config.qkv_bias
        self.head_dim = d
        self.q_proj = nn.Linear(width, config.num_heads * d, bias=bias)
        self.k_proj = nn.Linear(width, config.num_kv_heads * d, bias=bias)
        self.v_proj = nn.Linear(width, config.num_kv_heads * d, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * d, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, R, width] -> [B, R, H]."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        output: Tensor = self.o_proj(attend(_rotate(query, rotary), _rotate(key, rotary), value).flatten(2))
        return output


class _Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, R, H] -> [B, R, H]."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


def _rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Apply RoPE to [B, heads, R, d]."""
    cosine, sine = (part.unsqueeze(-3) for part in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine
