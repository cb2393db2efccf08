"""Tiny random base models, heads, trees and a toy tokenizer, and a model whose greedy text is known in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

from mtp_bench.heads.eagle.draft import EagleConfig, EagleDraft, parameter_shapes
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.models import attention
from mtp_bench.models.base import BaseModel
from mtp_bench.topology import StaticTree

VOCAB = 24
WINDOW = 12
DEPTH = 4
TOP_K = 10

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# Of an EAGLE-3 draft, one at a time.
SWITCHES: list[dict[str, bool]] = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"own_embedding": True},
    {"qkv_bias": True},
]
# Heads and hidden states as wide as the native engine takes them; the inner ones fill no whole number of its panels.
WIDE = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 112}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "mistral-window": {"model_type": "mistral", "sliding_window": WINDOW},
    # Narrower than a tree is deep.
    "mistral-narrow": {"model_type": "mistral", "sliding_window": 3},
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": WINDOW,
        "layer_types": _MIXED,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "query_pre_attn_scalar": 8,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": WINDOW,
        "layer_types": _MIXED,
        "query_pre_attn_scalar": 8,
        "tie_word_embeddings": True,
    },
}
# Soft-capped attention has no fused kernel.
CASES = [
    *[(name, attention.NAME) for name in ARCHITECTURES if name != "gemma2"],
    ("llama", "sdpa"),
    ("llama", "eager"),
    ("mistral-window", "sdpa"),
    ("mistral-window", "eager"),
    ("gemma2", "eager"),
    ("gemma3", "eager"),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from a second thread, and two that wait for each other crawl on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_base(
    architecture: str = "llama", kernel: str = attention.NAME, tokenizer: Any = None, **sizes: int
) -> BaseModel:
    """A random fp32 model of the named architecture; ``sizes`` instead of its own."""
    config = AutoConfig.for_model(**{**_SMALL, **ARCHITECTURES[architecture], **sizes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=kernel)
    model.generation_config.eos_token_id = None
    return BaseModel(architecture, "dummy", model.eval().requires_grad_(False), tokenizer, f"{architecture}-seed0")


def save_tiny_model(base: BaseModel, folder: Path) -> Path:
    """A model folder as people have it, with a tiny word-level tokenizer (w0, w1, ...)."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    base.model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(base.vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def random_heads(base: BaseModel, kind: str = "own", *, num_heads: int = DEPTH, seed: int = 0) -> MedusaHeads:
    """Random Medusa heads; ``kind``: own, shared, base, or map (a shared matrix over a draft vocabulary)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    hidden, vocab = base.hidden_size, base.vocab_size
    lm_head = {"map": "shared"}.get(kind, kind)
    token_map = None
    if kind == "map":
        token_map = torch.randperm(vocab, generator=generator)[: vocab - 4].sort().values
    rows = vocab if token_map is None else len(token_map)
    lm_weight = {"own": (num_heads, rows, hidden), "shared": (rows, hidden), "base": None}[lm_head]
    heads = MedusaHeads(
        normal(1, num_heads, hidden, hidden) * 0.3,
        normal(1, num_heads, hidden) * 0.3,
        lm_head=lm_head,  # type: ignore[arg-type]
        lm_weight=None if lm_weight is None else normal(*lm_weight),
        token_map=token_map,
    )
    heads.attach(base.lm_head_weight.detach())
    return heads.requires_grad_(False)


def random_eagle(base: BaseModel, variant: str = "eagle3", *, seed: int = 0, **switches: Any) -> EagleDraft:
    """A random draft layer of the base's sizes; eagle3 over a draft vocabulary of four tokens fewer."""
    generator = torch.Generator().manual_seed(seed)
    token_map = torch.randperm(base.vocab_size, generator=generator)[: base.vocab_size - 4].sort().values
    eagle3 = variant == "eagle3"
    parts: dict[str, Any] = {"fc_bias": True}
    if eagle3:
        parts = {"aux_layers": (0, 1, 2), "own_lm_head": True, "final_norm": True, "draft_vocab_size": len(token_map)}
    config = EagleConfig(
        variant=variant,  # type: ignore[arg-type]
        hidden_size=base.hidden_size,
        target_hidden_size=base.hidden_size,
        intermediate_size=48,
        num_heads=4,
        num_kv_heads=2,
        head_dim=base.head_dim,
        vocab_size=base.vocab_size,
        **(parts | switches),
    )
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 1.0)
        for name, shape in parameter_shapes(config).items()
    }
    if eagle3:
        tensors["token_map"] = token_map
    draft = EagleDraft(config, tensors)
    draft.attach(base.embedding_weight, base.lm_head_weight)
    draft.max_depth = DEPTH
    return draft.requires_grad_(False)


