"""FlexAttention behind its flag: the same text as plain greedy decoding, soft-capped attention included."""

from __future__ import annotations

import pytest
from tiny_decoding import decode
from tiny_models import plain_greedy, prompt_of, random_heads, random_tree, tiny_base

NEW_TOKENS = 8  # within one bucket of slots: every new shape is compiled anew


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma2"])
def test_text_equals_plain_greedy(architecture: str) -> None:
    base = tiny_base(architecture, "flex_attention")
    reference = tiny_base(architecture, "eager")
    prompts = [prompt_of(12, 1)]
    expected = [plain_greedy(reference, prompt, NEW_TOKENS) for prompt in prompts]
    generations = decode(base, random_heads(base), random_tree(1, max_nodes=20), prompts, new_tokens=NEW_TOKENS)
    assert [one.tokens for one in generations] == expected
