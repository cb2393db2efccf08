"""Trees of every shape within small rules, slow and obvious, and rules to draw."""

from __future__ import annotations

from acceptance_cases import all_trees
from hypothesis import strategies as st

from mtp_bench.search.rules.constraints import Constraints
from mtp_bench.topology import StaticTree

RANKS, DEPTH, NODES = 3, 3, 6
SMALL_TREES = [StaticTree.from_paths(paths) for paths in all_trees(ranks=RANKS, depth=DEPTH, max_nodes=NODES)]


@st.composite
def rules(draw, **fixed):
    """Any combination of rules that small trees can break."""

    def limit(least, most):
        return draw(st.none() | st.integers(least, most))

    drawn = {
        "max_nodes": limit(0, NODES),
        "max_depth": limit(0, DEPTH),
        "max_children": limit(1, RANKS),
        "max_width": limit(1, 4),
        "top_k": limit(1, RANKS),
        "contiguous": draw(st.booleans()),
        "uniform": draw(st.integers(0, 3)) == 0,
        "chain": draw(st.integers(0, 5)) == 0,
        "rows_multiple": draw(st.sampled_from([1, 1, 2, 3, 5])),
    }
    return Constraints(**(drawn | fixed))


def obeys(tree, rule):
    """Whether a tree keeps the rules, written from their definitions and not from the code."""
    if not tree.paths:
        return True
    paths, children = set(tree.paths), {(): []} | {path: [] for path in tree.paths}
    for path in tree.paths:
        children[path[:-1]].append(path[-1])
    widths = [sum(len(path) == d for path in paths) for d in range(1, DEPTH + 1)]
    counts = [{len(children[p]) for p in children if len(p) == d} for d in range(DEPTH)]
    no_gaps = all(sorted(ranks) == list(range(len(ranks))) for ranks in children.values())
    return all(
        [
            rule.max_nodes is None or len(paths) <= rule.max_nodes,
            rule.max_depth is None or max(map(len, paths)) <= rule.max_depth,
            rule.max_children is None or max(len(ranks) for ranks in children.values()) <= rule.max_children,
            rule.max_width is None or max(widths) <= rule.max_width,
            rule.top_k is None or max(path[-1] for path in paths) < rule.top_k,
            not rule.contiguous or no_gaps,
            not rule.chain or set(tree.paths) == {(0,) * d for d in range(1, len(paths) + 1)},
            not rule.uniform or (no_gaps and all(len(sizes) <= 1 for sizes in counts)),
            (len(paths) + 1) % rule.rows_multiple == 0,
        ]
    )