def random_tree(seed: int, *, max_nodes: int = 63, depth: int = DEPTH, top_k: int = TOP_K) -> StaticTree:
    """A random prefix-closed tree, with gaps among sibling ranks."""
    draw = np.random.default_rng(seed)
    wanted = int(draw.integers(2, max_nodes + 1))
    paths: list[tuple[int, ...]] = []
    while len(paths) < wanted:
        parents = [(), *[path for path in paths if len(path) < depth]]
        path = (*parents[int(draw.integers(len(parents)))], int(draw.integers(top_k)))
        if path not in paths:
            paths.append(path)
    return StaticTree.from_paths(paths)


SHAPES = {
    "single": StaticTree.from_paths([(0,)]),
    "star": StaticTree.from_paths([(rank,) for rank in range(4)]),
    "chain": StaticTree.from_paths([(0,) * depth for depth in range(1, DEPTH + 1)]),
    "gap": StaticTree.from_paths([(3,), (7,), (3, 5), (7, 0), (7, 9), (3, 5, 1)]),
    "full-3-2-1": StaticTree.from_paths(
        [(a,) for a in range(3)]
        + [(a, b) for a in range(3) for b in range(2)]
        + [(a, b, 0) for a in range(3) for b in range(2)]
    ),
    **{f"random-{seed}": random_tree(seed) for seed in range(6)},
    "random-63": StaticTree.from_paths(random_tree(99, max_nodes=120).paths[:63]),
}


def prompt_of(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """Random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, length)]


def plain_greedy(base: BaseModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    """What Hugging Face ``generate`` gives greedily."""
    tokens = torch.tensor([prompt], device=base.device)
    with base.stock_attention(), torch.inference_mode():
        output = base.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return [int(token) for token in output[0, len(prompt) :]]


def stock_cache(base: BaseModel, text: list[int]) -> torch.Tensor:
    """Keys and values [layers, 2, K, len(text), d] that the stock forward pass computes for ``text``."""
    # Without a config every layer keeps all its tokens, sliding ones too.
    cache = DynamicCache()
    tokens = torch.tensor([text], device=base.device)
    with base.stock_attention(), torch.inference_mode():
        base.hidden_states(tokens, torch.arange(len(text))[None], None, cache)
    return torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])


class ToyTokenizer:
    """One token per character; the template is a line per message."""

    chat_template: str | None = "toy"
    eos_token_id = None

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab = vocab

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{turn['role'][0]}:{turn['content']}|" for turn in turns)

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) * 7 % self.vocab for letter in text]}

    def decode(self, tokens: list[int], **options: Any) -> str:
        return "".join(chr(ord("a") + token) for token in tokens)


ONEHOT = 16


def onehot_base(successor: list[int] | None = None, tokenizer: Any = None) -> BaseModel:
    """A real LLaMA whose blocks are the identity, so that greedy decoding is ``token -> successor[token]``."""
    successor = successor or [(token + 1) % ONEHOT for token in range(ONEHOT)]
    config = AutoConfig.for_model(
        **{**_SMALL, "model_type": "llama", "vocab_size": ONEHOT, "hidden_size": ONEHOT, "head_dim": 4}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention.NAME)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(ONEHOT))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[successor, torch.arange(ONEHOT)] = 1.0
    model.generation_config.eos_token_id = None
    return BaseModel("onehot", "dummy", model.eval().requires_grad_(False), tokenizer, "onehot")


def onehot_heads(
    num_heads: int = 3,
    *,
    shift: int = 0,
    good: tuple[int, ...] = tuple(range(ONEHOT)),
    successor: list[int] | None = None,
) -> MedusaHeads:
    """Heads for ``onehot_base``: right at current tokens in ``good``, wrong at the others.

    Rank 1 is always a fixed wrong token; ``shift`` -1 makes head k say what head k - 1 should.
    """
    successor = successor or [(token + 1) % ONEHOT for token in range(ONEHOT)]
    weight = torch.zeros(num_heads, ONEHOT, ONEHOT)
    for head in range(num_heads):
        for token in range(ONEHOT):
            target = token
            for _ in range(head + 2 + shift):
                target = successor[target]
            first = target if token in good else (target + 5) % ONEHOT
            weight[head, first, token] = 1.0
            weight[head, (target + 2) % ONEHOT, token] = 0.5
    blocks = torch.zeros(1, num_heads, ONEHOT, ONEHOT)
    return MedusaHeads(blocks, None, lm_head="own", lm_weight=weight).requires_grad_(False)
