"""Which part of the prompts a ``profile`` process takes: named by ``--shard``, or by what started it on many devices.

torchrun sets ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``; srun sets ``SLURM_PROCID``, ``SLURM_NTASKS`` and
``SLURM_LOCALID``. torchrun comes first, since it may itself have been started by srun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mtp_bench.errors import InputError

LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
HELP = (
    "i/n: profile only every n-th prompt from the i-th (0-based) on. auto, and when left out under torchrun or srun: "
    "this process's part."
)


@dataclass(frozen=True, slots=True)
class Shard:
    """The i-th of n parts.

    Attributes:
        local_rank: place among the processes on this machine, where a launcher told it.
    """

    index: int = 0
    count: int = 1
    local_rank: int | None = None

    @property
    def part(self) -> tuple[int, int]:
        """(index, count)."""
        return self.index, self.count

    def folder(self, out: Path) -> Path:
        """Where this part goes: processes that one launcher started share a command line and so its ``--out``."""
        return out if self.local_rank is None else out.with_name(f"{out.name}-shard{self.index}of{self.count}")

    def device(self, wanted: str) -> str:
        """``auto`` = the CUDA device that is this process's own, where a launcher started several."""
        if wanted != "auto" or self.local_rank is None:
            return wanted
        import torch

        # A launcher may show every process its own devices only, which are then fewer than the processes.
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return f"cuda:{self.local_rank % devices}" if devices else wanted


def choose_shard(text: str | None, environment: Mapping[str, str]) -> Shard:
    """``i/n`` as given; ``auto`` and None ask the launcher, and without one are the whole.

    Raises:
        InputError: neither of these, i outside 0..n-1, ``auto`` without a launcher, or broken launcher variables.
    """
    if text is None or text == "auto":
        launched = _launched(environment)
        if launched is None and text == "auto":
            raise InputError(
                "neither torchrun nor srun started this process",
                where="--shard auto",
                fix=f"give i/n, or set {', '.join(LAUNCHERS[0])}",
            )
        return Shard() if launched is None or launched.count == 1 else launched
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return Shard(int(index), int(count))
    raise InputError(f"not a shard: {text!r}", where="--shard", fix="give i/n with 0 <= i < n, such as 0/4, or auto")


def _launched(environment: Mapping[str, str]) -> Shard | None:
    for names in LAUNCHERS:
        if names[0] in environment and names[1] in environment:
            values = [environment.get(name, "0") for name in names]
            if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
                told = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
                raise InputError(f"not a place among processes: {told}", where="environment", fix="or give --shard i/n")
            return Shard(*(int(value) for value in values))
    return None
