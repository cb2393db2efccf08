"""Bytes and operations of a step against what can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_hydra import random_hydra
from tiny_models import SHAPES, random_eagle, random_heads, tiny_base

from mtp_bench.cost import DeviceLimits, StepWork
from mtp_bench.profile.accounting import measure_limits, step_work
from mtp_bench.topology import DynamicTree, StaticTree


def matrices(module: torch.nn.Module, but: tuple[str, ...] = ()) -> int:
    return sum(p.numel() for name, p in module.named_parameters() if not any(part in name for part in but))


@pytest.mark.parametrize("architecture", ["llama", "llama-tied"])
def test_plain_decoding_reads_each_weight_once(architecture: str) -> None:
    base = tiny_base(architecture)
    work = step_work(base, None, StaticTree(()), batch=3, context=100)
    # An embedding of its own is only looked up; a tied one is the LM head and read as a whole.
    weights = matrices(base.model, () if architecture == "llama-tied" else ("embed_tokens",))
    assert work.weight_bytes == 4 * weights
    assert work.cache_bytes == 3 * 100 * 2 * base.num_layers * base.num_kv_heads * base.head_dim * 4
    attention = 4 * base.num_layers * base.num_attention_heads * base.head_dim * 101 * 3
    assert work.flops == 2 * weights * 3 + attention


def test_drafts_are_added() -> None:
    base = tiny_base()
    tree = SHAPES["full-3-2-1"]
    plain = step_work(base, None, tree, batch=1, context=0).weight_bytes
    medusa = random_heads(base, "own")
    read = step_work(base, medusa, tree, batch=1, context=0).weight_bytes - plain
    each = medusa.block_weight.numel() + medusa.lm_rows.numel()
    assert read == 4 * each * tree.depth / medusa.num_heads, "only the heads that the tree needs"
    draft = random_eagle(base, "eagle3")
    read = step_work(base, draft, DynamicTree(3, 2, 4), batch=1, context=0).weight_bytes - plain
    assert read == 4 * (matrices(draft.fc) + 3 * (matrices(draft.layer) + draft.lm_rows.numel()))


def test_hydra_heads_are_added(tmp_path: Path) -> None:
    base = tiny_base()
    tree = SHAPES["full-3-2-1"]
    plain = step_work(base, None, tree, batch=2, context=0)
    heads = random_hydra(base, tmp_path)
    assert heads.prefix is not None
    with_heads = step_work(base, heads, tree, batch=2, context=0)
    rows, hidden, vocab = [1, 3, 6], base.hidden_size, base.vocab_size  # nodes that each of three heads expands
    # Wide linear and residual, a second block, the LM matrix; each with its bias.
    each = [2 * (hidden * (head + 2) + 1) * hidden + (hidden + 1) * (hidden + vocab) for head in range(3)]
    prefix = matrices(heads.prefix)
    assert prefix == 2 * (32 + 16) * 32 + 3 * 48 * 32 + 3 * 32
    assert with_heads.weight_bytes - plain.weight_bytes == 4 * (sum(each) + prefix)
    read = sum(count * one for count, one in zip(rows, each, strict=True))
    assert with_heads.flops - plain.flops == 2 * 2 * (read + prefix)


def test_shares() -> None:
    limits = DeviceLimits(copy_bytes_per_s=10e9, flops_per_s=1e12)
    work = StepWork(weight_bytes=80e6, cache_bytes=20e6, flops=5e9)
    assert work.floor_ms(limits) == pytest.approx(10.0)
    figures = work.figures(20.0, limits)
    assert figures["bytes_per_s"] == pytest.approx(5e9)
    assert figures["share_of_copy_bandwidth"] == pytest.approx(0.5)
    assert figures["share_of_floor"] == pytest.approx(0.5)
    assert StepWork(1e6, 0, 50e9).floor_ms(limits) == pytest.approx(50.0), "computing can be the limit too"


def test_limits_are_measured() -> None:
    limits = measure_limits(torch.device("cpu"), torch.float32)
    assert 1e8 < limits.copy_bytes_per_s < 1e13
    assert 1e8 < limits.flops_per_s < 1e16
