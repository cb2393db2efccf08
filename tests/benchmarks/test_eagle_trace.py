"""Recording an EAGLE trace in batched passes against recording it by decoding: ranks of the same positions and depths.

Run with ``pytest -n 0 -s tests/benchmarks/test_eagle_trace.py`` to see the figures. Both ways are timed in turn in one
process on the same text, so their ratio holds on a noisy machine; only the ranks are asserted.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from mtp_bench.cli.loading import load_base, load_heads
from mtp_bench.decode.answers import Answer
from mtp_bench.decode.cache import TreeCache
from mtp_bench.decode.draft import Settled
from mtp_bench.decode.eagle import StaticEagleDrafter
from mtp_bench.decode.generate import Decoder, Request
from mtp_bench.decode.prefill import prefill
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace
from mtp_bench.topology import StaticTree, chain

DEPTH, TOKENS, TOP_K = 4, 96, 10


@torch.inference_mode()
def record_by_decoding(base: BaseModel, draft: EagleDraft, answer: Answer) -> np.ndarray:
    """int16 [L, D]: base model and draft one step at a time along the text, as the steps of a chain are decoded."""
    text = answer.prompt + answer.tokens
    cache = TreeCache.allocate(base, batch=1, length=len(text) + 1)
    drafter = StaticEagleDrafter(draft, chain(DEPTH), 1, len(text) + 1)
    ranks = np.full((len(answer.tokens), DEPTH), -1, dtype=np.int16)
    _, features = prefill(base, cache, torch.tensor([answer.prompt]), aux_layers=draft.aux_layers)
    starts, tokens = 0, [*answer.prompt[1:], answer.tokens[0]]
    for row in range(len(answer.tokens) - 1):
        settled = Settled(torch.tensor([starts]), torch.tensor([tokens]), features, torch.tensor([len(tokens)]), starts)
        proposals: list[torch.Tensor] = []
        path = answer.tokens[row + 1 : row + 1 + DEPTH]
        # The true path in place of the drafted one: every level's ranks are those a trace holds.
        output = drafter._settle(drafter.cache, settled)
        length = starts + len(tokens)
        for depth, token in enumerate(path, start=1):
            proposals.append(draft.target_ids(draft.logits(output)[0, 0].argsort(descending=True, stable=True)[:TOP_K]))
            hit = (proposals[-1] == token).nonzero()
            ranks[row, depth - 1] = int(hit[0, 0]) if len(hit) else -1
            if depth < len(path):
                slots = torch.tensor([[length + depth - 1]])
                mask = torch.ones(1, 1, 1, length + depth, dtype=torch.bool)
                output = drafter.run(drafter.cache, torch.tensor([[token]]), draft.feedback(output), slots, slots, mask)
        position = len(answer.prompt) + row
        at = torch.tensor([[position]])
        cache.aim(at, position + 1)
        mask = torch.ones(1, 1, 1, position + 1, dtype=torch.bool)
        _, features = base.features(torch.tensor([[answer.tokens[row]]]), at, mask, cache, draft.aux_layers)
        starts, tokens = position, [answer.tokens[row + 1]]
    return ranks


def test_recording_in_batches_against_decoding() -> None:
    base = load_base("smollm2-135m", dtype="fp32", attention="sdpa")
    draft, _ = load_heads("smollm2-135m-eagle3", base, depth=DEPTH)
    assert isinstance(draft, EagleDraft)
    prompts = [[1 + (37 * i * (p + 1)) % 4000 for i in range(40)] for p in range(8)]
    decoder = Decoder(base, None, StaticTree(()), batch=8, max_length=40 + TOKENS)
    requests = [Request(str(index), prompt, TOKENS, ignore_eos=True) for index, prompt in enumerate(prompts)]
    answers = [Answer(g.request.key, "t", g.request.prompt, g.tokens, 0, "") for g in decoder.run(requests)]
    start = time.perf_counter()
    trace = record_trace(base, draft, answers, top_k=TOP_K)
    batched_s = (time.perf_counter() - start) / trace.num_positions
    start = time.perf_counter()
    live = record_by_decoding(base, draft, answers[0])
    live_s = (time.perf_counter() - start) / len(live)
    rows = trace.prompt_offsets[:2]
    assert np.array_equal(live, trace.ranks[rows[0] : rows[1]])
    print(
        f"\nper position: {1e3 * batched_s:.2f} ms in batches, {1e3 * live_s:.2f} ms by decoding: "
        f"{live_s / batched_s:.1f} times faster"
    )
