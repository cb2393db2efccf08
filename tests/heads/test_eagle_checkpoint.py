"""EAGLE drafts from files made to the published key lists; round trips; and every wrong file refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoding import NO_TREE, answers_of, decode
from tiny_models import TOP_K, VOCAB, random_eagle, tiny_base

from mtp_bench.errors import InputError
from mtp_bench.heads.base import BaseFacts
from mtp_bench.heads.detect import detect
from mtp_bench.heads.eagle.checkpoint import save_eagle
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.eagle.layouts import aux_layers_of, make_eagle_plan, rope_parameters
from mtp_bench.heads.inspection import describe, inspect_path
from mtp_bench.heads.load import load_heads
from mtp_bench.heads.tensors import Entry
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.record import record_trace

HIDDEN, HEADS, KV, DIM, WIDE, DRAFT_VOCAB = 32, 4, 2, 8, 48, 20
LAYER = {
    "num_hidden_layers": 1, "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "rms_norm_eps": 1e-5, "vocab_size": VOCAB, "max_position_embeddings": 2048,
}  # fmt: skip


def facts(base: BaseModel) -> BaseFacts:
    return BaseFacts(
        base.hidden_size, base.vocab_size, base.name, lambda: base.lm_head_weight, lambda: base.embedding_weight,
        num_layers=base.num_layers, weights_hash=base.sha256,
    )  # fmt: skip


def layer_shapes(prefix: str, width: int, norms: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HEADS * DIM, width),
        "self_attn.k_proj.weight": (KV * DIM, width),
        "self_attn.v_proj.weight": (KV * DIM, width),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        "mlp.gate_proj.weight": (WIDE, HIDDEN),
        "mlp.up_proj.weight": (WIDE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, WIDE),
        **{f"{norm}.weight": (HIDDEN,) for norm in norms},
    }
    return {prefix + name: shape for name, shape in shapes.items()}


EAGLE1 = {
    "embed_tokens.weight": (VOCAB, HIDDEN),
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    "fc.bias": (HIDDEN,),
    **layer_shapes("layers.0.", HIDDEN, ("post_attention_layernorm",)),
}
NORMS3 = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
EAGLE3 = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    **layer_shapes("midlayer.", 2 * HIDDEN, NORMS3),
    "norm.weight": (HIDDEN,),
    "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
}
SPECULATORS3 = {name.replace("midlayer.", "layers.0."): shape for name, shape in EAGLE3.items()}
SPECULATORS1 = {
    "fusion_fc.weight": (HIDDEN, 2 * HIDDEN),
    "fusion_fc.bias": (HIDDEN,),
    **layer_shapes("transformer.", HIDDEN, ("input_layernorm", "post_attention_layernorm")),
    "embedding_layernorm.weight": (HIDDEN,),
    "pre_lm_head_layernorm.weight": (HIDDEN,),
}
OFFICIAL3 = {**LAYER, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "draft_vocab_size": DRAFT_VOCAB}


def random_tensors(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: (torch.randn(shape, generator=generator) * 0.3).to(dtype) for name, shape in shapes.items()}


def with_vocabulary(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.arange(DRAFT_VOCAB) + 3
    mask = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return {**tensors, "d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": mask}


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], *, pickle: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickle:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path, base: BaseModel | None = None, **options: Any) -> EagleDraft:
    draft = load_heads(folder, base=facts(base or tiny_base()), **options).heads
    assert isinstance(draft, EagleDraft)
    return draft


PUBLISHED = {
    "eagle-vicuna": (EAGLE1, {**LAYER, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}, True),
    "eagle-llama3": (
        {name: shape for name, shape in EAGLE1.items() if name != "fc.bias"},
        {**LAYER, "bias": False, "rope_theta": 500000.0},
        True,
    ),
    "eagle-nested": (
        {**EAGLE1, "lm_head.weight": (VOCAB, HIDDEN)},
        {"model_type": "eagle", "model": {**LAYER, "model_type": "llama"}},
        False,
    ),
    "eagle3-official": (EAGLE3, OFFICIAL3, True),
    "eagle3-specforge": (
        {**EAGLE3, "embed_tokens.weight": (VOCAB, HIDDEN)},
        {**OFFICIAL3, "architectures": ["LlamaForCausalLMEagle3"], "head_dim": DIM,
         "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1], "use_aux_hidden_state": True}},
        False,
    ),
    "speculators-eagle3": (
        SPECULATORS3,
        {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": DRAFT_VOCAB,
         "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
         "transformer_layer_config": {**LAYER, "head_dim": DIM}},
        False,
    ),
    "speculators-eagle": (
        SPECULATORS1,
        {"architectures": ["EagleSpeculator"], "speculators_model_type": "eagle", "layernorms": True,
         "fusion_bias": True, "transformer_layer_config": LAYER},
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_made_to_the_published_lists_load(name: str, tmp_path: Path) -> None:
    shapes, config, pickle = PUBLISHED[name]
    tensors = random_tensors(shapes, torch.float16 if "official" in name else torch.float32)
    if "3" in name.split("-")[0] or name == "speculators-eagle3":
        tensors = with_vocabulary(tensors)
    folder = write(tmp_path, tensors, config, pickle=pickle)
    assert detect(folder).kind == "eagle_heads"
    draft = load(folder, aux_layers=(0, 1, 2) if name == "eagle3-official" else None)
    eagle3 = "eagle3" in name
    assert draft.method == ("eagle3" if eagle3 else "eagle")
    assert draft.config.feature_size == (3 if eagle3 else 1) * HIDDEN
    assert draft.draft_vocab_size == (DRAFT_VOCAB if eagle3 else VOCAB)
    stored = next(value for key, value in tensors.items() if key.endswith("q_proj.weight"))
    torch.testing.assert_close(draft.layer.self_attn.q_proj.weight, stored.float())  # type: ignore[union-attr]
    if eagle3:
        assert draft.target_ids(torch.arange(3)).tolist() == [3, 4, 5]
        assert draft.draft_ids(torch.tensor([2, 3, 22, 23])).tolist() == [-1, 0, 19, -1]
    assert "EAGLE" in describe(inspect_path(folder))


def test_what_the_config_adds_is_taken(tmp_path: Path) -> None:
    shapes, config, _ = PUBLISHED["speculators-eagle3"]
    draft = load(write(tmp_path / "a", with_vocabulary(random_tensors(shapes)), config))
    assert draft.config.norm_before_residual
    assert draft.aux_layers == (0, 1, 2)
    assert draft.config.rms_eps == 1e-5
    draft = load(write(tmp_path / "b", random_tensors(PUBLISHED["eagle-llama3"][0]), PUBLISHED["eagle-llama3"][1]))
    assert draft.config.rope["rope_theta"] == 500000.0
    assert not draft.config.fc_bias


def test_published_sizes() -> None:
    """Parameter counts that follow from the sizes of published files."""

    def entries(shapes: dict[str, tuple[int, ...]]) -> dict[str, Entry]:
        return {
            name: Entry(name, shape, "float16", Path("x"), lambda: torch.empty(0)) for name, shape in shapes.items()
        }

    def layer(prefix: str, hidden: int, wide: int, width: int, norms: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        return {
            **{f"{prefix}self_attn.{p}_proj.weight": (hidden, width) for p in "qkv"},
            f"{prefix}self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": (wide, hidden),
            f"{prefix}mlp.up_proj.weight": (wide, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, wide),
            **{f"{prefix}{norm}.weight": (hidden,) for norm in norms},
        }

    vicuna7 = {
        "embed_tokens.weight": (32000, 4096), "fc.weight": (4096, 8192), "fc.bias": (4096,),
        **layer("layers.0.", 4096, 11008, 4096, ("post_attention_layernorm",)),
    }  # fmt: skip
    plan = make_eagle_plan(entries(vicuna7), {"num_attention_heads": 32, "vocab_size": 32000})
    assert round(sum(entry.numel for entry in plan.entries.values()) / 1e6, 1) == 367.0
    vicuna13 = {
        "fc.weight": (5120, 15360), **layer("midlayer.", 5120, 13824, 10240, NORMS3),
        "norm.weight": (5120,), "lm_head.weight": (32000, 5120),
    }  # fmt: skip
    plan = make_eagle_plan(
        entries(vicuna13), {"num_attention_heads": 40, "vocab_size": 32000}, target_hidden_size=5120, num_layers=40
    )
    assert round(sum(entry.numel for entry in plan.entries.values()) / 1e6, 1) == 638.3
    assert plan.config.aux_layers == (2, 20, 37)


def test_layers_are_read_in_both_conventions() -> None:
    """Published ids of 61-layer models: outputs [1, 29, 57] and inputs [2, 30, 58] are the same tensors."""
    assert aux_layers_of([1, 29, 57], 61, 3, []) == aux_layers_of([2, 30, 58], 61, 3, []) == (2, 30, 58)
    assert aux_layers_of([1, 17, 33], 36, 3, []) == (2, 18, 34)
    assert aux_layers_of(None, 32, 3, []) == (2, 16, 29)
    warnings: list[str] = []
    assert aux_layers_of([4, 9, 20], 32, 3, warnings) == (4, 9, 20)
    assert "W-LAYERS" in warnings[0]


def test_rope_of_old_and_new_configs() -> None:
    assert rope_parameters({}, "") == {"rope_type": "default", "rope_theta": 10000.0}
    old = rope_parameters({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}, "")
    new = rope_parameters({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}, "")
    assert old == new == {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
    with pytest.raises(InputError, match="unknown RoPE type 'spiral'"):
        rope_parameters({"rope_scaling": {"type": "spiral"}}, "config.json")


ROUND_TRIPS = [("eagle", None), ("eagle", "speculators"), ("eagle3", None), ("eagle3", "speculators")]


@pytest.mark.parametrize(("variant", "layout"), ROUND_TRIPS)
def test_written_drafts_load_back_with_identical_traces(variant: str, layout: Any, tmp_path: Path) -> None:
    base = tiny_base()
    switches = {"norm_before_residual": True, "fc_norm": True} if variant == "eagle3" else {}
    draft = random_eagle(base, variant, **switches)
    save_eagle(draft, tmp_path, {"base_model_name_or_path": base.name}, layout=layout)
    again = load(tmp_path, base)
    again.max_depth = draft.max_depth
    answers = answers_of(decode(base, None, NO_TREE))
    first, second = (record_trace(base, one, answers, top_k=TOP_K).ranks for one in (draft, again))
    assert np.array_equal(first, second)
    assert (first >= 0).any()


def broken(change: str, tmp_path: Path) -> Path:
    tensors, config = with_vocabulary(random_tensors(EAGLE3)), dict(OFFICIAL3)
    config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    if change == "missing":
        del tensors["midlayer.mlp.up_proj.weight"]
    elif change == "surplus":
        tensors["midlayer.extra.weight"] = torch.zeros(3)
    elif change == "shape":
        tensors["midlayer.mlp.up_proj.weight"] = torch.zeros(WIDE + 1, HIDDEN)
    elif change == "range":
        tensors["d2t"] = tensors["d2t"] + 10
    elif change == "twice":
        tensors["d2t"] = tensors["d2t"] - torch.arange(DRAFT_VOCAB)
    elif change == "t2d":
        tensors["t2d"] = tensors["t2d"].roll(1)
    elif change == "vocabulary":
        tensors["lm_head.weight"] = torch.zeros(VOCAB + 5, HIDDEN)
        tensors["d2t"] = torch.zeros(VOCAB + 5, dtype=torch.int64)
        del tensors["t2d"]
        config["draft_vocab_size"] = VOCAB + 5
    elif change == "stated":
        config["draft_vocab_size"] = VOCAB
    elif change == "rope":
        config["rope_scaling"] = {"type": "spiral", "factor": 2.0}
    elif change == "layer":
        config["eagle_aux_hidden_state_layer_ids"] = [0, 2, 9]
    elif change == "variant":
        config |= {"speculators_model_type": "eagle"}
    elif change == "heads":
        del config["num_attention_heads"]
    elif change == "count":
        config["eagle_aux_hidden_state_layer_ids"] = [0, 2]
    return write(tmp_path, tensors, config)


BROKEN = {
    "missing": "missing tensors: layer.mlp.up_proj.weight",
    "surplus": "do not belong to an eagle3 draft: midlayer.extra.weight",
    "shape": r"midlayer.mlp.up_proj.weight has shape \[49, 32\], \[48, 32\] expected",
    "range": "token ids from 13 to 32, the base model's go from 0 to 23",
    "twice": "the same token id stands there twice",
    "t2d": "d2t and t2d name different tokens",
    "vocabulary": "the draft vocabulary has 29 tokens, more than the 24 of llama",
    "stated": f"config.json says {VOCAB} draft tokens, the tensors have {DRAFT_VOCAB}",
    "rope": "unknown RoPE type 'spiral'",
    "layer": "layer 9 does not exist: the base model has layers 0 to 2",
    "variant": "config.json says eagle, the tensors are those of eagle3",
    "heads": "config.json gives no num_attention_heads",
    "count": "2 layers are named",
}


@pytest.mark.parametrize("change", BROKEN)
def test_wrong_files_are_refused(change: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=BROKEN[change]):
        load(broken(change, tmp_path))


def test_a_draft_for_another_size_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, with_vocabulary(random_tensors(EAGLE3)), {**OFFICIAL3, "target_hidden_size": HIDDEN})
    other = BaseFacts(64, VOCAB, "other", num_layers=8)
    with pytest.raises(InputError, match="features 32 wide, those of other are 64"):
        load_heads(folder, base=other)


def test_named_layers_win(tmp_path: Path) -> None:
    folder = broken("layer", tmp_path)
    assert load(folder, aux_layers=(0, 1, 2)).aux_layers == (0, 1, 2)
    with pytest.raises(InputError, match="layer 7 does not exist"):
        load(folder, aux_layers=(0, 1, 7))


def test_written_vocabulary_is_offsets_and_mask(tmp_path: Path) -> None:
    draft = random_eagle(tiny_base())
    save_eagle(draft, tmp_path, {})
    stored = load_file(tmp_path / "model.safetensors")
    assert draft.token_map is not None
    assert torch.equal(torch.arange(len(stored["d2t"])) + stored["d2t"], draft.token_map)
    assert int(stored["t2d"].sum()) == len(draft.token_map)
    assert stored["t2d"].shape == (VOCAB,)
