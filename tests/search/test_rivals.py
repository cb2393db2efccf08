"""The optimised tree against everything published, on the reference model's committed trace."""

from pathlib import Path

import numpy as np
import pytest
from acceptance_cases import read_data, synthetic_trace, t3_cost

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError
from mtp_bench.report.rivals import draw_rivals, optimum_frame, rivals_frame
from mtp_bench.search.rivals import against_optimum
from mtp_bench.topology import StaticTree
from mtp_bench.topology.collection import resolve_all
from mtp_bench.topology.shapes import uniform_tree
from mtp_bench.trace import RankTrace, accepted_lengths, replay

REPOSITORY = Path(__file__).parents[2]
RUN = REPOSITORY / "results" / "smollm2-135m-cpu"
DENSE = REPOSITORY / "tests" / "data" / "medusa_trees_dense_history.json"
PUBLISHED = [
    "mc_sim_7b_63", "vicuna_7b_stage1", "vicuna_7b_stage1_ablation", "vicuna_7b_stage2", "vicuna_13b_stage1",
    "vicuna_13b_stage2", "vicuna_33b_stage1", "vicuna_33b_stage2", "zephyr_stage2",
]  # fmt: skip


@pytest.fixture(scope="module")
def trace():
    return RankTrace.load(RUN / "trace.npz")


@pytest.fixture(scope="module")
def found(trace):
    trees = {name: tree for spec in [*PUBLISHED, str(DENSE)] for name, tree in resolve_all(spec).items()}
    return against_optimum(trees, trace, CostTable.from_csv(RUN / "cost.csv"), context=282)


def test_there_are_nine_and_six_hundred_and_ninety_seven(found):
    assert len(found.rivals) == 9 + 697
    medusa = {name for name in read_data("medusa_trees.json") if not name.startswith(("eagle", "hydra"))}
    assert medusa == set(PUBLISHED)


def test_none_accepts_more_than_the_best_of_its_size(found, trace):
    for rival in found.rivals:
        assert rival.optimum.num_nodes <= rival.evaluation.num_nodes <= rival.given_nodes
        assert rival.evaluation.tokens_per_step_all_positions <= rival.optimum.tokens_per_step_all_positions + 1e-9
        assert rival.nodes_to_match <= rival.evaluation.num_nodes
    for rival in found.rivals[::50]:  # by counting, without the evaluation's code
        tree, best = (StaticTree.from_paths(one.paths) for one in (rival.evaluation, rival.optimum))
        assert accepted_lengths(trace, tree).sum() <= accepted_lengths(trace, best).sum()


def test_replayed_and_paired_nearly_all_are_beaten(found):
    verdicts = [rival.verdict for rival in found.rivals]
    assert verdicts.count("rival") == 0
    assert verdicts.count("optimum") >= 700
    assert found.summary()["replay_below_the_optimum"] == 706
    held_out = [rival.held_out for rival in found.rivals]
    assert sum(one.high < 0 for one in held_out) >= 690
    assert sum(one.low > 0 for one in held_out) == 0


def test_the_fastest_tree_is_faster_than_the_fastest_given_one(found):
    best = found.fastest_rival
    assert found.fastest is not None
    assert best is not None
    assert found.fastest.speedup_predicted > best.evaluation.speedup_predicted
    assert best.to_fastest.high < 1
    assert max(one.speedup_predicted or 0 for one in found.curve) <= found.fastest.speedup_predicted * 1.01


def test_differences_are_those_of_the_replays(found, trace):
    for rival in found.rivals[::90]:
        tree, best = (StaticTree.from_paths(one.paths) for one in (rival.evaluation, rival.optimum))
        difference = replay(trace, tree).tokens_per_step - replay(trace, best).tokens_per_step
        assert rival.evaluation.difference_tokens_per_step.value == pytest.approx(difference)


def test_the_plot_has_every_tree_and_the_curve(found):
    document = {"trees": [r.document() for r in found.rivals], "optimum": [one.document() for one in found.curve]}
    trees, optimum = rivals_frame(document), optimum_frame(document)
    assert len(trees) == 706
    assert optimum["num_nodes"].is_monotonic_increasing
    figure = draw_rivals(trees, optimum, PUBLISHED)
    cloud, line, marked = figure.axes[0].lines
    assert (len(cloud.get_xdata()), len(line.get_xdata()), len(marked.get_xdata())) == (697, len(optimum), 9)
    at_size = dict(zip(optimum["num_nodes"], optimum["tokens_per_step_all_positions"], strict=True))
    assert all(row.tokens_per_step_all_positions <= at_size[row.num_nodes] + 1e-9 for row in trees.itertuples())


def test_branching_is_expanded_to_a_dense_tree():
    tree = resolve_all(str(DENSE))["vicuna_7b_stage2_rs_3"]
    assert read_data(DENSE.name)["vicuna_7b_stage2_rs_3"] == [3, 3, 1, 1]
    assert tree.level_widths == (3, 9, 9, 9)
    assert tree == uniform_tree((3, 3, 1, 1))
    assert np.unique(tree.ranks[1:]).tolist() == [0, 1, 2]


def test_small_traces_and_the_best_tree_itself():
    trace = synthetic_trace(0, prompts=6, length=60)
    best = against_optimum({"two": uniform_tree((2,))}, trace).rivals[0].optimum
    trees = {"best": StaticTree.from_paths(best.paths), "deep": uniform_tree((1,) * 6)}
    found = against_optimum(trees, trace, t3_cost())
    assert found.rivals[0].verdict == "same"
    assert found.rivals[1].given_nodes == 6
    assert found.rivals[1].evaluation.num_nodes == 4
    few = against_optimum({"two": uniform_tree((2,))}, synthetic_trace(0, prompts=2, length=60))
    assert few.rivals[0].held_out is None


def test_nothing_to_compare_is_refused():
    with pytest.raises(InputError, match="no tree with a node"):
        against_optimum({"none": StaticTree()}, synthetic_trace(0, prompts=6, length=60))


@pytest.mark.parametrize("body", ['{"a": [0, 2]}', '{"a": [[0], [0, 0, 0]]}', '{"a": [[0]], "b": []}'])
def test_files_of_trees_with_defects_are_refused_or_empty(tmp_path, body):
    path = tmp_path / "many.json"
    path.write_text(body)
    if '"b"' in body:
        assert resolve_all(str(path))["b"].num_nodes == 0
        return
    with pytest.raises(InputError, match="#/a"):
        resolve_all(str(path))
