"""Dynamic trees: their three numbers, their limits, their file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.topology import DynamicTree, TopologyDocument, load, read_document, resolve, resolve_topology


def test_pool_size_is_the_papers() -> None:
    """EAGLE's defaults: top_k 10 and 5 or 7 rounds after the first level give pools of 510 and 710."""
    assert DynamicTree(6, 10, 59).pool_size == 510
    assert DynamicTree(8, 10, 59).pool_size == 710
    assert DynamicTree(1, 4, 4).pool_size == 4


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 500))
def test_more_nodes_than_the_pool_are_refused(depth: int, top_k: int, num_nodes: int) -> None:
    if num_nodes <= top_k + (depth - 1) * top_k**2:
        assert DynamicTree(depth, top_k, num_nodes).rows == num_nodes + 1
    else:
        with pytest.raises(InputError, match="of a pool of"):
            DynamicTree(depth, top_k, num_nodes)


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    tree = DynamicTree(5, 4, 12)
    TopologyDocument(tree, "eagle3").write(tmp_path / "topology.json")
    document = read_document(tmp_path / "topology.json")
    assert document.topology == tree == resolve_topology(str(tmp_path)) == resolve_topology("dynamic:5,4,12")
    assert document.method == "eagle3"
    assert load("dynamic:5,4,12").topology.id != DynamicTree(5, 4, 13).id


def test_where_paths_are_needed_it_is_refused() -> None:
    with pytest.raises(InputError, match="has no fixed paths"):
        resolve("dynamic:5,4,12")
