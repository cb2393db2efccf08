"""Derive ``mc_sim_7b_127`` and ``mc_sim_7b_255``: python trees/derive_mc_sim.py

Nobody published trees of these names; articles that mention them give no node lists. They are computed here by exact
best-first search from the head accuracies that the Medusa project published for Vicuna-7B, under the product model: the
value of a node is the product over its path of P(head d is right at rank r), and the expected tokens per step are one
plus the sum of all values. The model treats heads as independent, so measured figures differ; see ``source.note``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mtp_bench.files import read_json
from mtp_bench.search import MarginalSource, grow
from mtp_bench.topology import StaticTree, TopologyDocument

HERE = Path(__file__).resolve().parent
ACCURACIES = HERE.parent / "tests" / "data" / "medusa_head_accuracy.json"
SIZES = (127, 255)


def per_rank_accuracies(path: Path = ACCURACIES) -> npt.NDArray[np.float64]:
    """P(head d is right at rank r), float [heads, 5]: differences of the published cumulative top-k rates."""
    cumulative = np.array(read_json(path)["vicuna"]["7b"])
    return np.diff(cumulative, axis=1, prepend=0.0)


def derive(num_nodes: int) -> TopologyDocument:
    """The best tree of ``num_nodes`` nodes under the product model, with its expected figures."""
    per_rank = per_rank_accuracies()
    heads, top_k = per_rank.shape
    found = grow(MarginalSource(per_rank), max_nodes=num_nodes, max_depth=heads)
    accepted: dict[int, float] = defaultdict(float)
    for path, value in found:
        accepted[len(path)] += value
    tree = StaticTree.from_paths([path for path, _ in found])
    return TopologyDocument(
        tree,
        method="medusa",
        expected={
            "acceptance_length_incl_bonus": round(1 + sum(accepted.values()), 6),
            "acceptance_rates_unconditional": [round(accepted[depth], 6) for depth in sorted(accepted)],
        },
        profile={
            "model": "vicuna-7b-v1.3",
            "acceptance": "published accuracies of five Medusa-1 heads on a training batch, per rank as differences "
            "of the cumulative top-k rates",
            "acceptance_rule": "greedy",
            "estimator": "product of marginal accuracies, averaged over all positions",
        },
        limits={"max_nodes": num_nodes, "max_depth": heads, "top_k": top_k},
        source={
            "project": "mtp-bench (derived)",
            "licence": "Apache-2.0",
            "derived_from": "FasterDecoding/Medusa assets/medusa_acc.csv, vicuna 7b, heads 1 to 5, top-1 to top-5",
            "method": "exact best-first search, trees/derive_mc_sim.py; ties: parent first, then lexicographic",
            "note": "no tree of this name was published with its nodes; the expected length holds under the product "
            "model only",
        },
    )


if __name__ == "__main__":
    for size in SIZES:
        target = HERE / f"mc_sim_7b_{size}.json"
        derive(size).write(target)
        print(target)
