"""Map and Pareto plot from made-up documents: what is drawn, what is marked, what stands in the CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from mtp_bench.report.operating_range import draw_operating_range, operating_range_frame, write_operating_range
from mtp_bench.report.pareto import draw_pareto, pareto_frame, write_pareto


def cell(batch: int, context: int, nodes: int, speedup: float, basis: str = "measured") -> dict[str, Any]:
    drafted = {
        "name": f"{nodes} nodes", "num_nodes": nodes, "depth": 2, "tokens_per_step": 1.8, "step_ms": 12.0,
        "speedup_predicted": speedup, "speedup_predicted_ci": [speedup - 0.05, speedup + 0.05],
    }  # fmt: skip
    name = drafted["name"] if speedup > 1 else "none"
    return {"batch": batch, "context": context, "name": name, "basis": basis, "best_that_drafts": drafted}


def range_document() -> dict[str, Any]:
    cells = [cell(1, 512, 15, 1.7), cell(1, 4096, 15, 1.6, "interpolated"), cell(16, 512, 2, 0.9)]
    return {"cells": cells, "without_costs": [{"batch": 16, "context": 4096}]}


def test_the_map_says_where_speculation_loses_and_what_was_interpolated(tmp_path: Path) -> None:
    frame = operating_range_frame(range_document())
    figure = draw_operating_range(frame)
    axes = figure.axes[0]
    hatched = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert [patch.get_xy() for patch in hatched] == [(-0.5, 0.5)], "batch 16 at context 512"
    dashed = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_linestyle() != "solid"
              and patch.get_linestyle() != "-"]  # fmt: skip
    assert [patch.get_xy() for patch in dashed] == [(0.56, -0.44)]
    texts = [text.get_text() for text in axes.texts]
    assert "N = 15, depth 2\n1.70x\n[1.65, 1.75]" in texts
    assert "no costs" in texts
    caption = figure._supxlabel.get_text()  # type: ignore[attr-defined]
    assert "Hatched" in caption
    assert "Dashed" in caption
    written = write_operating_range(range_document(), tmp_path)
    assert [path.name for path in written] == [f"operating_range.{end}" for end in ("png", "svg", "csv")]
    table = pd.read_csv(written[-1])
    assert table["basis"].tolist() == ["measured", "interpolated", "measured", "no costs"]
    assert table["speedup"].tolist()[:3] == [1.7, 1.6, 0.9]


def test_a_map_of_winners_only_promises_no_hatching() -> None:
    document = {"cells": [cell(1, 512, 15, 1.7)], "without_costs": []}
    figure = draw_operating_range(operating_range_frame(document))
    assert "Hatched" not in figure._supxlabel.get_text()  # type: ignore[attr-defined]


def point(batch: int, nodes: int, per_user: float) -> dict[str, Any]:
    return {
        "batch": batch, "name": f"{nodes} nodes", "num_nodes": nodes, "depth": 2, "tokens_per_step": 1.5,
        "step_ms": 10.0, "tokens_per_s_per_user": per_user, "tokens_per_s_total": batch * per_user,
        "speedup_predicted": 1.2,
    }  # fmt: skip


def test_the_front_is_a_line_over_grey_points(tmp_path: Path) -> None:
    front = [point(16, 2, 40.0), point(4, 7, 70.0), point(1, 31, 90.0)]
    beaten = [point(16, 9, 20.0), point(1, 3, 60.0)]
    points = [one | {"front": True} for one in front] + [one | {"front": False} for one in beaten]
    document = {"points": points, "front": front, "optuna": {"front": [point(4, 7, 70.0)]}}
    frame = pareto_frame(document)
    assert frame["kind"].value_counts().to_dict() == {"front": 3, "dominated": 2, "optuna": 1}
    axes = draw_pareto(frame).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["dominated", "front (exact)", "front of Optuna's trials"]
    staircase = next(line for line in axes.lines if line.get_label() == "front (exact)")
    assert list(staircase.get_xdata()) == [40.0, 70.0, 90.0]
    assert {text.get_text() for text in axes.texts} == {"batch 16, N = 2", "batch 4, N = 7", "batch 1, N = 31"}
    assert [path.suffix for path in write_pareto(document, tmp_path)] == [".png", ".svg", ".csv"]
