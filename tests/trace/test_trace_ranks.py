import io
import zipfile

import numpy as np
import pytest
from acceptance_cases import make_trace, synthetic_trace, traces
from hypothesis import given
from hypothesis import strategies as st

from mtp_bench.errors import InputError
from mtp_bench.trace import RankTrace, accepted_lengths, merge_traces


def small_trace():
    return make_trace([[[0, 1], [2, -1], [1, 0]], [[0, 0], [1, 1]]], top_k=3, depth=2, categories=["coding", "math"])


def same(one, other):
    return (
        np.array_equal(one.ranks, other.ranks)
        and np.array_equal(one.prompt_offsets, other.prompt_offsets)
        and (one.top_k, one.prompt_ids, one.categories) == (other.top_k, other.prompt_ids, other.categories)
    )


def test_a_saved_trace_comes_back(tmp_path):
    trace = small_trace()
    trace.save(tmp_path / "trace.npz")
    assert same(RankTrace.load(tmp_path / "trace.npz"), trace)


def test_equal_traces_are_equal_files(tmp_path):
    for name in ("a.npz", "b.npz"):
        small_trace().save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_digest_tells_traces_apart():
    trace = small_trace()
    assert trace.digest == small_trace().digest
    assert trace.digest != trace.select([1, 0]).digest


def test_numpy_alone_can_read_it(tmp_path):
    small_trace().save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as arrays:
        assert arrays["ranks"].dtype == np.int16
        assert arrays["prompt_offsets"].dtype == np.int64
        assert arrays["prompt_offsets"].tolist() == [0, 3, 5]


def test_a_bare_trace_loads(tmp_path):
    trace = small_trace()
    np.savez(tmp_path / "bare.npz", ranks=trace.ranks.astype(np.int64), prompt_offsets=trace.prompt_offsets)
    loaded = RankTrace.load(tmp_path / "bare.npz")
    assert loaded.top_k == int(trace.ranks.max()) + 1
    assert loaded.categories == ("all", "all")
    assert len(set(loaded.prompt_ids)) == 2
    assert np.array_equal(loaded.ranks, trace.ranks)


def test_a_bare_trace_keeps_its_top_k(tmp_path):
    trace = small_trace()
    np.savez(tmp_path / "bare.npz", ranks=trace.ranks, prompt_offsets=trace.prompt_offsets, top_k=np.array(9))
    assert RankTrace.load(tmp_path / "bare.npz").top_k == 9


