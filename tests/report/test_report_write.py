"""What ends up in the run folder: every plot thrice, one self-contained page, and no surprises with odd input."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import write_run

from mtp_bench.errors import InputError
from mtp_bench.report.inputs import read_run
from mtp_bench.report.plots import BUILDERS, build_plots
from mtp_bench.report.style import save_figure, save_frame
from mtp_bench.report.tables import build_tables, headline
from mtp_bench.report.write import Report, make_report, write_report

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects tags and texts; fails on a tag that closes another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_full_run_gives_every_plot(report: Report) -> None:
    assert not report.omitted
    assert not report.damaged
    assert len(report.plots) == len(BUILDERS)
    names = {path.name for path in report.files}
    assert names == {f"{plot}.{suffix}" for plot in report.plots for suffix in ("png", "svg", "csv")} | {"report.html"}
    for path in report.files:
        assert path.stat().st_size > 100
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_the_page_is_self_contained_and_escaped(report: Report) -> None:
    text = report.files[-1].read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.isdisjoint({"script", "link", "iframe", "b"})
    assert len(page.links) == len(report.plots)
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert "<b>small & odd</b>" in page.text  # the model's name, shown as it is written
    assert "url(" not in text.split("</style>")[0]


def test_the_same_inputs_give_the_same_bytes(run_folder: Path, report: Report, tmp_path: Path) -> None:
    plots, _ = build_plots(read_run(run_folder))
    made = report.files[-1].parent / "plots"
    for plot in plots:
        for path in [*save_figure(plot.figure, tmp_path, plot.name), save_frame(plot.frame, tmp_path, plot.name)]:
            assert path.read_bytes() == (made / path.name).read_bytes(), path.name
    svg = (made / "tree.svg").read_text()
    assert "<dc:date>" not in svg
    assert "Matplotlib v" not in svg


def test_a_growing_run_gives_what_it_can(run_folder: Path, tmp_path: Path) -> None:
    for name in ("cost.csv", "run.json"):
        shutil.copy(run_folder / name, tmp_path / name)
    made = make_report(tmp_path)
    assert made.plots == ("cost",)
    assert {one.title for one in made.omitted} == {title for title, _, _ in BUILDERS} - {"Cost of a verification pass"}
    page = Page((tmp_path / "report.html").read_text())
    assert "needs optimize.json" in page.text
    assert "Nothing was measured or optimized" in page.text


def test_without_a_trace_the_tree_is_valued_by_the_table(run_folder: Path, tmp_path: Path) -> None:
    for name in ("acceptance.csv", "topology.json"):
        shutil.copy(run_folder / name, tmp_path / name)
    plots = {plot.name: plot for plot in build_plots(read_run(tmp_path))[0]}
    assert set(plots) == {"acceptance", "tree"}
    values = plots["tree"].frame.set_index("path")["value"]
    rates = plots["acceptance"].frame.set_index(["depth", "rank"])["rate_conditional"]
    assert values["0 0"] == pytest.approx(rates[(1, 0)] * rates[(2, 0)])


def test_damaged_files_are_named_and_the_rest_is_used(run_folder: Path, tmp_path: Path) -> None:
    shutil.copy(run_folder / "cost.csv", tmp_path / "cost.csv")
    (tmp_path / "trace.npz").write_bytes(b"PK not a zip")
    (tmp_path / "optimize.json").write_text('{"exact": ')
    (tmp_path / "bench.csv").write_text("tree,tokens\na,1\n")
    (tmp_path / "acceptance.csv").write_text("depth,rank,rate_conditional\n1,zero,0.5\n")
    (tmp_path / "run.json").write_text(json.dumps({"schema": "mtp-bench/run", "version": 9}))
    made = make_report(tmp_path)
    assert made.plots == ("cost",)
    said = "\n".join(made.damaged)
    for part in (
        "trace.npz",
        "optimize.json:1:",
        "columns missing: prompt_id, decode_s",
        "column rank",
        "newer version",
    ):
        assert part in said
    assert "Not used: " in (tmp_path / "report.html").read_text()


def test_strange_values_cost_one_plot_not_the_report(run_folder: Path, tmp_path: Path) -> None:
    shutil.copy(run_folder / "cost.csv", tmp_path / "cost.csv")
    (tmp_path / "optimize.json").write_text(json.dumps({"paths": [["x"]], "exact": {"curve": [{"num_nodes": "many"}]}}))
    made = make_report(tmp_path)
    assert made.plots == ("cost",)
    assert any("cannot be used" in one.reason for one in made.omitted)


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to report on"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="no such run folder"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "cost.csv").write_text("rows,median_ms\n1,5\n")
    with pytest.raises(InputError, match="neither loss"):
        write_report(tmp_path, training=tmp_path)


def test_names_that_look_like_nothing_stay_names(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_text("tree,prompt_id,tokens,decode_s\nnone,NA,5,1.0\nnull,01,5,1.0\n")
    bench = read_run(tmp_path).bench
    assert bench is not None
    assert bench["tree"].tolist() == ["none", "null"]
    assert bench["prompt_id"].tolist() == ["NA", "01"]


def test_no_speculation_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "optimize.json").write_text(json.dumps({"num_nodes": 0, "paths": []}))
    inputs = read_run(tmp_path)
    assert headline(inputs) == ["Do not speculate: on this machine no tree is faster than plain decoding."]
    make_report(tmp_path)


def test_a_lossy_tree_is_shouted(tmp_path: Path) -> None:
    trees = [{"tree": "t", "speedup": 2.0, "speedup_ci": [1.9, 2.1], "lossless": False}]
    (tmp_path / "bench.json").write_text(json.dumps({"trees": trees}))
    assert headline(read_run(tmp_path)) == [
        "Measured with t: speedup 2.000x [1.900, 2.100] over plain decoding, NOT lossless."
    ]


def test_the_bench_table_shows_both_baselines_and_divergences(tmp_path: Path) -> None:
    tree = {
        "tree": "winner", "num_nodes": 15, "tokens_per_step": 2.0, "tokens_per_s": 40.0, "tokens_per_s_ci": [39, 41],
        "predicted_tokens_per_s": 42.0, "prediction_error": 0.05, "speedup": 1.6, "speedup_ci": None,
        "speedup_over_hf": {"value": 1.8, "ci": [1.7, 1.9]}, "lossless": True, "divergences": 2,
        "divergences_at_near_ties": 2, "runs": 54,
    }  # fmt: skip
    baseline = {"engine": {"tokens_per_step": 1.0, "tokens_per_s": 25.0}}
    (tmp_path / "bench.json").write_text(json.dumps({"baseline": baseline, "trees": [tree]}))
    (table,) = build_tables(read_run(tmp_path))
    assert table.rows[0] == ("baseline: engine", "0", "1.000", "25.0", "-", "-", "-", "-", "-")
    assert table.rows[1] == (
        "winner", "15", "2.000", "40.0 [39.0, 41.0]", "42.0", "+5.0%", "1.600x", "1.800x [1.700, 1.900]",
        "yes (2 of 54 runs diverge, 2 at a near-tie)",
    )  # fmt: skip


def test_neither_pyplot_nor_torch_is_loaded() -> None:
    code = "import sys, mtp_bench.report.write; print([m for m in ('matplotlib.pyplot', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_prints_one_json_document_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer
    from typer.testing import CliRunner

    from mtp_bench.cli.report import report

    app = typer.Typer()
    app.command()(report)
    results = tmp_path / "results"
    write_run(results / "one", max_nodes=3)
    for name in (
        "trace.npz",
        "optimize.json",
        "bench.csv",
        "bench.json",
        "loss.csv",
        "heldout.csv",
        "cost.csv",
        "throughput.json",
        "schedule.json",
        "operating_range.json",
        "pareto.json",
    ):
        (results / "one" / name).unlink()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["run"] == "results/one"
    assert facts["plots"] == ["tree", "acceptance"]
    assert (tmp_path / facts["report"]).is_file()
    assert {one["plot"] for one in facts["not_shown"]} >= {"Cost of a verification pass"}
