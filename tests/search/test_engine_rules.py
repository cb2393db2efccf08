"""What engines load, by the facts that their rules were read from."""

import numpy as np
import pytest
from acceptance_cases import read_data

from mtp_bench.errors import InputError
from mtp_bench.search.rules.constraints import UNCONSTRAINED, Constraints, DynamicRules
from mtp_bench.search.rules.engine_rules import ENGINE_RULES, engine_rules, parse_rules
from mtp_bench.search.rules.filling import capacity, fill
from mtp_bench.topology import DynamicTree, StaticTree, chain
from mtp_bench.topology.shapes import uniform_tree


def allowed(engine, topology):
    return engine_rules(engine).constraints.allows(topology)


def test_published_medusa_trees_load_into_medusa():
    for name, paths in read_data("medusa_trees.json").items():
        if not name.startswith(("eagle", "hydra")):
            assert engine_rules("medusa").constraints.violations(StaticTree.from_paths(paths)) == ()


def test_medusa_reads_rank_ten_from_the_next_head_and_gaps_wrongly():
    rules = engine_rules("medusa").constraints
    wide = StaticTree.from_paths([(rank,) for rank in range(11)])
    assert rules.violations(wide) == ("rank 10 is not below top_k 10",)
    assert rules.violations(StaticTree.from_paths([(0,), (2,)])) == (
        "sibling ranks leave a gap: they must be 0, 1, 2, ...",
    )
    assert allowed("tensorrt-llm-1.2", StaticTree.from_paths([(0,), (2,)]))


def test_vllm_trees_must_branch_uniformly():
    assert allowed("vllm-0.20", uniform_tree((3, 2, 1)))
    assert not allowed("vllm-0.20", StaticTree.from_paths([(0,), (1,), (0, 0)]))
    assert allowed("vllm", chain(5))
    assert not allowed("vllm", uniform_tree((2,)))
    assert not allowed("vllm", DynamicTree(3, 2, 5))


def test_sglang_takes_triples_and_chains():
    assert allowed("sglang", DynamicTree(5, 4, 7))
    assert allowed("sglang", DynamicTree(4, 1, 4))
    assert not allowed("sglang", DynamicTree(4, 1, 3))  # topk 1 forces draft tokens = steps + 1
    assert allowed("sglang", chain(3))
    assert not allowed("sglang", uniform_tree((2, 2)))
    DynamicTree(3, 3, 14)  # a full binary tree of depth 3 needs top_k 3 ...
    with pytest.raises(InputError, match="pool of 10"):
        DynamicTree(3, 2, 14)  # ... since top_k 2 holds 10 nodes


def test_tensorrt_asks_for_depth_to_top_k_times_depth_nodes():
    assert allowed("tensorrt-llm", DynamicTree(6, 10, 60))
    assert not allowed("tensorrt-llm", DynamicTree(6, 10, 61))
    assert not allowed("tensorrt-llm", DynamicTree(6, 10, 5))
    sixty_three = [k for k in range(1, 40) if 4 + 3 * k * k >= 63 and allowed("tensorrt-llm", DynamicTree(4, k, 63))]
    assert sixty_three[0] == 16  # mc_sim_7b_63 has depth 4


@pytest.mark.parametrize("name", ENGINE_RULES)
def test_every_engine_loads_plain_decoding_and_says_where_its_rules_are_from(name):
    assert allowed(name, chain(0))
    assert engine_rules(name).constraints.name == name
    assert len(engine_rules(name).source) > 40


def test_dynamic_trees_keep_common_rules_too():
    tree = DynamicTree(3, 4, 15)
    for rule, word in (
        (Constraints(max_nodes=14), "max_nodes"),
        (Constraints(max_depth=2), "max_depth"),
        (Constraints(max_children=3), "max_children"),
        (Constraints(top_k=3), "top_k"),
        (Constraints(max_width=8), "max_width"),
        (Constraints(rows_multiple=5), "multiple of 5"),
        (Constraints(dynamic=None), "no dynamic tree"),
        (Constraints(dynamic=DynamicRules(linear_capacity=True)), "asks for 3 to 12"),
    ):
        assert [word in broken for broken in rule.violations(tree)] == [True]
    assert Constraints(max_nodes=15, max_depth=3, max_children=4, top_k=4, rows_multiple=16).allows(tree)


def test_rules_from_the_command_line():
    assert parse_rules(None) == UNCONSTRAINED
    assert parse_rules("contiguous, rows-multiple=8,max-children=4") == Constraints(
        contiguous=True, rows_multiple=8, max_children=4
    )
    both = parse_rules("top-k=5,rows-multiple=6,uniform", "medusa")
    assert (both.top_k, both.contiguous, both.uniform, both.rows_multiple, both.name) == (5, True, True, 6, "medusa")
    assert parse_rules("top-k=20", "medusa").top_k == 10
    assert parse_rules("rows-multiple=8").and_also(Constraints(rows_multiple=12)).rows_multiple == 24


@pytest.mark.parametrize("text", ["contigous", "contiguous=1", "max-children", "max-children=x", "rows-multiple=-8"])
def test_rules_that_cannot_be_read_are_refused(text):
    with pytest.raises(InputError, match="no rule"):
        parse_rules(text)


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="max_children of 0"):
        parse_rules("max-children=0")
    with pytest.raises(InputError, match="did you mean sglang"):
        engine_rules("sglan")


def test_filling_reaches_the_capacity_and_no_more():
    rng = np.random.default_rng(0)
    for _ in range(60):
        depth, children, width = rng.integers(1, 4), rng.integers(1, 4), rng.choice([None, 2, 3, 5])
        most = capacity(int(depth), children=int(children), max_width=width)
        tree = StaticTree()
        for size in rng.permutation(most + 1):
            if size >= tree.num_nodes:
                tree = fill(tree, int(size), max_depth=int(depth), children=int(children), max_width=width)
                assert tree.num_nodes == size
                assert Constraints(max_depth=int(depth), max_children=int(children), max_width=width).allows(tree)
