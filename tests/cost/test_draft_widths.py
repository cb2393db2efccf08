"""Drafts that cost by the widths of their levels."""

import numpy as np
import pytest
from acceptance_cases import cost_table, trees
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.cost import CostPoint, CostTable
from mtp_bench.errors import InputError
from mtp_bench.topology import StaticTree, chain
from mtp_bench.topology.shapes import uniform_tree


def wide_table(draft_ms, *, verify=None, **place):
    """A table with drafts by (depth, width)."""
    points = [CostPoint(rows=rows, median_ms=ms, **place) for rows, ms in (verify or {1: 10.0, 64: 20.0}).items()]
    drafts = [CostPoint("draft", rows=w, depth=d, median_ms=ms, **place) for (d, w), ms in draft_ms.items()]
    return CostTable((*points, *drafts))


def passes(root_ms, level_ms, *, depth=4, widths=(1, 2, 4, 8)):
    """What is measured where every pass over w nodes takes ``level_ms(w)``."""
    deep = {(d, w): root_ms + (d - 1) * level_ms(w) for d in range(2, depth + 1) for w in widths}
    return {(1, 1): root_ms} | deep


def verify_ms(table, tree):
    return table.step_ms(tree.rows)


@given(trees(max_depth=4, max_nodes=20))
def test_a_tree_pays_for_what_it_expands_level_by_level(tree):
    """Where passes cost the same at every depth, the sum over the tree's own passes, found node by node."""
    level_ms = lambda width: 1.0 + np.interp(width, [1, 4, 8], [0.0, 3.0, 4.0])  # noqa: E731
    table = wide_table(passes(2.0, level_ms))
    inner = {path[:-1] for path in tree.paths}
    expanded = [sum(len(path) == depth for path in inner) for depth in range(1, tree.depth)]
    assert tree.expanded_widths == tuple(expanded)
    if max(expanded, default=0) > 8:
        return
    expected = verify_ms(table, tree) + (2.0 + sum(map(level_ms, expanded)) if tree.depth else 0.0)
    assert table.topology_ms(tree) == pytest.approx(expected)


def test_equal_widths_give_what_was_measured():
    measured = {(1, 1): 2.0, (2, 1): 3.5, (2, 4): 4.0, (3, 1): 4.0, (3, 4): 7.0}
    table = wide_table(measured)
    wide = StaticTree.from_paths([(r, *(0,) * level) for r in range(4) for level in range(3)])
    assert table.topology_ms(chain(3)) - verify_ms(table, chain(3)) == pytest.approx(4.0)
    assert table.topology_ms(wide) - verify_ms(table, wide) == pytest.approx(7.0)
    # Expands 4 nodes at depth 1 and 1 at depth 2: half of each.
    mixed = StaticTree.from_paths([*((r,) for r in range(4)), *((r, 0) for r in range(4)), (0, 0, 0)])
    assert table.topology_ms(mixed) - verify_ms(table, mixed) == pytest.approx((4.0 + 7.0) / 2)
    assert table.draft_curve(3) == pytest.approx([0.0, 2.0, 3.5, 4.0])  # the least: a chain
    assert table.step_ms(4, depth=3) == pytest.approx(verify_ms(table, chain(3)) + 4.0)


cells = st.dictionaries(
    st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4, 8])), st.floats(0.1, 50), min_size=1
)  # fmt: skip


@given(cells)
def test_neither_depth_nor_width_makes_a_draft_cheaper(measured):
    table = wide_table(measured)
    deepest = max(depth for depth, _ in measured)
    grid = table.draft_widths(deepest)
    assert (grid[0] == 0).all()
    for axis in (0, 1):
        steps = np.diff(grid, axis=axis)
        assert (steps[np.isfinite(steps)] >= 0).all()
    known = np.isfinite(grid)
    assert (known[:, :-1] | ~known[:, 1:]).all()  # known up to some width
    assert (known[:-1] | ~known[1:]).all()  # and to some depth
    assert table.depth_limit() == deepest
    for (depth, width), ms in measured.items():
        if depth > 1:
            assert grid[depth, width] <= ms + 1e-9
            assert table.width_limit(depth) >= width


def test_costs_between_widths_depths_batches_and_contexts_are_interpolated():
    corners = [
        wide_table(passes(scale, lambda w, scale=scale: scale * w, widths=(1, 4)), batch=batch, context=context).points
        for batch, context, scale in ((1, 100, 1.0), (1, 300, 3.0), (3, 100, 5.0), (3, 300, 7.0))
    ]
    table = CostTable(tuple(point for points in corners for point in points))

    def draft_ms(tree, **place):
        return table.topology_ms(tree, **place) - table.step_ms(tree.rows, **place)

    two = uniform_tree([2, 1, 1])  # 1 + 2 + 2 passes
    assert draft_ms(two, context=100) == pytest.approx(5.0)
    assert draft_ms(two, context=200) == pytest.approx(10.0)
    assert draft_ms(two, batch=2, context=100) == pytest.approx(15.0)
    assert draft_ms(two, batch=2, context=200) == pytest.approx(20.0)
    assert table.width_limit(3, batch=2) == 4


def test_a_wider_level_than_measured_is_refused():
    table = wide_table({(1, 1): 1.0, (2, 1): 2.0, (2, 8): 3.0, (3, 1): 3.0, (3, 2): 4.0})
    four = uniform_tree([4, 1])
    assert table.topology_ms(four) > 0
    with pytest.raises(InputError, match="4 nodes expanded at one level, at depth 3"):
        table.topology_ms(uniform_tree([4, 1, 1]))
    with pytest.raises(InputError, match="depth 4"):
        table.topology_ms(chain(4))
    assert table.topology_ms(uniform_tree([30])) == pytest.approx(table.step_ms(31) + 1.0)  # nothing is expanded


def test_the_file_keeps_widths_and_old_files_have_none(tmp_path):
    table = wide_table(passes(2.0, float))
    table.to_csv(tmp_path / "cost.csv")
    again = CostTable.from_csv(tmp_path / "cost.csv")
    key = lambda p: (p.component, p.rows, p.depth, p.median_ms)  # noqa: E731
    assert sorted(map(key, again.points)) == sorted(map(key, table.points))
    assert again.has_widths
    old = cost_table({1: 10.0, 64: 20.0}, {1: 1.0, 2: 2.0, 3: 3.0})
    old.to_csv(tmp_path / "old.csv")
    lines = (tmp_path / "old.csv").read_text().splitlines()
    assert all(line.split(",")[4] == "" for line in lines if line.startswith("draft"))
    read = CostTable.from_csv(tmp_path / "old.csv")
    assert not read.has_widths
    assert read.width_limit(3) is None
    wide = uniform_tree([6, 4])
    assert read.topology_ms(wide) == read.step_ms(wide.rows, depth=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("draft,4,0,2.0", ":3.*depth is '0'"),
        ("draft,4,,2.0", ":3.*depth is ''"),
        ("draft,x,2,2.0", ":3.*rows is 'x'"),
        ("draft,4,2,2.0\ndraft,,3,2.0", "some drafts have rows"),
        ("draft,4,2,2.0\ndraft,4,2,3.0", "two costs for one draft"),
    ],
)
def test_damaged_files(tmp_path, line, message):
    (tmp_path / "cost.csv").write_text(f"component,rows,depth,median_ms\nverify,1,,10.0\n{line}\n")
    with pytest.raises(InputError, match=message):
        CostTable.from_csv(tmp_path / "cost.csv")