def arrays_of(trace):
    buffer = {"ranks": trace.ranks, "prompt_offsets": trace.prompt_offsets, "top_k": np.array(trace.top_k)}
    return buffer | {"prompt_ids": np.array(trace.prompt_ids), "categories": np.array(trace.categories)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": None}, "no array 'ranks'"),
        ({"prompt_offsets": None}, "no array 'prompt_offsets'"),
        ({"ranks": np.zeros((5, 2))}, "must be integers"),
        ({"ranks": np.zeros(5, dtype=np.int16)}, "must be integers"),
        ({"ranks": np.full((5, 2), -2, dtype=np.int16)}, "must lie in -1..2"),
        ({"ranks": np.full((5, 2), 3, dtype=np.int16)}, "must lie in -1..2"),
        ({"ranks": np.zeros((5, 2), dtype=np.int16)}, "past the end"),
        ({"prompt_offsets": np.array([0, 3, 4])}, "rise from 0 to 5"),
        ({"prompt_offsets": np.array([1, 3, 5])}, "rise from 0 to 5"),
        ({"prompt_offsets": np.array([0, 6, 5])}, "rise from 0 to 5"),
        ({"prompt_offsets": np.array([[0, 5]])}, "prompt_offsets must be integers"),
        ({"prompt_offsets": np.zeros(0, dtype=np.int64)}, "prompt_offsets must be integers"),
        ({"top_k": np.array(0)}, "top_k"),
        ({"top_k": np.array([1, 2])}, "damaged"),
        ({"prompt_ids": np.array(["only one"])}, "1 prompt_ids for 2 prompts"),
        ({"categories": np.array(["a", "b", "c"])}, "3 categories for 2 prompts"),
        ({"schema": np.array("mtp-bench/trace 2.0")}, "newer version"),
        ({"schema": np.array("mtp-bench/trace 1.2")}, "newer version"),
        ({"schema": np.array("somebody/else 1.0")}, "schema is"),
        ({"schema": np.array("mtp-bench/trace")}, "schema is"),
    ],
)
def test_impossible_contents_are_named(tmp_path, change, message):
    arrays = {k: v for k, v in (arrays_of(small_trace()) | change).items() if v is not None}
    np.savez(tmp_path / "trace.npz", **arrays)
    with pytest.raises(InputError, match=message) as error:
        RankTrace.load(tmp_path / "trace.npz")
    assert "trace.npz" in str(error.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(InputError) as error:
        RankTrace(np.full((2, 1), 7, dtype=np.int16), np.array([0, 2]), 3, ("a", "b"), ())
    assert "ranks must lie" in str(error.value)
    assert "2 prompt_ids" in str(error.value)
    assert "0 categories" in str(error.value)


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "trace.npz"
    synthetic_trace(0).save(path)
    whole = path.read_bytes()
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (b"", b"not a zip", whole[: len(whole) // 2], bytes(flipped), array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(InputError):
            RankTrace.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        RankTrace.load(tmp_path / "none.npz")


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "evil.npz", ranks=np.array([{"a": 1}], dtype=object), prompt_offsets=np.array([0, 1]))
    with pytest.raises(InputError, match="damaged"):
        RankTrace.load(tmp_path / "evil.npz")


def test_arrays_cannot_be_changed():
    ranks = np.array([[0], [-1]], dtype=np.int16)
    trace = RankTrace(ranks, np.array([0, 2]), 1, ("a",), ("all",))
    ranks[0, 0] = -1  # the caller's array is not the trace's
    assert trace.ranks[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        trace.ranks[0, 0] = -1


def test_select_takes_prompts_in_order():
    part = small_trace().select([1, 0])
    assert part.prompt_ids == ("p1", "p0")
    assert part.categories == ("math", "coding")
    assert part.prompt_offsets.tolist() == [0, 2, 5]
    assert part.ranks.tolist() == [[0, -1], [-1, -1], [0, 1], [2, -1], [-1, -1]]
    assert small_trace().select([]).num_prompts == 0
    with pytest.raises(InputError):
        small_trace().select([2])


@given(traces(max_prompts=12, max_length=3), st.integers(0, 5))
def test_halves_split_every_category(trace, seed):
    train, held_out = trace.split_halves(seed)
    assert sorted([*train, *held_out]) == list(range(trace.num_prompts))
    assert 0 <= len(train) - len(held_out) <= 1
    for name in set(trace.categories):
        sizes = [sum(trace.categories[p] == name for p in half) for half in (train, held_out)]
        assert abs(sizes[0] - sizes[1]) <= 1


def test_the_split_depends_on_the_seed_alone():
    trace = synthetic_trace(0)
    first, again, other = (trace.split_halves(seed)[0].tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


@given(traces(max_prompts=8))
def test_merging_shards_gives_the_whole(trace):
    shards = [trace.select(range(s, trace.num_prompts, 4)) for s in range(4)]
    merged = merge_traces(shards)
    order = [p for s in range(4) for p in range(s, trace.num_prompts, 4)]
    assert same(merged, trace.select(order))


def test_shards_that_do_not_belong_together_are_refused():
    trace = small_trace()
    with pytest.raises(InputError, match="more than one shard: p0, p1"):
        merge_traces([trace, trace])
    assert merge_traces([trace, trace], allow_duplicates=True).num_prompts == 4
    with pytest.raises(InputError, match="depth"):
        merge_traces([trace, make_trace([[[0]]], top_k=3, depth=1)])
    with pytest.raises(InputError, match="top_k"):
        merge_traces([trace, make_trace([[[0, 0]]], top_k=4, depth=2)])
    with pytest.raises(InputError, match="nothing"):
        merge_traces([])


def test_an_empty_trace_is_a_trace():
    trace = make_trace([], top_k=2, depth=3)
    assert (trace.num_prompts, trace.num_positions, trace.num_starts) == (0, 0, 0)
    assert accepted_lengths(trace, trace_tree()).tolist() == []


def trace_tree():
    from mtp_bench.topology import chain

    return chain(2)
