"""The authors' layouts of Hydra heads: which tensor is which part, plain (mlp) or Hydra++ (prefix-mlp).

Both hold residual blocks (`hydra_mlp`) and LM matrices (`hydra_lm_head`) per head. Hydra++ adds the prefix layer, and
dropout before every block and LM matrix takes up an index: blocks lie at 1, 3, ..., LM matrices at 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from mtp_bench.errors import InputError
from mtp_bench.heads.detect import Detection
from mtp_bench.heads.tensors import Entry

HydraKind = Literal["mlp", "prefix-mlp"]

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
PREFIX = "prefix_embeding_layer."  # spelled like this
# Embeddings that are the base's or never looked up, and what old rotary modules stored.
_IGNORED = re.compile(rf"input_embed_fn\.weight|{PREFIX}embed_tokens\.weight|{PREFIX}.*\.rotary_emb\.inv_freq")
_FIX = "download the heads again; nothing is filled in with random weights"


class PrefixSizes(NamedTuple):
    """Rows of the prefix layer's query, key and inner MLP matrices."""

    queries: int
    keys: int
    mlp: int


@dataclass(frozen=True, slots=True)
class HydraPlan:
    """Heads that are complete and consistent: their kind and size, and where each of their tensors is."""

    kind: HydraKind
    num_heads: int
    num_layers: int
    entries: Mapping[str, Entry]

    def block(self, head: int, block: int) -> str:
        """Where a block is."""
        return f"hydra_mlp.{head}.{block if self.kind == 'mlp' else 2 * block + 1}"

    def lm_head(self, head: int) -> str:
        """Where a head's LM matrix is."""
        return f"hydra_lm_head.{head}" if self.kind == "mlp" else f"hydra_lm_head.{head}.1"

    @property
    def prefix_sizes(self) -> PrefixSizes:
        """What the stored prefix layer says; 0 where a matrix is missing."""
        parts = ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj")
        stored = (self.entries.get(f"{PREFIX}layers.0.{part}.weight") for part in parts)
        return PrefixSizes(*(entry.shape[0] if entry is not None and entry.shape else 0 for entry in stored))


def hydra_plan(found: Detection) -> HydraPlan:
    """What a detected path holds, from headers alone where the files have headers.

    Raises:
        InputError: another kind of Hydra heads, or tensors missing, surplus or of the wrong shape.
    """
    assert found.weights is not None
    where = str(found.path)
    entries = found.weights.open([name for name in found.weights.file_of if not _IGNORED.fullmatch(name)])
    kind = _kind(entries, found.config, where)
    places = [(int(match[1]), int(match[2])) for name in entries if (match := _BLOCK.fullmatch(name))]
    heads, indices = (1 + max((place[axis] for place in places), default=0) for axis in (0, 1))
    plan = HydraPlan(kind, heads, indices if kind == "mlp" else max(1, indices // 2), entries)
    _check_grounded(plan, where)
    wanted = _shapes(plan, where)
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise InputError(f"missing tensors: {', '.join(missing[:6])}", where=where, fix=_FIX)
    surplus = [name for name in entries if name not in wanted]
    if surplus:
        raise InputError(f"tensors that do not belong to Hydra heads: {', '.join(surplus[:6])}", where=where, fix=_FIX)
    check_shapes(entries, wanted, where)
    return plan


def _kind(entries: Mapping[str, Entry], config: Mapping[str, Any], where: str) -> HydraKind:
    """By the tensors; what the config says must agree."""
    stored: HydraKind = "prefix-mlp" if any(name.startswith(PREFIX) for name in entries) else "mlp"
    declared = config.get("hydra_head_arch", stored)
    if declared not in get_args(HydraKind):
        raise InputError(
            f"Hydra heads of the kind {declared} are not supported",
            where=where,
            fix="use heads of the kinds mlp or prefix-mlp, an EAGLE draft, or Medusa heads",
        )
    if declared != stored:
        raise InputError(
            f"config.json says {declared}, the tensors are those of {stored}",
            where=where,
            fix="use the config that belongs to these weights",
        )
    return stored


def _check_grounded(plan: HydraPlan, where: str) -> None:
    linear = plan.entries.get(f"{plan.block(0, 0)}.linear.weight")
    square = linear is not None and len(linear.shape) == 2 and linear.shape[0] == linear.shape[1]
    if square and not any(".res_connection." in name for name in plan.entries):
        raise InputError(
            "ungrounded Hydra heads, which do not see the tokens before their own, are not supported",
            where=where,
            fix="use grounded heads, or Medusa heads, which ungrounded ones are like",
        )


def _shapes(plan: HydraPlan, where: str) -> dict[str, tuple[int, ...]]:
    """All names and shapes that follow from how many heads and blocks there are."""
    entries, first = plan.entries, plan.lm_head(0)
    lm = entries.get(f"{first}.weight")
    if lm is None or len(lm.shape) != 2:
        raise InputError(f"missing tensors: {first}.weight", where=where, fix=_FIX)
    vocabulary, hidden = lm.shape
    bias = f"{first}.bias" in entries
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(plan.num_heads):
        wide = (head + 2) * hidden
        for block in range(plan.num_layers):
            shapes[f"{plan.block(head, block)}.linear.weight"] = (hidden, wide if block == 0 else hidden)
            shapes[f"{plan.block(head, block)}.linear.bias"] = (hidden,)
        shapes[f"{plan.block(head, 0)}.res_connection.weight"] = (hidden, wide)
        shapes[f"{plan.block(head, 0)}.res_connection.bias"] = (hidden,)
        shapes[f"{plan.lm_head(head)}.weight"] = (vocabulary, hidden)
        if bias:
            shapes[f"{plan.lm_head(head)}.bias"] = (vocabulary,)
    if plan.kind == "prefix-mlp":
        shapes |= prefix_shapes(hidden, plan.prefix_sizes)
    return shapes


def prefix_shapes(hidden: int, sizes: PrefixSizes) -> dict[str, tuple[int, ...]]:
    """The prefix layer's tensors: one LLaMA layer and the norm behind it."""
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (sizes.queries, hidden),
        "self_attn.k_proj": (sizes.keys, hidden),
        "self_attn.v_proj": (sizes.keys, hidden),
        "self_attn.o_proj": (hidden, sizes.queries),
        "mlp.gate_proj": (sizes.mlp, hidden),
        "mlp.up_proj": (sizes.mlp, hidden),
        "mlp.down_proj": (hidden, sizes.mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {f"{PREFIX}layers.0.{name}.weight": shape for name, shape in layer.items()}
    return named | {f"{PREFIX}norm.weight": (hidden,)}


def check_shapes(
    entries: Mapping[str, Entry], wanted: Mapping[str, tuple[int, ...]], where: str, whose: str = ""
) -> None:
    """Raises:
    InputError: the first tensor that has another shape than is wanted (``whose`` says by whom).
    """
    for name, shape in wanted.items():
        if entries[name].shape != shape:
            raise InputError(
                f"tensor {name} has shape {list(entries[name].shape)}, {list(shape)} expected{whose}",
                where=where,
                fix=_FIX,
            )
