"""All kinds of heads under one name, and what loading any of them gives."""

from __future__ import annotations

from dataclasses import dataclass

from mtp_bench.heads.base import Heads, HeadsInfo
from mtp_bench.heads.eagle.draft import EagleDraft
from mtp_bench.heads.hydra.heads import HydraHeads

AnyHeads = Heads | EagleDraft | HydraHeads
"""Heads that guess all depths at once (Medusa's), and those that draft token by token."""


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """Heads ready to run, what they are, and what the user should know about them."""

    heads: AnyHeads
    info: HeadsInfo
    warnings: tuple[str, ...] = ()
