"""Dynamic trees (EAGLE-2): a tree that is chosen anew in every step, by the draft's own confidence.

The draft expands level by level: the `top_k` best tokens below the root, then below each of the `top_k` most probable
nodes of the last level their `top_k` best tokens, `depth` levels in all. All of them form the pool, of which the
`num_nodes` with the highest probability of their whole path are verified; being no less probable than its children, a
node's parent is always among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_json
from mtp_bench.topology.validate import MAX_DEPTH

LARGEST = 1 << 16


@dataclass(frozen=True)
class DynamicTree:
    """The three numbers that define a dynamic tree.

    Raises:
        InputError: one of them is out of range, or the pool holds fewer than ``num_nodes`` nodes.
    """

    depth: int
    top_k: int
    num_nodes: int

    def __post_init__(self) -> None:
        limits = (("depth", self.depth, MAX_DEPTH), ("top_k", self.top_k, LARGEST))
        for name, value, most in (*limits, ("num_nodes", self.num_nodes, LARGEST)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(
                    f"{name} of a dynamic tree must be an integer from 1 to {most}, not {value!r}",
                    where="--topology",
                    fix="write dynamic:DEPTH,TOP_K,NUM_NODES, e.g. dynamic:5,4,12",
                )
        if self.num_nodes > self.pool_size:
            raise InputError(
                f"{self} keeps {self.num_nodes} nodes of a pool of {self.pool_size} (top_k + (depth - 1) * top_k^2)",
                where="--topology",
                fix=f"lower num_nodes to {self.pool_size}, or raise depth or top_k",
            )

    @property
    def pool_size(self) -> int:
        """Nodes that are drafted before the best are kept."""
        return self.top_k + (self.depth - 1) * self.top_k**2

    @property
    def rows(self) -> int:
        """Rows of one verification pass: N + 1."""
        return self.num_nodes + 1

    @property
    def max_rank(self) -> int:
        """Largest rank that any node can have."""
        return self.top_k - 1

    @cached_property
    def id(self) -> str:
        """ "sha256:..." of the body."""
        return "sha256:" + sha256_json({"kind": "dynamic_tree", "dynamic": self.as_dict()})

    def as_dict(self) -> dict[str, int]:
        """The body of the JSON document."""
        return {"depth": self.depth, "top_k": self.top_k, "num_nodes": self.num_nodes}

    def __str__(self) -> str:
        return f"dynamic:{self.depth},{self.top_k},{self.num_nodes}"


def parse_dynamic(text: str) -> DynamicTree:
    """``5,4,12`` -> depth 5, top_k 4, num_nodes 12.

    Raises:
        InputError: not three numbers, or out of range.
    """
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise InputError(
            f"{text!r} is no dynamic tree",
            where="--topology",
            fix="write dynamic:DEPTH,TOP_K,NUM_NODES, e.g. dynamic:5,4,12",
        )
    depth, top_k, num_nodes = map(int, parts)
    return DynamicTree(depth, top_k, num_nodes)
