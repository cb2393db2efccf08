"""Small Medusa checkpoints in every published layout, written name by name as the layouts' own tools write them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from mtp_bench.heads.base import BaseFacts

H, V, N, L = 8, 20, 3, 2
NAME = "lmsys/vicuna-7b-v1.3"


def base_facts(hidden: int = H, vocab: int = V, name: str = NAME, **more) -> BaseFacts:
    return BaseFacts(hidden, vocab, name, lm_head_weight=base_lm_head, **more)


def base_lm_head() -> torch.Tensor:
    return torch.randn(V, H, generator=torch.Generator().manual_seed(99))


def blocks(n: int = N, layers: int = L) -> dict[str, torch.Tensor]:
    """{i}.{j}.linear.weight/.bias"""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for i in range(n):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = torch.randn(H, H, generator=generator)
            tensors[f"{i}.{j}.linear.bias"] = torch.randn(H, generator=generator)
    return tensors


def v01(n: int = N, layers: int = L) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return blocks(n, layers) | {f"{i}.{layers}.weight": torch.randn(V, H, generator=generator) for i in range(n)}


def vllm(n: int = N, layers: int = L) -> dict[str, torch.Tensor]:
    """The same heads under vLLM's names."""
    renamed = {}
    for name, tensor in v01(n, layers).items():
        i, j, *rest = name.split(".")
        renamed[f"blocks.{i}.layers.{j}.{rest[1]}" if rest[0] == "linear" else f"lm_heads.{i}.weight"] = tensor
    return renamed


def write_pt(folder: Path, tensors, config=None, name: str = "medusa_lm_head.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / name)
    return write_config(folder, config)


def write_safetensors(folder: Path, tensors, config=None, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / name)
    return write_config(folder, config)


def write_config(folder: Path, config) -> Path:
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def v01_config(n: int = N, layers: int = L) -> dict:
    return {"base_model_name_or_path": NAME, "medusa_num_heads": n, "medusa_num_layers": layers}


def vllm_config(**more) -> dict:
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": H,
        "vocab_size": V,
        "num_heads": N,
        "num_hidden_layers": L,
        "truncated_vocab_size": None,
    }
    return config | more


def whole_model_tensors() -> dict[str, torch.Tensor]:
    tensors = {f"medusa_head.{name}": tensor for name, tensor in v01().items()}
    tensors["model.embed_tokens.weight"] = torch.zeros(V, H)
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(H, H)
    tensors["lm_head.weight"] = base_lm_head()
    return tensors


def oracle_logits(x: torch.Tensor, i: int, tensors=None, lm=None, layers: int = L) -> torch.Tensor:
    """Head i at x, straight from the v0.1 tensors."""
    tensors = v01() if tensors is None else tensors
    for j in range(layers):
        z = x @ tensors[f"{i}.{j}.linear.weight"].T + tensors[f"{i}.{j}.linear.bias"]
        x = x + z * torch.sigmoid(z)
    return x @ (tensors[f"{i}.{layers}.weight"] if lm is None else lm).T
