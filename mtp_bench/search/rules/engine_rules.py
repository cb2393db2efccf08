"""What each engine loads, as :class:`~.constraints.Constraints`, and rules read from a command line.

Stated are only rules that were read in an engine's source, validator or documentation, or seen when it was run; the
``source`` of each says which. Rules that an engine does not check but silently gets wrong count as rules.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.search.rules.constraints import NUMBERS, SWITCHES, UNCONSTRAINED, Constraints, DynamicRules


@dataclass(frozen=True)
class EngineRules:
    """One engine's rules.

    Args:
        constraints: what it loads.
        source: where the rules were read.
        caution: what a user should know besides; empty when there is nothing.
    """

    constraints: Constraints
    source: str
    caution: str = ""


ENGINE_RULES: Mapping[str, EngineRules] = {
    "medusa": EngineRules(
        Constraints(top_k=10, contiguous=True, dynamic=None, name="medusa"),
        "FasterDecoding/Medusa, generate_medusa_buffers (run): ten tokens of each head are addressed as depth * 10 + "
        "rank, so rank 10 reads the next head; gaps among siblings pass silently and are wrong",
    ),
    "eagle1": EngineRules(
        Constraints(top_k=10, contiguous=True, dynamic=None, name="eagle1"),
        "SafeAILab/EAGLE, generate_tree_buffers (run): behaves like Medusa's on gaps and ranks of 10 and more",
    ),
    "vllm": EngineRules(
        Constraints(chain=True, dynamic=None, name="vllm"),
        "vLLM 0.21 to 0.33: speculative_token_tree was removed (PR #42121); num_speculative_tokens is the length of a "
        "chain. Medusa, up to 0.32, is a chain of each head's best token too (v1/spec_decode/medusa.py)",
    ),
    "vllm-0.20": EngineRules(
        Constraints(uniform=True, contiguous=True, dynamic=None, name="vllm-0.20"),
        "vLLM up to 0.20.2, speculative_token_tree: children per level = nodes of the level // nodes of the one above, "
        "so only uniform branching works; nothing checks it",
        "the tree is used only if the draft runs on backend TREE_ATTN, and is ignored silently otherwise",
    ),
    "sglang": EngineRules(
        Constraints(chain=True, dynamic=DynamicRules(full_chain=True), name="sglang"),
        "SGLang 0.5.23: no static trees; speculative-num-steps, -eagle-topk and -num-draft-tokens (N + 1) with N <= "
        "k + (d - 1) k^2, or torch.topk fails; topk 1 forces num-draft-tokens = steps + 1 (speculative_hook.py)",
    ),
    "tensorrt-llm": EngineRules(
        Constraints(chain=True, dynamic=DynamicRules(linear_capacity=True), name="tensorrt-llm"),
        "TensorRT-LLM 1.4: eagle_choices is gone (PR #18210); Eagle3DecodingConfig takes a chain's max_draft_len, or "
        "max_draft_len d, dynamic_tree_max_topK k, max_total_draft_tokens N with d <= N <= k d (validator)",
    ),
    "tensorrt-llm-1.2": EngineRules(
        Constraints(dynamic=DynamicRules(linear_capacity=True), name="tensorrt-llm-1.2"),
        "TensorRT-LLM 1.2 and 1.3: medusa_choices and eagle_choices are lists of paths that hold every prefix; "
        "no other rule was found in the validators",
        "a chain or a tree of depth 1 given as eagle_choices raised errors (issues #10325, #10323)",
    ),
}  # fmt: skip


def engine_rules(name: str) -> EngineRules:
    """The rules of an engine.

    Raises:
        InputError: no such engine; similar names are suggested.
    """
    if name in ENGINE_RULES:
        return ENGINE_RULES[name]
    near = difflib.get_close_matches(name, ENGINE_RULES, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise InputError(f"no rules of an engine {name!r}", where="--for", fix=f"{hint}known: {', '.join(ENGINE_RULES)}")


def parse_rules(text: str | None, engine: str | None = None) -> Constraints:
    """``max-children=4,contiguous,rows-multiple=8`` and an engine's name -> the rules of both.

    Raises:
        InputError: an unknown rule, a rule without its number, or a switch with one.
    """
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        word, equals, number = part.partition("=")
        rule = word.strip().replace("-", "_")
        if rule in SWITCHES and not equals:
            given[rule] = True
        elif rule in (*NUMBERS, "rows_multiple") and number.isascii() and number.isdigit() and len(number) < 7:
            given[rule] = int(number)
        else:
            known = ", ".join(f"{name.replace('_', '-')}=N" for name in (*NUMBERS, "rows_multiple"))
            raise InputError(f"{part!r} is no rule", where="--rules", fix=f"write {known}, {' or '.join(SWITCHES)}")
    own = replace(UNCONSTRAINED, **given)
    return own if engine is None else engine_rules(engine).constraints.and_also(own)
