"""The tables of the page: plain rows of text, made from what a run folder holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtp_bench.report.inputs import RunInputs
from mtp_bench.report.training import training_curves

UNKNOWN = "-"
MOST_LETTERS = 400  # of a value in the environment tables
MOST_MEASURED = 3  # trees in the headline; the table has all


@dataclass(frozen=True, slots=True)
class Table:
    """Headers and rows of text; the first column names the row."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def build_tables(inputs: RunInputs) -> list[Table]:
    """All tables with at least one row."""
    tables = [_bench(inputs), _optimum(inputs), _margins(inputs), _training(inputs), *_manifest(inputs)]
    return [table for table in tables if table.rows]


def headline(inputs: RunInputs) -> list[str]:
    """What was found, in a sentence or two each; empty when nothing was."""
    lines = []
    found = inputs.optimize or {}
    if found.get("num_nodes") == 0:
        lines.append("Do not speculate: on this machine no tree is faster than plain decoding.")
    elif found.get("num_nodes"):
        tokens = _value(found, "tokens_per_step")
        speedup = _value(found, "speedup_predicted", "x")
        lines.append(
            f"{_question(found)}: {found['num_nodes']} nodes, depth {found.get('depth', UNKNOWN)}, "
            f"{tokens} tokens_per_step, predicted speedup {speedup}."
        )
    measured = [tree for tree in _trees(inputs) if isinstance(tree.get("speedup"), (int, float))]
    for tree in sorted(measured, key=lambda tree: -float(tree["speedup"]))[:MOST_MEASURED]:
        check = {True: ", lossless", False: ", NOT lossless"}.get(tree.get("lossless"), "")  # type: ignore[arg-type]
        name = _tree_name(tree, "the tree")
        lines.append(f"Measured with {name}: speedup {_value(tree, 'speedup', 'x')} over plain decoding{check}.")
    return lines


def _question(found: Mapping[str, Any]) -> str:
    """What the tree is the best for."""
    if found.get("objective") == "worst-category":
        return "Best tree for the slowest category"
    return "Best tree with weighted categories" if found.get("weights") else "Best tree"


def _trees(inputs: RunInputs) -> list[Mapping[str, Any]]:
    return [tree for tree in (inputs.bench_summary or {}).get("trees") or () if isinstance(tree, Mapping)]


def _bench(inputs: RunInputs) -> Table:
    headers = (
        "tree", "N", "tokens_per_step", "tokens/s", "predicted tokens/s", "error",
        "speedup over N = 0", "speedup over HF generate", "lossless",
    )  # fmt: skip
    baseline = (inputs.bench_summary or {}).get("baseline") or {}
    arms = [(f"baseline: {name}", arm) for name, arm in baseline.items() if isinstance(arm, Mapping)]
    arms += [(_tree_name(tree, f"tree {place}"), tree) for place, tree in enumerate(_trees(inputs), start=1)]
    return Table("Measured", headers, tuple(_arm(name, arm) for name, arm in arms))


def _arm(name: str, arm: Mapping[str, Any]) -> tuple[str, ...]:
    error, over_hf = arm.get("prediction_error"), arm.get("speedup_over_hf")
    hf = {"hf": over_hf["value"], "hf_ci": over_hf.get("ci")} if isinstance(over_hf, Mapping) else {}
    return (
        name,
        _text(arm.get("num_nodes", 0)),
        _value(arm, "tokens_per_step"),
        _value(arm, "tokens_per_s"),
        _number(arm.get("predicted_tokens_per_s")),
        f"{100 * error:+.1f}%" if isinstance(error, (int, float)) else UNKNOWN,
        _value(arm, "speedup", "x"),
        _value(hf, "hf", "x"),
        _lossless(arm),
    )


def _lossless(arm: Mapping[str, Any]) -> str:
    """``yes``, or how many runs diverged and how many of them at a near-tie, where rounding explains it."""
    if not isinstance(arm.get("lossless"), bool):
        return UNKNOWN
    text = "yes" if arm["lossless"] else "NO"
    if arm.get("divergences"):
        ties = arm.get("divergences_at_near_ties")
        of = f" of {_text(arm['runs'])} runs" if "runs" in arm else ""
        text += f" ({_text(arm['divergences'])}{of} diverge" + (f", {_text(ties)} at a near-tie)" if ties else ")")
    return text


def _tree_name(tree: Mapping[str, Any], otherwise: str) -> str:
    return str(tree.get("tree") or tree.get("topology") or otherwise)


def _optimum(inputs: RunInputs) -> Table:
    found = inputs.optimize or {}
    rows = [
        (name, _value(found, key, unit))
        for name, key, unit in (
            ("tokens_per_step (replay)", "tokens_per_step", ""),
            ("predicted speedup", "speedup_predicted", "x"),
            ("step, ms", "step_ms", ""),
        )
        if found.get(key) is not None
    ]
    held_out = found.get("held_out") or {}
    for key in ("held_out_tokens_per_step", "held_out_speedup", "optimism"):
        if held_out.get(key) is not None:
            rows.append((key, _value(held_out, key)))
    return Table("The best tree", ("figure", "value [95% interval]"), tuple(rows))


def _margins(inputs: RunInputs) -> Table:
    exact = (inputs.optimize or {}).get("exact") or {}
    rows = []
    for title, keys in (("last node kept", ("last_kept",)), ("first node left out", ("first_left_out", "first_out"))):
        node = next((exact[key] for key in keys if isinstance(exact.get(key), Mapping)), None)
        if node is not None:
            path = " ".join(map(str, node.get("path") or ()))
            pays = {True: "yes", False: "no"}.get(node.get("pays"), UNKNOWN)
            rows.append((title, path, _number(node.get("value"), 5), _number(node.get("threshold"), 5), pays))
    headers = ("node", "path of ranks", "P(path accepted)", "needed to pay its rows", "pays")
    return Table("The marginal rule", headers, tuple(rows))


def _training(inputs: RunInputs) -> Table:
    curves = training_curves(None, inputs.held_out)
    if curves is None:
        return Table("Held-out accuracy of the heads", (), ())
    last = curves.last()
    rows = [(f"head {head}", *(f"{100 * value:.1f}%" for value in line)) for head, line in last.iterrows()]
    return Table("Held-out accuracy of the heads", ("", *map(str, last.columns)), tuple(rows))


def _manifest(inputs: RunInputs) -> Iterator[Table]:
    """One table per object of ``run.json``, and one of its own plain values."""
    manifest = inputs.manifest or {}
    plain = {key: value for key, value in manifest.items() if not isinstance(value, Mapping)}
    parts = {"Run": plain} | {str(k): v for k, v in manifest.items() if isinstance(v, Mapping)}
    for name, part in parts.items():
        title = name[:1].upper() + name[1:]
        yield Table(title, ("", ""), tuple((key, _text(value)) for key, value in _flat(part)))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _value(document: Mapping[str, Any], key: str, unit: str = "") -> str:
    """``2.08x [2.01, 2.15]``: a figure with the interval under ``key_ci``."""
    text = _number(document.get(key))
    bounds = document.get(f"{key}_ci")
    if text == UNKNOWN:
        return text
    if isinstance(bounds, (list, tuple)) and len(bounds) == 2:
        return f"{text}{unit} [{_number(bounds[0])}, {_number(bounds[1])}]"
    return text + unit


def _number(value: Any, digits: int = 3) -> str:
    """Three digits behind the point below 10, fewer above."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"


def _text(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    text = f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + " ..."
