"""What a step does between its passes, by the native engine's kernels: acceptance, and moving the cache.

Each is some microseconds in one call, where torch's operations are ten and more of ten microseconds each: at a few
milliseconds a step that shows.
"""

from __future__ import annotations

import torch

from mtp_bench.decode.accept import Acceptance
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.tree import TreeTensors
from mtp_bench.models.native.library import Accepted, Moved, Tree, library


def native_accept(tokens: torch.Tensor, choices: torch.Tensor, tree: TreeTensors) -> Acceptance:
    """See ``accept_greedy``."""
    batch, levels = len(tokens), tree.depth + 1
    accepted, row = torch.empty(2, batch, dtype=torch.int64)
    path, emitted = torch.empty(2, batch, levels, dtype=torch.int64)
    taken = torch.empty(batch, tree.rows, dtype=torch.uint8)
    # Named, so that none is freed before the call.
    shape = [part.contiguous() for part in (tree.parents, tree.depths, tree.real, tree.path_rows)]
    tokens, choices = tokens.contiguous(), choices.contiguous()
    library().mtp_accept(
        Tree(tree.rows, levels, tree.rows if len(tree.parents) > 1 else 0, *(part.data_ptr() for part in shape)),
        batch,
        tokens.data_ptr(),
        choices.data_ptr(),
        Accepted(*(part.data_ptr() for part in (accepted, row, path, emitted, taken))),
    )
    return Acceptance(accepted, row, path, emitted)


def native_move(cache: TreeCache, source: torch.Tensor, target: torch.Tensor) -> None:
    """See ``TreeCache.move``."""
    data, size = cache.data, cache.data.element_size()
    layers, _, batch, heads, _, width = data.shape
    source, target = source.contiguous(), target.contiguous()
    scratch = torch.empty(source.shape[1], width, dtype=data.dtype)
    library().mtp_move(
        Moved(
            data.data_ptr(), *(size * stride for stride in data.stride()[:5]),
            layers, batch, heads, size * width, source.shape[1],
            source.data_ptr(), target.data_ptr(), scratch.data_ptr(),
        )
    )  # fmt: skip
