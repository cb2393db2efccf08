"""What ``optimize-tree`` and ``evaluate`` work on: a run's trace and costs, or files given in their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_bench.errors import InputError

if TYPE_CHECKING:
    from mtp_bench.cost import CostTable
    from mtp_bench.runs import RunFolder
    from mtp_bench.trace import AcceptanceTable, RankTrace


@dataclass(frozen=True)
class Measured:
    """Acceptance and costs, and where they come from.

    Attributes:
        run: the run folder, None when files were given instead.
        mean_context: cached tokens in the middle of the run's answers, None when unknown.
    """

    acceptance: RankTrace | AcceptanceTable
    cost: CostTable | None
    run: RunFolder | None
    mean_context: int | None
    provenance: dict[str, Any]

    @property
    def method(self) -> str:
        """Which kind of heads the acceptance is of."""
        return str(self.provenance.get("heads", {}).get("method") or "medusa")


def read_measured(profile: str | None, acceptance: Path | None, cost: Path | None) -> Measured:
    """Read what the options name; a file given replaces the run's own.

    Raises:
        InputError: something is missing or damaged.
    """
    from mtp_bench.cost import CostTable
    from mtp_bench.runs import open_run
    from mtp_bench.trace import AcceptanceTable, RankTrace

    run: RunFolder | None = None
    trace: RankTrace | None = None
    if profile is not None and profile.endswith(".npz"):
        trace = RankTrace.load(profile)
    elif profile is not None or acceptance is None:
        run = open_run(profile)
        if acceptance is None:
            trace = RankTrace.load(run.trace)
    table = None
    if acceptance is not None:
        table = (
            AcceptanceTable.from_csv(acceptance)
            if acceptance.suffix == ".csv"
            else AcceptanceTable.from_json(acceptance)
        )
    manifest = run.read_manifest() if run is not None and run.manifest.exists() else {}
    costs = None
    if cost is not None:
        costs = CostTable.from_csv(cost)
    elif run is not None and run.cost.exists():
        costs = CostTable.from_csv(run.cost)
    measured = table if table is not None else trace
    if measured is None:
        raise InputError("nothing to search on", where="--profile", fix="name a run, a trace.npz, or --acceptance FILE")
    context = manifest.get("text", {}).get("mean_context")
    return Measured(measured, costs, run, None if context is None else round(context), _provenance(manifest, measured))


def _provenance(manifest: dict[str, Any], measured: Any) -> dict[str, Any]:
    from mtp_bench import __version__

    facts: dict[str, Any] = {"acceptance_rule": "greedy", "mtp_bench": __version__}
    if manifest:
        facts |= {
            "model": {key: manifest["model"][key] for key in ("name", "sha256", "dtype", "attention")},
            "heads": {key: manifest.get("heads", {}).get(key) for key in ("method", "hash", "base_model", "warnings")},
            "prompts": manifest.get("prompts"),
            "environment": manifest.get("environment"),
        }
    else:
        facts["acceptance"] = getattr(measured, "source", "") or "trace"
    return facts
