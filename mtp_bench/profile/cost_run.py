"""A run of ``measure-cost``: the surface, its floors, and the manifest; resumes after being killed at any moment."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mtp_bench.cost import VERIFY, CostTable, floor_warnings
from mtp_bench.errors import InputError
from mtp_bench.files import remove_leftovers, sha256_json
from mtp_bench.heads.base import HeadsInfo
from mtp_bench.heads.kinds import AnyHeads
from mtp_bench.models.base import BaseModel
from mtp_bench.profile.accounting import measure_limits
from mtp_bench.profile.environment import environment, machine_key, model_facts, timestamp
from mtp_bench.profile.floors import with_floors
from mtp_bench.profile.surface import Surface, SurfaceOptions, measure_surface
from mtp_bench.profile.timings import TimingFolder
from mtp_bench.progress import say, warn
from mtp_bench.runs import RunFolder

PARTIAL = "cost.partial"


def run_measure_cost(
    base: BaseModel,
    heads: AnyHeads | None,
    heads_info: HeadsInfo | None,
    options: SurfaceOptions,
    run: RunFolder,
    command: str,
) -> dict[str, Any]:
    """Measure into ``run``; return the manifest. What is finished is kept, what is half done goes on.

    Args:
        command: the command line, for the manifest.

    Raises:
        InputError: ``run`` holds something else, or nothing could be measured.
    """
    facts = _facts(base, heads_info, options, command)
    earlier = run.claim(facts["key"], "costs of another model, machine or settings, or a profile")
    remove_leftovers(run.path)
    store = TimingFolder(run.path / PARTIAL, sha256_json([facts["key"], machine_key(base)]))
    if earlier and earlier.get("finished") and run.cost.exists():
        say(f"costs: keeping {run.cost}")
        store.discard()
        return earlier
    if earlier:
        say(f"resuming {run.path}")
    run.write_manifest(facts)
    limits = measure_limits(base.device, base.dtype)
    surface = measure_surface(base, heads, options, store)
    _refuse_nothing(surface, run)
    limits = limits.best(measure_limits(base.device, base.dtype))
    points = with_floors(surface.points, base, heads, limits)
    for warning in (*surface.left_out, *floor_warnings(points)):
        warn(warning)
    for point in points:
        if point.status != "ok":
            warn(f"cost of {point.place}: {point.status}")
    CostTable(tuple(points), source=str(run.cost)).to_csv(run.cost)
    facts |= {"device_limits": asdict(limits), "left_out": list(surface.left_out), "finished": timestamp()}
    run.write_manifest(facts)
    store.discard()
    return facts


def _refuse_nothing(surface: Surface, run: RunFolder) -> None:
    statuses = [point.status for point in surface.points if point.component == VERIFY]
    if "ok" not in statuses:
        found = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
        raise InputError(
            f"no cost could be measured: {'; '.join((found, *surface.left_out))}",
            where=str(run.path),
            fix="more --max-minutes, a quieter machine, or less --batch, --context and --max-rows",
        )


def _facts(base: BaseModel, heads_info: HeadsInfo | None, options: SurfaceOptions, command: str) -> dict[str, Any]:
    identity = {
        "model": model_facts(base),
        "heads": None if heads_info is None else heads_info.to_dict(),
        "options": asdict(options),
    }
    return {
        "kind": "cost",
        "key": sha256_json(identity),
        "created": timestamp(),
        "command": command,
        **identity,
        "environment": environment(base),
        "finished": None,
    }
