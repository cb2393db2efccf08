import csv
import json

import numpy as np
import pytest
from acceptance_cases import DATA, make_trace, published_accuracies, synthetic_trace, traces
from hypothesis import given

from mtp_bench.errors import InputError
from mtp_bench.trace import AcceptanceTable, merge_traces


def slow_counts(trace):
    """(n, n_conditional, hits, marginal_hits), cell by cell."""
    n, reached = np.zeros(trace.depth), np.zeros(trace.depth)
    hits, marginal = np.zeros((2, trace.depth, trace.top_k))
    for p in range(trace.num_prompts):
        start, end = trace.prompt_offsets[p : p + 2]
        for t in range(start, end):
            for d in range(1, trace.depth + 1):
                if t + d > end - 1:
                    continue
                n[d - 1] += 1
                rank = trace.ranks[t, d - 1]
                earlier = all(trace.ranks[t, e] >= 0 for e in range(d - 1))
                reached[d - 1] += earlier
                if rank >= 0:
                    marginal[d - 1, rank] += 1
                    hits[d - 1, rank] += earlier
    return n, reached, hits, marginal


@given(traces())
def test_counts_equal_counting_cell_by_cell(trace):
    measured = AcceptanceTable.from_trace(trace, resamples=10).measured
    for found, expected in zip(
        (measured.n, measured.n_conditional, measured.hits, measured.marginal_hits), slow_counts(trace), strict=True
    ):
        assert found.tolist() == expected.tolist()


@given(traces())
def test_rates_are_rates(trace):
    table = AcceptanceTable.from_trace(trace, resamples=10)
    m = table.measured
    for rates in (m.rate_unconditional, m.rate_conditional, m.marginal_hit_rate):
        known = rates[~np.isnan(rates)]
        assert ((known >= 0) & (known <= 1)).all()
        assert (np.nansum(rates, axis=1) <= 1 + 1e-9).all()
    assert (table.per_rank.sum(axis=1) <= 1 + 1e-9).all()
    assert np.isnan(m.rate_conditional[m.n_conditional == 0]).all()


@given(traces(max_prompts=8))
def test_shards_give_the_same_table(trace):
    shards = merge_traces([trace.select(range(s, trace.num_prompts, 4)) for s in range(4)])
    one, other = (AcceptanceTable.from_trace(t, resamples=5).measured for t in (trace, shards))
    assert one.hits.tolist() == other.hits.tolist()
    assert one.n_conditional.tolist() == other.n_conditional.tolist()


def test_rates_by_hand():
    # One text of 4 rows. Depth 1 has true tokens at rows 0-2, depth 2 at rows 0-1.
    trace = make_trace([[[0, 1], [-1, 0], [1, -1], [-1, -1]]], top_k=2, depth=2)
    m = AcceptanceTable.from_trace(trace).measured
    assert m.n.tolist() == [3, 2]
    assert m.n_conditional.tolist() == [3, 1]
    assert m.rate_conditional.tolist() == [[1 / 3, 1 / 3], [0, 1]]
    assert m.rate_unconditional.tolist() == [[1 / 3, 1 / 3], [0, 0.5]]
    assert m.marginal_hit_rate.tolist() == [[1 / 3, 1 / 3], [0.5, 0.5]]


def test_intervals_surround_the_rates():
    m = AcceptanceTable.from_trace(synthetic_trace(2)).measured
    frequent = m.hits > 200
    assert frequent.sum() >= 4
    assert (m.ci_low <= m.rate_conditional)[frequent].all()
    assert (m.rate_conditional <= m.ci_high)[frequent].all()
    assert (m.ci_high - m.ci_low)[0, 0] > 0.01


def test_one_prompt_has_no_intervals():
    assert np.isnan(AcceptanceTable.from_trace(synthetic_trace(2, prompts=1)).measured.ci_low).all()


