"""Random Hydra heads as files made to the authors' layouts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaModel

from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.hydra.heads import HydraHeads
from mtp_bench.heads.load import load_heads
from mtp_bench.models.base import BaseModel

HEADS, LAYERS = 4, 2
PREFIX = "prefix_embeding_layer."


def names_of(kind: str) -> tuple[list[str], str]:
    """Where a head's blocks are, and its LM matrix: dropout shifts both in the prefix kind."""
    return (["0", "1"], "") if kind == "mlp" else (["1", "3"], ".1")


def hydra_tensors(base: BaseModel, kind: str = "mlp", seed: int = 4) -> dict[str, torch.Tensor]:
    """A state dict of ``kind``, as the authors' module for ``base`` saves it."""
    generator = torch.Generator().manual_seed(seed)
    hidden, vocab = base.hidden_size, base.vocab_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    places, lm = names_of(kind)
    tensors = {"input_embed_fn.weight": base.embedding_weight.detach().clone()}
    for i in range(HEADS):
        for j, place in enumerate(places):
            tensors[f"hydra_mlp.{i}.{place}.linear.weight"] = normal(hidden, (i + 2) * hidden if j == 0 else hidden)
            tensors[f"hydra_mlp.{i}.{place}.linear.bias"] = normal(hidden)
        tensors[f"hydra_mlp.{i}.{places[0]}.res_connection.weight"] = normal(hidden, (i + 2) * hidden)
        tensors[f"hydra_mlp.{i}.{places[0]}.res_connection.bias"] = normal(hidden)
        tensors[f"hydra_lm_head.{i}{lm}.weight"] = normal(vocab, hidden)
        tensors[f"hydra_lm_head.{i}{lm}.bias"] = normal(vocab)
    if kind == "prefix-mlp":
        for name, tensor in prefix_model(base).state_dict().items():
            tensors[PREFIX + name] = 1 + normal(*tensor.shape) if "norm" in name else normal(*tensor.shape)
        tensors[PREFIX + "layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(base.head_dim // 2)
    return tensors


def prefix_model(base: BaseModel, tensors: dict[str, torch.Tensor] | None = None) -> LlamaModel:
    """transformers' own one-layer LLaMA of the base's config: what the authors' prefix layer is."""
    config = LlamaConfig.from_dict(base.config.to_dict() | {"num_hidden_layers": 1, "layer_types": None})
    config._attn_implementation = "eager"
    model = LlamaModel(config).eval()
    if tensors is not None:
        stored = {name.removeprefix(PREFIX): one for name, one in tensors.items() if name.startswith(PREFIX)}
        model.load_state_dict({name: one for name, one in stored.items() if "inv_freq" not in name}, strict=True)
    return model


def write_hydra(folder: Path, tensors: dict[str, torch.Tensor], kind: str = "mlp", **config: object) -> Path:
    """A folder as it is published."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "hydra_lm_head.pt")
    facts = {"hydra_num_heads": HEADS, "hydra_num_layers": LAYERS, "hydra_head_arch": kind, "grounded_heads": True}
    (folder / "config.json").write_text(json.dumps(facts | config))
    return folder


def facts_of(base: BaseModel) -> BaseFacts:
    return BaseFacts(
        base.hidden_size, base.vocab_size, base.name, lambda: base.lm_head_weight, lambda: base.embedding_weight,
        num_layers=base.num_layers, config=base.config.to_dict(),
    )  # fmt: skip


def load_hydra(folder: Path, base: BaseModel) -> HydraHeads:
    heads = load_heads(folder, base=facts_of(base)).heads
    assert isinstance(heads, HydraHeads)
    return heads


def random_hydra(base: BaseModel, folder: Path, kind: str = "prefix-mlp", **config: object) -> HydraHeads:
    """Random heads, through files in ``folder``."""
    return load_hydra(write_hydra(folder, hydra_tensors(base, kind), kind, **config), base)
