"""Several kinds of heads on the same work: one table, paired intervals, and a plain verdict."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mtp_bench.cost import CostTable
from mtp_bench.decode.bench import (
    ENGINE_BASELINE,
    HF_BASELINE,
    HF_LOOKUP,
    HF_STATIC,
    VLLM_BASELINE,
    VLLM_LOOKUP,
    BenchRow,
)
from mtp_bench.errors import InputError
from mtp_bench.files import write_text
from mtp_bench.profile.bench import arm_figures, speedup_between
from mtp_bench.profile.costs import StepCost
from mtp_bench.runs import RunFolder
from mtp_bench.search import TrieSource, exact_search
from mtp_bench.search.by_category.transfer import transfer
from mtp_bench.search.exact.curve import TOKENS
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace, replay

SCHEMA = "mtp-bench/compare"
# Facts of a run's model that must agree.
COMPARED = {"name": "base model", "sha256": "base model", "dtype": "dtype", "engine": "engine"}
SIZES = (1, 3, 7, 15, 31, 63)
NAMES = {
    ENGINE_BASELINE: "no speculation",
    HF_BASELINE: "Hugging Face generate",
    HF_STATIC: "Hugging Face generate, static cache",
    HF_LOOKUP: "Hugging Face prompt lookup",
    VLLM_BASELINE: "vLLM",
    VLLM_LOOKUP: "vLLM prompt lookup",
}
OTHER_ENGINES = (VLLM_BASELINE, VLLM_LOOKUP)


@dataclass(frozen=True, eq=False)
class Entrant:
    """A profiled run that takes part.

    Attributes:
        label: how it is called in tables: the run's folder.
        method: of its heads; topology: its winner.
    """

    label: str
    run: RunFolder
    manifest: Mapping[str, Any]
    topology: Topology
    trace: RankTrace
    cost: CostTable | None

    @property
    def method(self) -> str:
        """``medusa``, ``eagle`` or ``eagle3``, a dynamic tree told apart."""
        return str(self.manifest["heads"]["method"])

    @property
    def title(self) -> str:
        """For the verdict: ``eagle3 dynamic:5,4,12``."""
        return f"{self.label} ({self.method}, {name_of(self.topology)})"


def check_comparable(entrants: Sequence[Entrant]) -> None:
    """Raises:
    InputError: the runs are of different base models, dtypes, engines, prompts or settings of the text.
    """
    first = entrants[0]
    for key in ("name", "sha256", "dtype", "engine"):
        for other in entrants[1:]:
            mine, theirs = (one.manifest["model"].get(key, "eager") for one in (first, other))
            if mine != theirs:
                raise InputError(
                    f"runs of a different {COMPARED[key]}: {mine} and {theirs}",
                    where=str(other.run.path),
                    fix="profile both with the same --model, --dtype and --engine",
                )
    for other in entrants[1:]:
        if other.trace.prompt_ids != first.trace.prompt_ids or not _same_lengths(first.trace, other.trace):
            raise InputError(
                f"not the same prompts and text as {first.run.path}",
                where=str(other.run.path),
                fix="profile both with the same --prompts, --limit and --max-new-tokens",
            )
    labels = [entrant.label for entrant in entrants]
    if len(set(labels)) < len(labels):
        raise InputError("two runs have the same folder name", where=", ".join(labels), fix="rename one of them")


def _same_lengths(one: RankTrace, other: RankTrace) -> bool:
    return bool(np.array_equal(one.prompt_lengths, other.prompt_lengths))


def compare_document(
    rows: Sequence[BenchRow], entrants: Sequence[Entrant], chosen: Sequence[int], context: int,
    steps: Mapping[str, StepCost], *, exact: bool, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The document of ``compare.json``.

    Args:
        rows: of a bench whose contenders are called by the entrants' labels.
        chosen: indices of the prompts benched, in every entrant's trace.
        context: cached tokens at which costs are taken.
        steps: costs of the contenders' and the baseline's steps, timed together.
        exact: whether outputs must be identical (fp32).
    """
    arms = list(dict.fromkeys(row.arm for row in rows))
    by_label = {entrant.label: entrant for entrant in entrants}
    methods = [_method(rows, arm, by_label.get(arm), chosen, steps.get(arm), exact, seed) for arm in arms]
    return {
        "schema": SCHEMA,
        "version": 1,
        "context": context,
        "prompts": len(chosen),
        "methods": methods,
        "verdict": verdict(rows, methods, seed),
        "over_others": over_others(rows, methods, seed),
        "same_size": [_sizes(entrant) for entrant in entrants],
        "transfer": [_transfer(entrant, context) for entrant in entrants],
    }


