"""Which drafter serves which heads and topology."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Drafter, MedusaDrafter
from mtp_bench.decode.eagle import DynamicEagleDrafter, StaticEagleDrafter
from mtp_bench.decode.fused import fuse_draft
from mtp_bench.decode.hydra import HydraDrafter
from mtp_bench.decode.native_heads import NativeMedusa, can_be_native, native_draft
from mtp_bench.errors import InputError
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.engines import Engine
from mtp_bench.models.packed import PackedLinear, PackedProduct, can_pack, pack_linears, shared_copy
from mtp_bench.models.pages import huge_pages
from mtp_bench.topology import DynamicTree, StaticTree, Topology

Made = TypeVar("Made")


def drafter_for(
    heads: AnyHeads | None, topology: Topology, cache: TreeCache, engine: Engine = "eager"
) -> Drafter | None:
    """The drafter of these heads for this topology; None where nothing is drafted.

    Args:
        cache: the base model's, whose batch and length the draft's cache takes over.
        engine: what computes the heads (Hydra heads are never compiled nor native, but packed).

    Raises:
        InputError: there are no heads, or they cannot draft this topology.
    """
    if topology.depth == 0:
        return None
    if heads is None:
        raise InputError("a topology with nodes needs heads", where="--topology", fix="give --heads")
    if topology.depth > heads.max_depth:
        raise InputError(
            f"the topology is {topology.depth} deep, the heads draft only {heads.max_depth} tokens",
            where="--topology",
            fix="clip the tree (mtp-bench trees show) or use heads with more depths",
        )
    if isinstance(topology, DynamicTree) and not isinstance(heads, EagleDraft):
        raise InputError(
            f"{topology} is a dynamic tree, which Medusa and Hydra heads cannot draft",
            where="--topology",
            fix="use a static tree, or an EAGLE draft",
        )
    device, heads = _weight_of(heads).device, engine_heads(heads, engine)
    if isinstance(heads, EagleDraft):
        if topology.max_rank >= heads.draft_vocab_size:
            raise InputError(
                f"{topology.max_rank + 1} ranks are needed, the draft vocabulary has {heads.draft_vocab_size} tokens",
                where="--topology",
                fix="use a topology with fewer ranks",
            )
        if isinstance(topology, DynamicTree):
            return DynamicEagleDrafter(heads, topology, cache.batch, cache.length, engine)
        return StaticEagleDrafter(heads, topology, cache.batch, cache.length, engine)
    assert isinstance(topology, StaticTree)
    if isinstance(heads, HydraHeads):
        return HydraDrafter(heads, topology, cache.batch, cache.length, device)
    return MedusaDrafter(heads, topology, device, engine)


def _weight_of(heads: AnyHeads) -> torch.Tensor:
    assert isinstance(heads, torch.nn.Module)
    return next(heads.parameters())


def engine_heads(heads: AnyHeads, engine: Engine) -> AnyHeads | NativeMedusa:
    """The heads as an engine computes them, made once: the same ones, or a copy that shares their parameters."""
    if engine == "native" and isinstance(heads, MedusaHeads):
        return _made_once(heads, "_native", NativeMedusa)
    if engine == "native" and isinstance(heads, EagleDraft) and can_be_native(heads):
        return _made_once(heads, "_native", native_draft)
    if engine in ("native", "packed") and can_pack(_weight_of(heads).dtype):
        return _made_once(heads, "_packed", _packed)
    return heads


def _made_once(heads: AnyHeads, name: str, make: Callable[[Any], Made]) -> Made:
    known = heads.__dict__
    if name not in known:
        with torch.no_grad():
            known[name] = make(heads)
    made: Made = known[name]
    return made


def _packed(heads: AnyHeads) -> AnyHeads:
    """The same heads with packed weights, and the layer of an EAGLE draft fused."""
    assert isinstance(heads, torch.nn.Module)
    copy = shared_copy(heads)
    with huge_pages():
        if isinstance(copy, EagleDraft):
            fuse_draft(copy)
        pack_linears(copy)
        if isinstance(copy, EagleDraft) or (isinstance(copy, MedusaHeads) and copy.lm_head != "own"):
            own = copy.lm_head
            copy.lm_product = own.product if isinstance(own, PackedLinear) else PackedProduct(copy.lm_rows)
    assert isinstance(copy, MedusaHeads | EagleDraft | HydraHeads)
    return copy
