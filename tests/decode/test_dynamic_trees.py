"""Dynamic trees: the selection equals a straightforward one, decoding is lossless, and replay equals live decoding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoding import NEW_TOKENS, NO_TREE, PROMPTS, answers_of, decode
from tiny_models import TOP_K, plain_greedy, prompt_of, random_eagle, random_heads, tiny_base

from mtp_bench.decode.dynamic import Pool, expand, select
from mtp_bench.errors import InputError
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.profile.dynamic import true_path_places
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import DynamicTree
from mtp_bench.trace import RankTrace, accepted_lengths, replay

TREES = [
    DynamicTree(1, 3, 2),
    DynamicTree(2, 2, 6),
    DynamicTree(3, 4, 12),
    DynamicTree(4, 3, 8),
    DynamicTree(2, 14, 120),
]
VOCAB = 11


class FakeDraft(EagleDraft):
    """A draft whose logits depend on the path alone: hidden states are hashes of the tokens so far."""

    def __init__(self, seed: int) -> None:
        torch.nn.Module.__init__(self)
        self.seed = seed
        self.token_map = None
        self.lm_best = None

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        flat = output.reshape(-1).tolist()
        rows = [np.random.default_rng([self.seed, int(code)]).integers(0, 6, VOCAB) for code in flat]
        return torch.tensor(np.stack(rows), dtype=torch.float32).view(*output.shape[:-1], VOCAB)

    def feedback(self, output: torch.Tensor) -> torch.Tensor:
        return output


def run_fake(tokens: torch.Tensor, hidden: torch.Tensor, level: int, first: int, sees: torch.Tensor) -> torch.Tensor:
    assert sees.shape[-2:] == (tokens.shape[1], first + tokens.shape[1])
    return hidden * 13 + tokens[..., None] + 1


def straightforward(seed: int, root: int, tree: DynamicTree) -> dict[tuple[int, ...], float]:
    """Token paths that EAGLE-2 keeps, with their log-probabilities, by plain loops."""

    def children(code: int) -> list[tuple[int, float]]:
        logits = np.random.default_rng([seed, code]).integers(0, 6, VOCAB)
        shares = logits - math.log(sum(math.exp(value) for value in logits))
        order = sorted(range(VOCAB), key=lambda token: (-logits[token], token))[: tree.top_k]
        return [(token, float(shares[token])) for token in order]

    pool: list[tuple[tuple[int, ...], float, int]] = []
    beams: list[tuple[tuple[int, ...], float, int]] = [((), 0.0, root)]
    for _ in range(tree.depth):
        level = []
        for path, score, code in beams:
            level += [((*path, token), score + share, code * 13 + token + 1) for token, share in children(code)]
        pool += level
        order = sorted(range(len(level)), key=lambda i: (-round(level[i][1], 4), i))[: tree.top_k]
        beams = [level[i] for i in order]
    order = sorted(range(len(pool)), key=lambda i: (-round(pool[i][1], 4), i))[: tree.num_nodes]
    return {pool[i][0]: pool[i][1] for i in order}


def drafted_paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 60))
def test_selection_equals_a_straightforward_one(seed: int, depth: int, top_k: int, num_nodes: int) -> None:
    tree = DynamicTree(depth, top_k, min(num_nodes, top_k + (depth - 1) * top_k**2))
    roots = [5, 7]
    output = torch.tensor(roots, dtype=torch.float64).view(2, 1, 1)
    pool = expand(FakeDraft(seed), output, depth, top_k, run_fake)
    assert pool.tokens.shape == (2, tree.pool_size)
    # Scores that differ by rounding alone are ties to the loops above.
    drafted = select(pool._replace(scores=(pool.scores * 1e4).round()), tree)
    assert drafted.tree is not None
    for place, root in enumerate(roots):
        paths = drafted_paths(drafted.tokens[place].tolist(), drafted.tree.parents[place].tolist())
        expected = straightforward(seed, root, tree)
        kept = sorted(round(expected[path], 3) if path in expected else None for path in paths)  # type: ignore[type-var]
        assert kept == sorted(round(score, 3) for score in expected.values())
        assert len(set(paths)) == tree.num_nodes


def test_the_shape_of_a_kept_tree() -> None:
    """Parents, depths, ancestors and path rows agree with each other."""
    pool = expand(FakeDraft(3), torch.ones(1, 1, 1, dtype=torch.float64), 3, 3, run_fake)
    tree = select(pool, DynamicTree(3, 3, 12)).tree
    assert tree is not None
    parents, depths = tree.parents[0].tolist(), tree.depths[0].tolist()
    for row in range(1, 13):
        line = [row]
        while line[-1]:
            line.append(parents[line[-1]])
        assert parents[row] < row
        assert depths[row] == len(line) - 1 == depths[parents[row]] + 1
        assert sorted(line) == tree.ancestors[0, row].nonzero()[:, 0].tolist()
        assert tree.path_rows[0, row].tolist() == line[::-1] + [row] * (3 - depths[row])


def test_places_of_a_path_in_its_pool() -> None:
    pool = Pool(
        tokens=torch.tensor([[4, 5, 4, 6, 4, 7]]),
        scores=torch.tensor([[-0.5, -1.0, -0.9, -1.0, -1.5, -2.0]]),
        parents=torch.tensor([[-1, -1, 0, 0, 1, 1]]),
        levels=torch.tensor([1, 1, 2, 2, 2, 2]),
    )
    # Path 5, 4: node 1 (score -1) and node 4 (-1.5). Node 3 has node 1's score and stands behind it.
    places = true_path_places(pool, torch.tensor([[5, 4]]))
    assert places[0].tolist() == [[1, -1], [2, 4]]
    assert true_path_places(pool, torch.tensor([[9, 4]]))[0].tolist() == [[-1, -1], [-1, -1]]
    assert true_path_places(pool, torch.tensor([[4, 9]]))[0].tolist() == [[0, -1], [0, -1]]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mistral-window", "gemma3"])
@pytest.mark.parametrize("variant", ["eagle", "eagle3"])
def test_lossless_and_replay_equals_live(architecture: str, variant: str) -> None:
    base = tiny_base(architecture)
    draft = random_eagle(base, variant)
    expected = [plain_greedy(base, prompt, NEW_TOKENS) for prompt in PROMPTS]
    plain = decode(base, None, NO_TREE)
    trace = record_trace(base, draft, answers_of(plain), top_k=TOP_K, dynamic_top_ks=(2, 3, 4, 14))
    accepted = 0
    for tree in TREES:
        live = decode(base, draft, tree)
        assert [g.tokens for g in live] == expected, tree
        assert [g.steps for g in live] == replay(trace, tree).steps.tolist(), tree
        accepted += sum(sum(g.accepted) for g in live)
    assert accepted > 10, "a test where nothing is accepted shows nothing"


def test_batches_decode_as_single_requests_do() -> None:
    base = tiny_base()
    draft = random_eagle(base)
    prompts = [prompt_of(length, seed) for seed, length in enumerate((5, 19, 3, 11, 8))]
    alone = decode(base, draft, TREES[2], prompts)
    for rows in (None, 20):
        together = decode(base, draft, TREES[2], prompts, batch=3, rows=rows)
        assert [g.tokens for g in together] == [g.tokens for g in alone]
        assert [g.accepted for g in together] == [g.accepted for g in alone]


def test_more_nodes_and_levels_of_a_trace_accept_no_less() -> None:
    base = tiny_base()
    trace = record_trace(
        base, random_eagle(base), answers_of(decode(base, None, NO_TREE)), top_k=TOP_K, dynamic_top_ks=(4,)
    )
    before = np.zeros(trace.num_positions)
    for nodes in range(1, 53):
        now = accepted_lengths(trace, DynamicTree(4, 4, nodes))
        assert (now >= before).all()
        before = now


def test_what_was_not_recorded_is_refused(tmp_path) -> None:
    base = tiny_base()
    answers = answers_of(decode(base, None, NO_TREE))
    trace = record_trace(base, random_eagle(base), answers, top_k=TOP_K, dynamic_top_ks=(2,))
    with pytest.raises(InputError, match="dynamic trees recorded: top_k 2 to depth 4"):
        replay(trace, DynamicTree(3, 3, 3))
    with pytest.raises(InputError, match="to depth 4"):
        replay(trace, DynamicTree(5, 2, 3))
    trace.save(tmp_path / "trace.npz")
    again = RankTrace.load(tmp_path / "trace.npz")
    assert again.digest == trace.digest
    assert np.array_equal(again.pools[2], trace.pools[2])
    assert np.array_equal(again.select([1]).pools[2], trace.pools[2][trace.prompt_offsets[1] :])


def test_heads_that_cannot_draft_it_are_refused() -> None:
    base = tiny_base()
    with pytest.raises(InputError, match="Medusa and Hydra heads cannot draft"):
        decode(base, random_heads(base), TREES[0])
    with pytest.raises(InputError, match="21 ranks are needed, the draft vocabulary has 20 tokens"):
        decode(base, random_eagle(base), DynamicTree(2, 21, 5))
    with pytest.raises(InputError, match="5 deep, the heads draft only 4"):
        decode(base, random_eagle(base), DynamicTree(5, 2, 5))
