"""Several kinds of heads on the same work: one table, paired intervals, and a plain verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtp_bench.cost import CostTable
from mtp_bench.decode.bench import ENGINE_BASELINE, HF_BASELINE, HF_LOOKUP, BenchRow
from mtp_bench.errors import InputError
from mtp_bench.profile.bench import Predictor, arm_figures, speedup_between
from mtp_bench.runs import RunFolder
from mtp_bench.search import TrieSource, exact_search
from mtp_bench.search.curve import TOKENS
from mtp_bench.search.transfer import transfer
from mtp_bench.topology import StaticTree, Topology, name_of
from mtp_bench.trace import RankTrace, replay

SCHEMA = "mtp-bench/compare"
SIZES = (1, 3, 7, 15, 31, 63)
NAMES = {
    ENGINE_BASELINE: "no speculation",
    HF_BASELINE: "Hugging Face generate",
    HF_LOOKUP: "Hugging Face prompt lookup",
}


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
    InputError: the runs are of different base models, dtypes, prompts or settings of the text.
    """
    first = entrants[0]
    for key, what in (("sha256", "base model"), ("dtype", "dtype"), ("name", "base model")):
        for other in entrants[1:]:
            mine, theirs = first.manifest["model"][key], other.manifest["model"][key]
            if mine != theirs:
                raise InputError(
                    f"runs of a different {what}: {mine} and {theirs}",
                    where=str(other.run.path),
                    fix="profile both with the same --model and --dtype",
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
    rows: Sequence[BenchRow], entrants: Sequence[Entrant], chosen: Sequence[int], context: int, *, exact: bool,
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The document of ``compare.json``.

    Args:
        rows: of a bench whose contenders are called by the entrants' labels.
        chosen: indices of the prompts benched, in every entrant's trace.
        context: cached tokens at which costs are taken.
        exact: whether outputs must be identical (fp32).
    """
    arms = list(dict.fromkeys(row.arm for row in rows))
    by_label = {entrant.label: entrant for entrant in entrants}
    methods = [_method(rows, arm, by_label.get(arm), chosen, context, exact, seed) for arm in arms]
    return {
        "schema": SCHEMA,
        "version": 1,
        "context": context,
        "prompts": len(chosen),
        "methods": methods,
        "verdict": verdict(rows, methods, seed),
        "same_size": [_sizes(entrant) for entrant in entrants],
        "transfer": [_transfer(entrant, context) for entrant in entrants],
    }


def _method(
    rows: Sequence[BenchRow],
    arm: str,
    entrant: Entrant | None,
    chosen: Sequence[int],
    context: int,
    exact: bool,
    seed: int,
) -> dict[str, Any]:
    predicted = None
    facts: dict[str, Any] = {"name": NAMES.get(arm, arm), "arm": arm, "method": "none", "topology": "none"}
    if entrant is not None:
        topology, cost = entrant.topology, entrant.cost
        predicted = Predictor(entrant.trace.select(list(chosen)), cost, context).tokens_per_s(topology)
        facts = {
            "name": entrant.title,
            "arm": arm,
            "method": entrant.method,
            "topology": name_of(topology),
            "topology_id": topology.id,
            "num_nodes": topology.num_nodes,
            "depth": topology.depth,
            "heads_bytes": entrant.manifest["heads"]["bytes"],
            **_costs(topology, cost, context),
        }
    elif arm == HF_LOOKUP:
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


def _costs(topology: Topology, cost: CostTable | None, context: int) -> dict[str, Any]:
    """Predicted cost of a step, and how much of it is the draft's."""
    if cost is None:
        return {"draft_ms": None, "verify_ms": None}
    try:
        whole = cost.topology_ms(topology, context=context, padded=False)
        verify = cost.step_ms(topology.rows, context=context, padded=False)
    except InputError:
        return {"draft_ms": None, "verify_ms": None}
    return {"draft_ms": whole - verify, "verify_ms": verify}


def verdict(rows: Sequence[BenchRow], methods: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The fastest against the runner-up, in one sentence; a tie when the paired interval holds 1."""
    order = sorted(methods, key=lambda method: method["tokens_per_s"], reverse=True)
    if len(order) < 2:
        return "nothing to compare with"
    best, second = order[0], order[1]
    ratio = speedup_between(rows, second["arm"], best["arm"], seed)
    if ratio["ci"] is None:
        return f"{best['name']} {ratio['value']:.2f}x the speed of {second['name']} (too few prompts for an interval)"
    low, high = ratio["ci"]
    text = (
        f"{best['name']} {ratio['value']:.2f}x the speed of {second['name']} on these prompts [{low:.2f}, {high:.2f}]"
    )
    return f"tie: {text}" if low <= 1 <= high else text


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
