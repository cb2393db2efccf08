"""Imports point one way, and what needs no model loads without torch, transformers or optuna."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mtp_bench"
FOUNDATION = {"errors", "files", "progress", "runs"}
PLAIN = {"topology", "trace", "cost"}
RUNNING = {"prompts", "heads", "models", "decode"}
# What each part may import besides itself and the foundation.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "progress": set(),
    "runs": set(),
    "topology": set(),
    "trace": {"topology"},
    "cost": {"topology"},
    "prompts": set(),
    "heads": PLAIN,
    "models": PLAIN,
    "decode": PLAIN | {"prompts", "heads", "models"},
    "search": PLAIN,
    "engines": {"topology"},
    "report": PLAIN,
    "profile": PLAIN | RUNNING | {"search"},
    "train": PLAIN | RUNNING | {"report"},
}
# Telling heads from a base model by tensor names is the heads' knowledge; naming a model by alias the models'.
# What is not a model: the aliases of names, and the one file that knows versions of transformers.
EXCEPTIONS = {
    ("models.load", "heads.detect"),
    ("heads.load", "models.aliases"),
    ("heads.eagle.draft", "models.compat"),
}


def imports(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports anywhere, imports inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("mtp_bench.") for name in names if name.startswith("mtp_bench."))


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in FOUNDATION)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    part = module.split(".")[0]
    if part == "cli":
        return
    allowed = MAY_IMPORT[part] | FOUNDATION | {part, "__version__"}
    wrong = {
        name
        for name in imports(path)
        if name.split(".")[0] not in allowed
        and not any(module == source and name.startswith(target) for source, target in EXCEPTIONS)
    }
    assert not wrong, f"{module} must not import {sorted(wrong)}"


def test_every_part_has_its_rule() -> None:
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} <= {*MAY_IMPORT, "cli"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        *[(module, ("torch", "transformers", "optuna")) for module in ("topology", "trace", "cost", "search", "runs")],
        ("report", ("torch", "transformers", "optuna", "matplotlib")),
        ("engines", ("torch", "transformers", "optuna")),
        ("cli", ("torch", "transformers", "optuna", "matplotlib", "pandas")),
        ("trace.shards", ("torch", "transformers")),
        ("profile.run, mtp_bench.profile.bench, mtp_bench.decode.bench", ("optuna", "matplotlib", "pandas")),
    ],
)
def test_import_stays_light(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, mtp_bench.{module}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
