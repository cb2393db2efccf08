"""The heads that come with the package, one folder each under `shipped/`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

# Which shipped heads a model gets when none are named, best first.
_DEFAULTS = {"smollm2-135m": ("smollm2-135m-medusa",)}


def shipped_heads(name: str) -> Path | None:
    """The folder of shipped heads by name, None when there are none of that name."""
    if name not in shipped_names():
        return None
    return _root() / name


def shipped_names() -> tuple[str, ...]:
    """Names of all shipped heads."""
    root = _root()
    return tuple(sorted(p.name for p in root.iterdir() if (p / "config.json").is_file())) if root.is_dir() else ()


def default_heads_for(model_alias: str) -> str | None:
    """Name of the shipped heads for a model alias, None when there are none."""
    return next((name for name in _DEFAULTS.get(model_alias, ()) if shipped_heads(name)), None)


def _root() -> Path:
    # A wheel is unpacked into a folder, so the resource is a real path.
    return Path(str(files("mtp_bench.heads"))) / "shipped"
