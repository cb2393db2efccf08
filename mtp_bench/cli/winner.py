"""What a search for one tree leaves: the topology file that other engines load, and the run's optimize.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtp_bench.cli.acceptance import Measured
    from mtp_bench.search.evaluate import Evaluation
    from mtp_bench.topology import Topology


def write_winner(
    measured: Measured,
    topology: Topology,
    expected: dict[str, Any],
    limits: dict[str, Any],
    document: dict[str, Any],
    out: Path | None,
) -> None:
    """Write the topology with what is ``expected`` of it, and ``document``; note in it where the topology went.

    Args:
        limits: largest number of nodes and depth that were searched.
        out: the topology's file. Left out it is the run's, and only then the run's optimize.json is written too: a
            search that is saved elsewhere leaves the run's two files as they are, and in step with each other.
    """
    from mtp_bench.files import write_json
    from mtp_bench.topology import TopologyDocument

    run = measured.run
    path = out or (run.topology if run else None)
    if path is not None:
        TopologyDocument(topology, measured.method, expected, measured.provenance, limits).write(path)
        document["topology"] = str(path)
    if run is not None and out is None:
        write_json(run.optimize, {"schema": "mtp-bench/optimize", "version": 1, **document})


def expected_figures(one: Evaluation) -> dict[str, Any]:
    """The ``expected`` object of a topology file, in its schema's names and units, as it was predicted."""
    expected: dict[str, Any] = {"acceptance_length_incl_bonus": round(one.tokens_per_step, 6)}
    if one.tokens_per_step_ci is not None:
        expected["acceptance_length_ci95"] = [round(value, 6) for value in one.tokens_per_step_ci]
    if one.step_ms is not None and one.tokens_per_s is not None and one.speedup_predicted is not None:
        expected["step_seconds"] = {"predicted": one.step_ms / 1e3}
        expected["tokens_per_second"] = one.tokens_per_s
        expected["speedup_vs_autoregressive"] = one.speedup_predicted
    return expected
