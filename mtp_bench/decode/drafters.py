"""Which drafter serves which heads and topology."""

from __future__ import annotations

import torch

from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Drafter, MedusaDrafter
from mtp_bench.decode.eagle import DynamicEagleDrafter, StaticEagleDrafter
from mtp_bench.decode.fused import fuse_draft
from mtp_bench.decode.hydra import HydraDrafter
from mtp_bench.errors import InputError
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models.engines import Engine
from mtp_bench.models.packed import PackedLinear, PackedProduct, pack_linears, shared_copy
from mtp_bench.models.pages import huge_pages
from mtp_bench.topology import DynamicTree, Topology


def drafter_for(
    heads: AnyHeads | None, topology: Topology, cache: TreeCache, engine: Engine = "eager"
) -> Drafter | None:
    """The drafter of these heads for this topology; None where nothing is drafted.

    Args:
        cache: the base model's, whose batch and length the draft's cache takes over.
        engine: whether passes of the heads are compiled (Hydra heads never are) or their weights packed.

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
    if engine in ("packed", "native"):
        heads = packed_heads(heads)
    if not isinstance(heads, EagleDraft):
        if isinstance(topology, DynamicTree):
            raise InputError(
                f"{topology} is a dynamic tree, which Medusa and Hydra heads cannot draft",
                where="--topology",
                fix="use a static tree, or an EAGLE draft",
            )
        if isinstance(heads, HydraHeads):
            return HydraDrafter(heads, topology, cache.batch, cache.length, _device_of(heads))
        return MedusaDrafter(heads, topology, _device_of(heads), engine)
    if topology.max_rank >= heads.draft_vocab_size:
        raise InputError(
            f"{topology.max_rank + 1} ranks are needed, the draft vocabulary has {heads.draft_vocab_size} tokens",
            where="--topology",
            fix="use a topology with fewer ranks",
        )
    if isinstance(topology, DynamicTree):
        return DynamicEagleDrafter(heads, topology, cache.batch, cache.length, engine)
    return StaticEagleDrafter(heads, topology, cache.batch, cache.length, engine)


def _device_of(heads: AnyHeads) -> torch.device:
    assert isinstance(heads, torch.nn.Module)
    return next(heads.parameters()).device


def packed_heads(heads: AnyHeads) -> AnyHeads:
    """The same heads with packed weights, in a copy that shares the plain ones; made once."""
    assert isinstance(heads, torch.nn.Module)
    known = heads.__dict__.get("_packed")
    if known is None:
        known = shared_copy(heads)
        with huge_pages(), torch.no_grad():
            if isinstance(known, EagleDraft):
                fuse_draft(known)
            pack_linears(known)
            if isinstance(known, EagleDraft) or (isinstance(known, MedusaHeads) and known.lm_head != "own"):
                own = known.lm_head
                known.lm_product = own.product if isinstance(own, PackedLinear) else PackedProduct(known.lm_rows)
        heads.__dict__["_packed"] = known
    assert isinstance(known, MedusaHeads | EagleDraft | HydraHeads)
    return known
