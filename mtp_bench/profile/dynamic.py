"""What dynamic trees would hold, for every position of a known text at once.

A dynamic tree depends on the draft's confidence, so ranks along the true path do not tell what is in it. Here the pool
of every position is drafted as live decoding would, all positions of a text as one batch over the keys of one pass, and
the places of the true path's nodes are kept: they replay every smaller number of nodes and levels exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mtp_bench.decode.answers import Answer
from mtp_bench.decode.dynamic import Pool, expand
from mtp_bench.decode.teacher import ForcedPass, root_rows
from mtp_bench.heads.eagle.draft import EagleDraft

Places = npt.NDArray[np.int16]
ROWS_PER_PASS = 1024
MISS = -1


def dynamic_places(
    draft: EagleDraft, forced: ForcedPass, place: int, answer: Answer, top_ks: Sequence[int]
) -> dict[int, Places]:
    """Places int16 [L, D, D] by top_k of one answer's positions (see ``RankTrace.pools``), D = ``draft.max_depth``.

    Args:
        forced: a pass that holds the answer's text, in row ``place``.
    """
    length = len(answer.prompt) + len(answer.tokens) - 1
    prefix = _Prefix(draft, forced.following[place : place + 1, :length], forced.features[place : place + 1, :length])
    starts = torch.arange(length, device=forced.following.device)[root_rows(answer)]
    places = {}
    for top_k in top_ks:
        size = max(1, ROWS_PER_PASS // top_k)
        pieces = [_places(draft, prefix, piece, answer, top_k) for piece in torch.split(starts, size)]
        places[top_k] = torch.cat(pieces).to(torch.int16).cpu().numpy()
    return places


def _places(draft: EagleDraft, prefix: _Prefix, starts: torch.Tensor, answer: Answer, top_k: int) -> torch.Tensor:
    depth = draft.max_depth
    pool = expand(draft, prefix.output[0, starts][:, None], depth, top_k, prefix.runner(starts))
    text = torch.tensor(answer.prompt + answer.tokens + [MISS] * (depth + 1), device=starts.device)
    # The root of a step from slot s is token s + 1; the path goes on from token s + 2.
    path = text[starts[:, None] + 2 + torch.arange(depth, device=starts.device)]
    return true_path_places(pool, path)


def true_path_places(pool: Pool, path: torch.Tensor) -> torch.Tensor:
    """Where the nodes of known paths stand in their pools.

    Args:
        path: int64 [b, D], the true tokens, -1 past the end of a text.

    Returns:
        int64 [b, D, D]: entry [d - 1, j - 1] is the place of the path's node at depth j among the nodes of the first d
        levels, most probable first; -1 where they lack it.
    """
    batch, depth = path.shape
    node = torch.full((batch,), -1, dtype=torch.int64, device=path.device)
    alive = torch.ones(batch, dtype=torch.bool, device=path.device)
    places = torch.full((batch, depth, depth), MISS, dtype=torch.int64, device=path.device)
    order = torch.arange(pool.tokens.shape[1], device=path.device)
    for j in range(depth):
        here = (pool.levels == j + 1) & (pool.parents == node[:, None]) & (pool.tokens == path[:, j : j + 1])
        alive = alive & here.any(-1)
        node = here.int().argmax(-1)
        score = pool.scores.gather(1, node[:, None])
        better = (pool.scores > score) | ((pool.scores == score) & (order < node[:, None]))
        for d in range(j, depth):
            rank = (better & (pool.levels <= d + 1)).sum(-1)
            places[:, d, j] = torch.where(alive, rank, MISS)
    return places


class _Prefix:
    """One pass of the draft over a whole text, and passes over drafted nodes behind any of its positions."""

    def __init__(self, draft: EagleDraft, following: torch.Tensor, features: torch.Tensor) -> None:
        self._draft = draft
        length = following.shape[1]
        # Drafted nodes lie up to max_depth positions behind the text.
        self._rotary = draft.rotary(length + draft.max_depth)
        self._causal = torch.ones(length, length, dtype=torch.bool, device=following.device).tril()
        rotary = self._rotary[0][:length], self._rotary[1][:length]
        self.output: torch.Tensor = draft(following, draft.fuse(features), rotary, self._settle)

    def _settle(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self._keys, self._values = key[0], value[0]
        return _attention(query, key, value, self._causal[None])

    def runner(self, starts: torch.Tensor) -> _Runner:
        """Passes behind the slots ``starts`` int64 [b], each of which sees the text up to itself."""
        return _Runner(self._draft, self._rotary, self._keys, self._values, self._causal[starts], starts)


class _Runner:
    """The ``Run`` of ``expand``: keys of the text are shared by all b starts, drafted ones are each start's own."""

    def __init__(
        self,
        draft: EagleDraft,
        rotary: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        sees_text: torch.Tensor,
        starts: torch.Tensor,
    ) -> None:
        self._draft, self._rotary, self._starts = draft, rotary, starts
        self._keys, self._values, self._sees_text = keys, values, sees_text
        self._own_keys: list[torch.Tensor] = []
        self._own_values: list[torch.Tensor] = []

    def __call__(
        self, tokens: torch.Tensor, hidden: torch.Tensor, level: int, first: int, sees: torch.Tensor
    ) -> torch.Tensor:
        positions = (self._starts + level)[:, None].expand_as(tokens)
        mask = torch.cat([self._sees_text[:, None].expand(-1, tokens.shape[1], -1), sees], dim=-1)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self._own_keys.append(key)
            self._own_values.append(value)
            batch = len(query)
            keys = torch.cat([self._keys.expand(batch, -1, -1, -1), *self._own_keys], dim=2)
            values = torch.cat([self._values.expand(batch, -1, -1, -1), *self._own_values], dim=2)
            return _attention(query, keys, values, mask)

        rotary = self._rotary[0][positions], self._rotary[1][positions]
        output: torch.Tensor = self._draft(tokens, hidden, rotary, attend)
        return output


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[b, A, R, d] over [b, K, S, d] with bool masks [b, R, S]: [b, R, A, d]."""
    batch, heads, rows, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)
    repeated = mask.repeat(1, heads // key.shape[1], 1)[:, None]
    output = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=repeated)
    return output.reshape(batch, heads, rows, width).transpose(1, 2)
