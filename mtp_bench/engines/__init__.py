"""Formats of other engines: one module each, listed here by the name that ``--to`` and ``--format`` take."""

from __future__ import annotations

from mtp_bench.engines import medusa, vllm
from mtp_bench.engines.base import Exported, Exporter, Imported, Importer

EXPORTERS: dict[str, Exporter] = {exporter.engine: exporter for exporter in (medusa.EXPORTER,)}
IMPORTERS: dict[str, Importer] = {importer.engine: importer for importer in (medusa.IMPORTER, vllm.IMPORTER)}

__all__ = ["EXPORTERS", "IMPORTERS", "Exported", "Exporter", "Imported", "Importer"]
