"""Which plots a run can have: each builder takes what was read and returns a plot, or None with nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mtp_bench.cost import CostTable
from mtp_bench.errors import InputError, MtpBenchError
from mtp_bench.report import (
    acceptance,
    budget,
    chosen_size,
    costs,
    history,
    operating_range,
    overfit,
    pareto,
    prediction,
    schedule,
    sizes,
    throughput,
    training,
    trees,
)
from mtp_bench.report import measured as race
from mtp_bench.report.inputs import RunInputs
from mtp_bench.topology import Path, StaticTree, chain, resolve
from mtp_bench.trace import AcceptanceTable

COMPARED = ("mc_sim_7b_63", "vicuna_7b_stage2")


@dataclass(frozen=True, eq=False)
class Plot:
    """A drawn figure and the data behind it.

    Args:
        name: of its files.
        title: for the page and for readers who cannot see it.
        figure: not yet saved.
        frame: what the CSV beside it holds.
    """

    name: str
    title: str
    figure: Figure
    frame: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Omitted:
    """A plot that could not be made, and what it lacks."""

    title: str
    reason: str


Builder = Callable[[RunInputs], Plot | None]


def _acceptance(inputs: RunInputs) -> Plot | None:
    table = inputs.acceptance
    if table is None and inputs.trace is not None:
        table = pd.DataFrame(AcceptanceTable.from_trace(inputs.trace, resamples=1).rows()).astype(
            {"rate_conditional": float}
        )
    if table is None:
        return None
    grid = acceptance.acceptance_grid(table)
    return Plot("acceptance", ACCEPTANCE, acceptance.draw_acceptance(grid), grid.frame())


def _categories(inputs: RunInputs) -> Plot | None:
    grids = acceptance.category_grids(inputs.trace) if inputs.trace is not None else ()
    if not grids:
        return None
    frame = pd.concat([grid.frame() for grid in grids], ignore_index=True)
    return Plot("acceptance_by_category", CATEGORIES, acceptance.draw_categories(grids), frame)


def _costs(inputs: RunInputs) -> Plot | None:
    if not inputs.cost or not any(p.ok and p.component == "verify" for p in inputs.cost):
        return None
    found = inputs.optimize or {}
    chosen = None
    if found.get("num_nodes"):
        place: dict[str, Any] = {"context": found.get("context"), "batch": int(found.get("batch") or 1)}
        chosen = costs.Chosen(int(found["num_nodes"]) + 1, int(found.get("depth") or 0), **place)
    curves = costs.cost_curves(inputs.cost, chosen)
    return Plot("cost", COST, costs.draw_costs(curves), curves.frame)


def _sizes(inputs: RunInputs) -> Plot | None:
    if inputs.optimize is None:
        return None
    named: tuple[sizes.NamedPoint, ...] = ()
    if inputs.trace is not None:
        found = inputs.optimize
        place: dict[str, Any] = {"context": found.get("context"), "batch": int(found.get("batch") or 1)}
        named = sizes.named_points(_compared(inputs), inputs.trace, _table(inputs), **place)
    curve = sizes.size_curve(inputs.optimize, named)
    return None if curve is None else Plot("sizes", SIZES, sizes.draw_sizes(curve), curve.export())


def _chosen_size(inputs: RunInputs) -> Plot | None:
    data = chosen_size.chosen_size_data(inputs.optimize or {})
    return None if data is None else Plot("chosen_size", CHOSEN, chosen_size.draw_chosen_size(data), data.frame)


def _overfit(inputs: RunInputs) -> Plot | None:
    data = overfit.overfit_data(inputs.optimize or {})
    return None if data is None else Plot("overfit", OVERFIT, overfit.draw_overfit(data), data.frame)


def _tree(inputs: RunInputs) -> Plot | None:
    tree = chosen_tree(inputs)
    if tree is None or not tree.num_nodes:
        return None
    values: Mapping[Path, float] | None = None
    left_out: Mapping[Path, float] = {}
    if inputs.trace is not None:
        values, left_out = trees.path_values(inputs.trace, tree), trees.first_left_out(inputs.trace, tree)
    elif inputs.acceptance is not None:
        values = trees.table_values(acceptance.acceptance_grid(inputs.acceptance).rates, tree)
    drawing = trees.lay_out(tree, values, left_out)
    return Plot("tree", TREE, trees.draw_tree(drawing), drawing.frame())


def _prediction(inputs: RunInputs) -> Plot | None:
    data = prediction.predictions(inputs.bench, inputs.bench_summary)
    return None if data is None else Plot("prediction", PREDICTION, prediction.draw_predictions(data), data.export())


def _measured(inputs: RunInputs) -> Plot | None:
    result = (inputs.optimize or {}).get("measured")
    if not isinstance(result, Mapping):
        return None
    frame = race.measured_frame(result)
    return Plot(race.NAME, race.TITLE, race.draw_measured(frame, result), frame)


def _budget(inputs: RunInputs) -> Plot | None:
    frame = budget.budget_frame(inputs.bench_summary) if inputs.bench_summary is not None else None
    return None if frame is None else Plot("step_budget", BUDGET, budget.draw_budget(frame), frame)


def _throughput(inputs: RunInputs) -> Plot | None:
    if inputs.throughput is None:
        return None
    frame = throughput.throughput_frame(inputs.throughput)
    return Plot("throughput", THROUGHPUT, throughput.draw_throughput(frame), frame)


def _schedule(inputs: RunInputs) -> Plot | None:
    if inputs.schedule is None:
        return None
    frame = schedule.schedule_frame(inputs.schedule)
    return Plot("schedule", SCHEDULE, schedule.draw_schedule(frame, inputs.schedule["batch_schedule"]), frame)


def _operating_range(inputs: RunInputs) -> Plot | None:
    if inputs.operating_range is None:
        return None
    frame = operating_range.operating_range_frame(inputs.operating_range)
    return Plot("operating_range", RANGE, operating_range.draw_operating_range(frame), frame)


def _pareto(inputs: RunInputs) -> Plot | None:
    if inputs.pareto is None:
        return None
    frame = pareto.pareto_frame(inputs.pareto)
    return Plot("pareto", PARETO, pareto.draw_pareto(frame), frame)


def _history(inputs: RunInputs) -> Plot | None:
    data = history.optuna_history(inputs.optimize) if inputs.optimize is not None else None
    return None if data is None else Plot("optuna", OPTUNA, history.draw_history(data), data.frame)


def _loss(inputs: RunInputs) -> Plot | None:
    curves = training.training_curves(inputs.loss, inputs.held_out)
    if curves is None:
        return None
    parts = [
        frame.assign(log=name)
        for name, frame in (("loss", curves.loss), ("held out", curves.held_out))
        if frame is not None
    ]
    return Plot("training", TRAINING, training.draw_training(curves), pd.concat(parts, ignore_index=True))


ACCEPTANCE = "Acceptance by depth and rank"
CATEGORIES = "Acceptance by category"
COST = "Cost of a verification pass"
SIZES = "Tokens per step and speedup by tree size"
CHOSEN = "How firm the chosen size is"
OVERFIT = "Train against held-out tokens per step"
TREE = "The chosen tree"
PREDICTION = "Predicted against measured speed"
BUDGET = "Where a step's time goes"
THROUGHPUT = "Throughput against batch size"
SCHEDULE = "The best topology by batch size"
RANGE = "The best tree by batch size and context"
PARETO = "Latency of one user against total throughput"
OPTUNA = "Optuna's search beside the exact optimum"
TRAINING = "Training of the heads"

BUILDERS: tuple[tuple[str, Builder, str], ...] = (
    (PREDICTION, _prediction, "bench.csv or bench.json with predictions (mtp-bench bench)"),
    (race.TITLE, _measured, "optimize.json with a race (mtp-bench optimize-tree --measure)"),
    (BUDGET, _budget, "bench.json with the parts of a step (mtp-bench bench)"),
    (THROUGHPUT, _throughput, "throughput.json (mtp-bench bench --batch 1,4,8)"),
    (SCHEDULE, _schedule, "schedule.json (mtp-bench optimize-tree --batch 1,4,8)"),
    (RANGE, _operating_range, "operating_range.json (mtp-bench optimize-tree --batch 1,4,8 --context 512,4096)"),
    (PARETO, _pareto, "pareto.json (mtp-bench optimize-tree --batch 1,4,8 --objective pareto)"),
    (SIZES, _sizes, "optimize.json with its curve (mtp-bench optimize-tree)"),
    (CHOSEN, _chosen_size, "optimize.json with resampled sizes (mtp-bench optimize-tree on a trace)"),
    (OVERFIT, _overfit, "optimize.json with held-out estimators (mtp-bench optimize-tree on a trace)"),
    (TREE, _tree, "topology.json or optimize.json with a tree of at least one node (mtp-bench optimize-tree)"),
    (ACCEPTANCE, _acceptance, "acceptance.csv or trace.npz (mtp-bench profile)"),
    (CATEGORIES, _categories, "trace.npz with at least two categories (mtp-bench profile)"),
    (COST, _costs, "cost.csv (mtp-bench profile or measure-cost)"),
    (OPTUNA, _history, "optimize.json with Optuna trials (mtp-bench optimize-tree)"),
    (TRAINING, _loss, "loss.csv or heldout.csv (mtp-bench train-heads; name the folder with --training)"),
)


def build_plots(inputs: RunInputs) -> tuple[list[Plot], list[Omitted]]:
    """Every plot that the inputs allow, and what the others lack."""
    plots: list[Plot] = []
    omitted: list[Omitted] = []
    for title, builder, needs in BUILDERS:
        try:
            plot = builder(inputs)
        except (MtpBenchError, KeyError, TypeError, ValueError) as error:
            # A file of another program or version may hold anything; one plot less is no reason to lose the rest.
            omitted.append(Omitted(title, f"its data cannot be used: {type(error).__name__}: {error}"))
            continue
        if plot is None:
            omitted.append(Omitted(title, f"needs {needs}"))
        else:
            plots.append(plot)
    return plots, omitted


def chosen_tree(inputs: RunInputs) -> StaticTree | None:
    """The tree of ``topology.json``, else the paths of ``optimize.json``."""
    if inputs.tree is not None:
        return inputs.tree
    paths: Any = (inputs.optimize or {}).get("paths")
    return StaticTree.from_paths(paths) if isinstance(paths, list) else None


def _compared(inputs: RunInputs) -> dict[str, StaticTree]:
    assert inputs.trace is not None  # asked for only then
    found = {f"chain:{inputs.trace.depth}": chain(inputs.trace.depth)}
    for name in COMPARED:
        try:
            found[name] = resolve(name)
        except InputError:
            continue  # not shipped in this installation
    return found


def _table(inputs: RunInputs) -> CostTable | None:
    try:
        return CostTable(inputs.cost) if inputs.cost else None
    except InputError:
        return None  # several devices: nothing says which one the curve is for