def test_the_csv_is_deterministic_and_complete(tmp_path):
    trace = synthetic_trace(2)
    for name in ("a.csv", "b.csv"):
        AcceptanceTable.from_trace(trace, seed=1).to_csv(tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with open(tmp_path / "a.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == trace.depth * trace.top_k
    assert list(rows[0])[:3] == ["depth", "rank", "n"]
    assert float(rows[0]["rate_conditional"]) == pytest.approx(
        int(rows[0]["hits"]) / int(rows[0]["n_conditional"]), abs=1e-6
    )
    assert float(rows[0]["ci_low"]) < float(rows[0]["rate_conditional"]) < float(rows[0]["ci_high"])


def test_the_csv_reads_back(tmp_path):
    table = AcceptanceTable.from_trace(synthetic_trace(2))
    table.to_csv(tmp_path / "acceptance.csv")
    assert np.allclose(AcceptanceTable.load(tmp_path / "acceptance.csv").per_rank, table.per_rank, atol=1e-6)


def test_rates_without_observations_stay_empty(tmp_path):
    AcceptanceTable.from_trace(make_trace([[[-1, -1], [-1, -1]]], top_k=1, depth=2)).to_csv(tmp_path / "a.csv")
    with open(tmp_path / "a.csv") as stream:
        assert [row["rate_conditional"] for row in csv.DictReader(stream)] == ["0.000000", ""]


# ----- published tables


def write(path, document):
    path.write_text(json.dumps(document))
    return path


def test_both_kinds_give_the_same_rates(tmp_path):
    cumulative = json.loads((DATA / "medusa_head_accuracy.json").read_text())["vicuna"]["7b"]
    by_rank = published_accuracies("7b").tolist()
    one = AcceptanceTable.from_json(write(tmp_path / "c.json", {"kind": "cumulative", "rates": cumulative}))
    other = AcceptanceTable.from_json(write(tmp_path / "r.json", {"kind": "per_rank", "rates": by_rank}))
    assert np.allclose(one.per_rank, other.per_rank)
    assert one.per_rank[0, 0] == pytest.approx(0.5604, abs=5e-5)


def test_short_rows_are_filled_up(tmp_path):
    table = AcceptanceTable.load(write(tmp_path / "a.json", {"kind": "per_rank", "rates": [[0.5, 0.2], [0.4]]}))
    assert table.per_rank.tolist() == [[0.5, 0.2], [0.4, 0.0]]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"rates": [[0.5]]}, "kind is not stated"),
        ({"kind": "percent", "rates": [[0.5]]}, "'percent'"),
        ({"kind": "per_rank"}, "#/rates"),
        ({"kind": "per_rank", "rates": []}, "#/rates"),
        ({"kind": "per_rank", "rates": "0.5"}, "#/rates"),
        ({"kind": "per_rank", "rates": [[0.5], []]}, "#/rates/1"),
        ({"kind": "per_rank", "rates": [0.5]}, "#/rates/0"),
        ({"kind": "per_rank", "rates": [[0.5, 1.5]]}, "#/rates/0/1"),
        ({"kind": "per_rank", "rates": [[-0.1]]}, "#/rates/0/0"),
        ({"kind": "per_rank", "rates": [[True]]}, "#/rates/0/0"),
        ({"kind": "per_rank", "rates": [["x"]]}, "#/rates/0/0"),
        ({"kind": "per_rank", "rates": [[0.5, 0.67, 0.73]]}, "is the kind cumulative"),
        ({"kind": "cumulative", "rates": [[0.5, 0.7], [0.4, 0.2]]}, "#/rates/1/1"),
        ({"schema_version": "2.0", "kind": "per_rank", "rates": [[0.5]]}, "not known"),
        ([[0.5]], "not a JSON object"),
    ],
)
def test_doubtful_tables_are_refused(tmp_path, document, message):
    with pytest.raises(InputError, match=message):
        AcceptanceTable.from_json(write(tmp_path / "a.json", document))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth,rank\n1,0\n", "columns missing: rate_conditional"),
        ("depth,rank,rate_conditional\n1,0,high\n", ":2"),
        ("depth,rank,rate_conditional\n1,0,0.5\n0,0,0.5\n", ":3"),
        ("depth,rank,rate_conditional\n1,0,1.5\n", ":2"),
        ("depth,rank,rate_conditional\n", "no rates"),
    ],
)
def test_damaged_csv_is_refused(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        AcceptanceTable.load(tmp_path / "a.csv")
