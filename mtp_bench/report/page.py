"""``report.html``: one static file with everything in it, to be mailed or opened years later.

No script, no link to anything outside: the pictures are data URIs, which also keeps the SVGs' ids apart. All text
passes through :func:`html.escape`, since names of trees, prompts and models come from users.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mtp_bench.report.plots import Omitted
from mtp_bench.report.tables import Table

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto;
  padding: 1.5rem; max-width: 75rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.card { border: 1px solid #d0d0d0; border-left: .4rem solid #0072B2; padding: .8rem 1.1rem; margin: 1rem 0; }
.card p { margin: .2rem 0; font-size: 1.05rem; }
.note { color: #555; font-size: .9rem; }
table { border-collapse: collapse; margin: .3rem 0 1rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #e2e2e2; padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; max-width: 45rem; } thead th { color: #555; font-weight: 600; }
figure { margin: 1.2rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
""".strip()


@dataclass(frozen=True, slots=True)
class Picture:
    """A saved plot: its title, its SVG file, and the CSV behind it."""

    title: str
    svg: Path
    csv: Path


def render_page(
    title: str,
    headline: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    omitted: Sequence[Omitted],
    damaged: Sequence[str],
) -> str:
    """The page as text. ``tables`` that say what was found come first; see :func:`_section` for the order."""
    found = headline or ["Nothing was measured or optimized in this run yet."]
    parts = [
        f"<h1>{escape(title)}</h1>",
        '<div class="card">' + "".join(f"<p>{escape(line)}</p>" for line in found) + "</div>",
        *(_warning(f"Not used: {text}") for text in damaged),
        _section("Results", [_table(table) for table in tables if table.headers != ("", "")]),
        _section("Plots", [_picture(picture) for picture in pictures]),
        _section("Run and environment", [_table(table) for table in tables if table.headers == ("", "")]),
        _section("Not shown", [_list(f"{one.title}: {one.reason}" for one in omitted)] if omitted else []),
    ]
    body = "\n".join(part for part in parts if part)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>'
    head += f"\n<style>\n{_STYLE}\n</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _section(title: str, content: Sequence[str]) -> str:
    return "\n".join([f"<h2>{escape(title)}</h2>", *content]) if content else ""


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.headers)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    top = f"<thead><tr>{head}</tr></thead>" if any(table.headers) else ""
    return f"<h3>{escape(table.title)}</h3>\n<table>{top}<tbody>\n{rows}\n</tbody></table>"


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg.read_bytes()).decode("ascii")
    title = escape(picture.title, quote=True)
    source = escape(f"Data: {picture.csv.parent.name}/{picture.csv.name}")
    image = f'<img alt="{title}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure><h3>{title}</h3>{image}<figcaption>{source}</figcaption></figure>"


def _list(items: Iterable[str]) -> str:
    return '<ul class="note">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _warning(text: str) -> str:
    return f'<p class="note"><strong>{escape(text)}</strong></p>'
