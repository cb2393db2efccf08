"""The cells of a cost sweep: calls to time, each a step's verification or its draft at one size, batch and context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from mtp_bench.cost import DRAFT, DYNAMIC_DRAFT, VERIFY, CostPoint
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Settled
from mtp_bench.decode.graph import stepper_type
from mtp_bench.decode.step import TreeStepper
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.environment import machine_name
from mtp_bench.topology import DynamicTree, StaticTree, Topology, chain
from mtp_bench.topology.shapes import typical_tree

DRAFT_TOP_K = 10


@dataclass
class Cell:
    """One thing to time. ``call`` runs it once; ``finite`` says whether its numbers are.

    Attributes:
        warm: whether it was run before, so that its next call is like all later ones.
    """

    point: CostPoint
    call: Callable[[], object]
    finite: Callable[[], bool]
    timings_ms: list[float] = field(default_factory=list)
    status: str = "ok"
    warm: bool = False

    @property
    def name(self) -> str:
        """What tells it from the others of a sweep."""
        point = self.point
        return f"{point.component} batch {point.batch} rows {point.rows} context {point.context} depth {point.depth}"


class CellMaker:
    """Makes the cells of one batch size, all on one cache; each is made once."""

    def __init__(
        self,
        base: BaseModel,
        heads: AnyHeads | None,
        *,
        batch: int,
        length: int,
        draft_top_k: int = DRAFT_TOP_K,
        seed: int = 0,
    ) -> None:
        """Args:
        length: slots of the cache: the largest context and the most rows together.
        draft_top_k: tokens taken per head.
        """
        self._base, self._heads, self._batch = base, heads, batch
        self._draft_top_k, self._seed = draft_top_k, seed
        self._cache = filled_cache(base, batch, length, seed)
        self._verify: dict[tuple[int, int], Cell] = {}

    def verify(self, rows: int, context: int) -> Cell:
        """Verification of a typical tree of so many rows."""
        if (rows, context) not in self._verify:
            depth = self._heads.max_depth if self._heads is not None else 4
            tree = typical_tree(rows - 1, depth=depth, top_k=max(self._draft_top_k, rows))
            self._verify[rows, context] = verify_cell(self._base, self._cache, tree, rows, context)
        return self._verify[rows, context]

    def drafts(
        self, contexts: Sequence[int], dynamic_top_ks: Sequence[int] = (), *, max_rows: int = 1
    ) -> Iterator[Cell]:
        """Drafts of every depth that the heads reach, of static trees and of dynamic ones with these top_k.

        Args:
            max_rows: of the trees that the costs are for; see :func:`draft_places`.
        """
        for depth, width in draft_places(self._heads, max_rows):
            tree = drafted_tree(depth, self._draft_top_k, width, self._heads)
            yield from draft_cells(self._base, self._heads, tree, self._cache, contexts, self._seed, width)
        for depth in range(1, self._heads.max_depth + 1 if self._heads is not None else 1):
            for top_k in dynamic_top_ks:
                dynamic = DynamicTree(depth, top_k, top_k)
                yield from draft_cells(self._base, self._heads, dynamic, self._cache, contexts, self._seed)


def draft_places(heads: AnyHeads | None, max_rows: int) -> list[tuple[int, int]]:
    """(depth, width) of the static drafts to measure; width = nodes expanded at every level after the root.

    Medusa heads run once whatever the tree, and one typical tree of each depth is drafted (width 0: any). An EAGLE
    layer runs over the expanded nodes of each level: 1, 2, 4, ... of them, up to the most that a level of a tree of
    ``max_rows`` rows can expand, since each has a child. At depth 1 only the root is expanded. One node per level (a
    chain) is measured at every depth, more at three depths: a pass takes about as long wherever it stands.
    """
    if heads is None:
        return []
    depths = range(1, heads.max_depth + 1)
    if not isinstance(heads, EagleDraft):
        return [(depth, 0) for depth in depths]
    widest = max(1, min((max_rows - 1) // 2, heads.draft_vocab_size))
    widths = sorted({*(2**power for power in range(widest.bit_length())), widest})
    wide = {2, (2 + heads.max_depth) // 2, heads.max_depth} - {1}
    return [(depth, width) for depth in depths for width in widths if width == 1 or depth in wide]


def drafted_tree(depth: int, top_k: int, width: int = 0, heads: AnyHeads | None = None) -> StaticTree:
    """What is drafted where the cost of drafting so deep, and ``width`` nodes wide, is measured.

    Args:
        top_k: ranks looked for at each level, as far as the draft vocabulary of ``heads`` reaches.
        width: nodes expanded at each level after the root; 0 = as a typical tree has it.
    """
    if not width:
        # The typical tree of so few nodes may not be so deep: the chain makes it.
        paths = {*typical_tree(4 * depth, depth=depth, top_k=top_k).paths, *chain(depth).paths}
        return StaticTree.from_paths(sorted(paths))
    last = min(top_k, heads.draft_vocab_size if isinstance(heads, EagleDraft) else top_k) - 1
    side_by_side = {(rank, *(0,) * level) for rank in range(width) for level in range(depth)}
    return StaticTree.from_paths(sorted(side_by_side | {(*(0,) * level, last) for level in range(depth)}))


def filled_cache(base: BaseModel, batch: int, length: int, seed: int) -> TreeCache:
    """A cache of random keys and values."""
    cache = TreeCache.allocate(base, batch=batch, length=length)
    torch.manual_seed(seed)
    for part in cache.parts:
        part.data.normal_(std=0.1)
    return cache


def verify_cell(base: BaseModel, cache: TreeCache, tree: StaticTree, rows: int, context: int) -> Cell:
    """All of a step of ``tree``, padded to ``rows``, but its draft."""
    batch = cache.batch
    tensors = TreeTensors.build(tree, base.device, rows=rows)
    stepper = stepper_type(base)(base, None, TreeTensors.build(StaticTree(()), base.device), cache)
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(0, base.vocab_size, (batch, rows), generator=generator).to(base.device)
    stepper.set_rows(tensors, tokens)

    @torch.inference_mode()
    def call() -> object:
        stepper.lengths.fill_(context)
        return stepper.advance(context)[0].tolist()

    @torch.inference_mode()
    def finite() -> bool:
        stepper.lengths.fill_(context)
        return bool(torch.isfinite(base.logits(stepper.verify(context).hidden)).all())

    return Cell(place_of(base, component=VERIFY, batch=batch, rows=rows, context=context), call, finite)


def draft_cells(
    base: BaseModel,
    heads: AnyHeads | None,
    tree: Topology,
    cache: TreeCache,
    contexts: Sequence[int],
    seed: int,
    width: int = 0,
) -> Iterator[Cell]:
    """Drafting ``tree`` after a step that settled two tokens, at every context, with one drafter.

    Args:
        width: of a static tree's levels, where it is measured for that.
    """
    batch = cache.batch
    stepper = stepper_type(base)(base, heads, TreeTensors.build(tree, base.device, batch=batch), cache)
    assert stepper.drafter is not None
    assert heads is not None
    generator = torch.Generator().manual_seed(seed)
    size = base.hidden_size * max(1, len(stepper.drafter.aux_layers))
    features = torch.randn(batch, tree.depth + 1, size, generator=generator).to(base.device, base.dtype)
    tokens = torch.randint(0, base.vocab_size, (batch, tree.depth + 1), generator=generator).to(base.device)

    def finite() -> bool:
        # Drafts are token ids, which hide a NaN; weights that hold one are what makes it.
        assert isinstance(heads, torch.nn.Module)
        return all(bool(torch.isfinite(parameter).all()) for parameter in heads.parameters())

    for context in contexts:
        starts = torch.full((batch,), context, device=base.device)
        settled = Settled(starts, tokens, features, torch.full_like(starts, 2), context)
        component, rows = (DYNAMIC_DRAFT, tree.top_k) if isinstance(tree, DynamicTree) else (DRAFT, width)
        point = place_of(base, component=component, batch=batch, rows=rows, context=context, depth=tree.depth)
        yield Cell(point, _drafting(stepper, settled), finite)


def _drafting(stepper: TreeStepper, settled: Settled) -> Callable[[], object]:
    @torch.inference_mode()
    def call() -> object:
        stepper.draft_again(settled)
        return None

    return call


def place_of(base: BaseModel, **place: object) -> CostPoint:
    """A point that is not measured yet: the machine, and where on the surface."""
    dtype = str(base.dtype).removeprefix("torch.")
    return CostPoint(device=machine_name(base), dtype=dtype, **place)  # type: ignore[arg-type]
