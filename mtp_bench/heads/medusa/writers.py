"""Writing Medusa heads in the two layouts that other programs read: "version 2" and vLLM's.

"version 2" holds residual blocks alone, so it refuses heads with LM matrices or a reduced vocabulary of their own.
vLLM's holds everything. This project's own facts (who trained the heads, on what) go into `config.json` under
`mtp_bench`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mtp_bench.errors import InputError
from mtp_bench.heads.medusa.heads import MedusaHeads
from mtp_bench.heads.writing import write_checkpoint


def save_version2(heads: MedusaHeads, path: Path, config: Mapping[str, Any]) -> None:
    """Write a folder with `medusa_lm_head.safetensors` and `config.json`.

    Args:
        heads: must use the base model's LM head whole.
        path: the folder.
        config: `base_model_name_or_path`, and own facts under `mtp_bench`.

    Raises:
        InputError: the heads hold something that this layout cannot, or the disk is full.
    """
    if heads.lm_head != "base":
        raise InputError(f'"version 2" cannot hold LM matrices; these heads have {heads.lm_head} ones', fix=_VLLM)
    if heads.token_map is not None:
        raise InputError('"version 2" cannot hold a reduced draft vocabulary (token_map)', fix=_VLLM)
    tensors = {}
    for i in range(heads.num_heads):
        for j in range(heads.num_layers):
            tensors[f"{i}.{j}.linear.weight"] = heads.block_weight[j, i]
            # Readers of this layout want a bias; zeros where there is none are the same function.
            zeros = torch.zeros_like(heads.block_weight[j, i, 0])
            tensors[f"{i}.{j}.linear.bias"] = zeros if heads.block_bias is None else heads.block_bias[j, i]
    own = {"medusa_num_heads": heads.num_heads, "medusa_num_layers": heads.num_layers, "version": "2"}
    write_checkpoint(Path(path), "medusa_lm_head.safetensors", tensors, own, config)


_VLLM = "write the vLLM layout instead"


def save_vllm(
    heads: MedusaHeads, path: Path, config: Mapping[str, Any], *, base_rows: Literal["store", "omit"] = "store"
) -> None:
    """Write a folder with `model.safetensors` and `config.json` in vLLM's layout.

    Args:
        heads: any; where they use the base model's LM head they must be attached to it.
        path: the folder.
        config: `base_model_name_or_path`, `vocab_size` (of the base; needed with a token map), and own facts under
            `mtp_bench`.
        base_rows: vLLM does not borrow the base model's LM head, so its rows are stored. "omit" leaves them out, for
            heads that only this program reads: the file is smaller, and the config names no architecture that vLLM
            would load without them.

    Raises:
        InputError: `vocab_size` is needed and not given, or the disk is full.
    """
    omit = heads.lm_head == "base" and base_rows == "omit"
    tensors = _vllm_blocks(heads)
    if heads.lm_head == "own":
        tensors |= {f"lm_heads.{i}.weight": rows for i, rows in enumerate(heads.lm_rows)}
    elif not omit:
        tensors["lm_heads.0.weight"] = heads.lm_rows
    if heads.token_map is not None:
        tensors["token_map"] = heads.token_map
    own = _vllm_config(heads, config, omit)
    extra = {"lm_head": "base"} if omit else {}
    write_checkpoint(Path(path), "model.safetensors", tensors, own, config, extra)


def _vllm_blocks(heads: MedusaHeads) -> dict[str, Tensor]:
    tensors = {}
    for i in range(heads.num_heads):
        for j in range(heads.num_layers):
            tensors[f"blocks.{i}.layers.{j}.weight"] = heads.block_weight[j, i]
            if heads.block_bias is not None:
                tensors[f"blocks.{i}.layers.{j}.bias"] = heads.block_bias[j, i]
    return tensors


def _vllm_config(heads: MedusaHeads, config: Mapping[str, Any], omit: bool) -> dict[str, Any]:
    vocab_size = config.get("vocab_size")
    if vocab_size is None:
        if heads.token_map is not None:
            raise InputError("the vLLM layout needs the base model's vocab_size beside a token map")
        vocab_size = heads.draft_vocab_size
    return {
        "architectures": ["MtpBenchMedusa" if omit else "MedusaModel"],
        "model_type": "mtp_bench_medusa" if omit else "medusa",
        "hidden_size": heads.hidden_size,
        "vocab_size": vocab_size,
        "num_heads": heads.num_heads,
        "num_hidden_layers": heads.num_layers,
        "truncated_vocab_size": heads.draft_vocab_size if heads.token_map is not None else None,
        "medusa_fc_bias": heads.block_bias is not None,
        "original_lm_head": heads.lm_head != "own",
    }