def _method(
    rows: Sequence[BenchRow],
    arm: str,
    entrant: Entrant | None,
    chosen: Sequence[int],
    step: StepCost | None,
    exact: bool,
    seed: int,
) -> dict[str, Any]:
    predicted = None if step is None else 1e3 / step.step_ms
    facts: dict[str, Any] = {"name": NAMES.get(arm, arm), "arm": arm, "method": "none", "topology": "none"}
    if entrant is not None:
        topology = entrant.topology
        if predicted is not None:
            predicted *= replay(entrant.trace.select(list(chosen)), topology).tokens_per_step
        facts = {
            "name": entrant.title,
            "arm": arm,
            "method": entrant.method,
            "topology": name_of(topology),
            "topology_id": topology.id,
            "num_nodes": topology.num_nodes,
            "depth": topology.depth,
            "heads_bytes": entrant.manifest["heads"]["bytes"],
            "draft_ms": None if step is None else step.draft_ms,
            "verify_ms": None if step is None else step.verify_ms,
        }
    elif arm in (HF_LOOKUP, VLLM_LOOKUP):
        facts["topology"] = "n-grams of the text so far"
    own = {name: [row for row in rows if row.category == name] for name in dict.fromkeys(row.category for row in rows)}
    return {
        **facts,
        **arm_figures(rows, arm, predicted, exact),
        "speedup": speedup_between(rows, ENGINE_BASELINE, arm, seed),
        "by_category": {
            name: {
                "tokens_per_step": arm_figures(part, arm, None, exact)["tokens_per_step"],
                "speedup": speedup_between(part, ENGINE_BASELINE, arm, seed)["value"],
            }
            for name, part in own.items()
        },
    }


def verdict(rows: Sequence[BenchRow], methods: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The fastest against the runner-up, in one sentence; a tie when the paired interval holds 1.

    Another engine is no method of ours: where it is faster still, that is a second sentence.
    """
    order = sorted(methods, key=lambda method: method["tokens_per_s"], reverse=True)
    here = [method for method in order if method["arm"] not in OTHER_ENGINES]
    if len(here) < 2:
        return "nothing to compare with"
    text = _sentence(rows, here[0], here[1], seed)
    return text if order[0] is here[0] else f"{text}; {_sentence(rows, order[0], here[0], seed)}"


def _sentence(rows: Sequence[BenchRow], best: Mapping[str, Any], second: Mapping[str, Any], seed: int) -> str:
    ratio = speedup_between(rows, second["arm"], best["arm"], seed)
    if ratio["ci"] is None:
        return f"{best['name']} {ratio['value']:.2f}x the speed of {second['name']} (too few prompts for an interval)"
    low, high = ratio["ci"]
    text = (
        f"{best['name']} {ratio['value']:.2f}x the speed of {second['name']} on these prompts [{low:.2f}, {high:.2f}]"
    )
    return f"tie: {text}" if low <= 1 <= high else text


def over_others(rows: Sequence[BenchRow], methods: Sequence[Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Our engine without speculation against every other engine, and our fastest topology against those and the other
    topologies, in pairs."""
    ours = [method for method in methods if method["arm"] not in NAMES]
    fastest = max(ours, key=lambda method: method["tokens_per_s"], default=None)
    plain = [method for method in methods if method["arm"] == ENGINE_BASELINE]
    others = [method for method in methods if method["arm"] in NAMES and method["arm"] != ENGINE_BASELINE]
    rivals = [method for method in ours if method is not fastest]
    pairs = [*((one, others) for one in plain), *([(fastest, [*rivals, *others])] if fastest is not None else [])]
    return [
        {
            "name": one["name"],
            "arm": one["arm"],
            "over": [
                {"name": other["name"], "arm": other["arm"], **speedup_between(rows, other["arm"], one["arm"], seed)}
                for other in against
            ],
        }
        for one, against in pairs
    ]


def write_decoded_csv(path: Path, rows: Sequence[BenchRow]) -> None:
    """One line per arm, prompt and repeat: what every figure of the comparison is made of (see ``BenchRow``)."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(BenchRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(path, stream.getvalue())


def _sizes(entrant: Entrant) -> dict[str, Any]:
    """tokens_per_step of the best static tree of each size, replayed over all prompts of the run."""
    found = exact_search(TrieSource.from_trace(entrant.trace), None, max_nodes=max(SIZES), objective=TOKENS)
    points = {point.num_nodes: found.tree_of(point) for point in found.curve.best_by_size(TOKENS)}
    sizes = {size: points[size] for size in SIZES if size in points}
    figures = {str(size): round(_tokens(entrant.trace, tree), 6) for size, tree in sizes.items()}
    return {"name": entrant.label, "method": entrant.method, "tokens_per_step": figures}


def _tokens(trace: RankTrace, tree: StaticTree) -> float:
    return replay(trace, tree).tokens_per_step


def _transfer(entrant: Entrant, context: int) -> dict[str, Any] | None:
    found = transfer(entrant.trace, entrant.cost, context=context)
    return None if found is None else {"name": entrant.label, **found.document()}
