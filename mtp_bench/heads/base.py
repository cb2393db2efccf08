"""What every draft of this project looks like from outside, and the facts that travel with it.

A decoder needs from heads only `propose`; a profiler needs `logits` beside it. The rest here are plain records, so
that results can say which heads they were measured with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

LmHead = Literal["own", "shared", "base"]
"""Where the heads' LM matrix comes from: one per head, one for all heads, or the base model's."""


LmProduct = Callable[["Tensor"], "Tensor"]
"""The product of states [..., H] with a set of heads' LM rows, where an engine has a faster one than the plain."""

LmBest = Callable[["Tensor", int], "tuple[Tensor, Tensor]"]
"""``ranking.best_of`` of that product and so many tokens, where an engine has a faster one."""


@runtime_checkable
class Heads(Protocol):
    """Draft heads that see one hidden state per sequence and propose tokens for several depths at once."""

    hidden_size: int

    @property
    def max_depth(self) -> int:
        """Deepest token that can be drafted."""
        ...

    def propose(self, x: Tensor, depth: int, top_k: int) -> Tensor:
        """Map hidden states [B, H] to target token ids int64 [B, depth, top_k], best first."""
        ...

    def logits(self, x: Tensor, head: int) -> Tensor:
        """Map hidden states [..., H] to that head's logits [..., V'] over the draft vocabulary."""
        ...


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """What heads must know of the base model that they are loaded for.

    `lm_head_weight` and `embedding_weight` give the base model's matrices [V, H]; called only by heads that share them.
    `config` is the base model's, for heads with a layer made after its layers.
    `aliases` are further names of the same model (hub id, folder); `weights_hash` is compared where heads recorded one.
    """

    hidden_size: int
    vocab_size: int
    name: str
    lm_head_weight: Callable[[], Tensor] | None = None
    embedding_weight: Callable[[], Tensor] | None = None
    num_layers: int | None = None
    aliases: tuple[str, ...] = ()
    weights_hash: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadsInfo:
    """What a set of heads is. `parameters` and `bytes` count what is stored, not what is borrowed from the base."""

    method: str
    layout: str
    num_heads: int
    num_layers: int
    hidden_size: int
    draft_vocab_size: int | None
    lm_head: LmHead
    bias: bool
    dtype: str
    parameters: int
    bytes: int
    base_model: str | None = None
    hash: str | None = None
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict that JSON can hold."""
        names = self.__slots__
        document = {name: getattr(self, name) for name in names}
        return document | {"warnings": list(self.warnings), "facts": dict(self.facts)}
