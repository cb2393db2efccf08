"""Memory that decoding will take, known before it starts: a refusal with numbers beats being killed half way."""

from __future__ import annotations

from dataclasses import dataclass

from mtp_bench.decode.prefill import PREFILL_CHUNK
from mtp_bench.errors import InputError
from mtp_bench.models import flex
from mtp_bench.models.base import BaseModel
from mtp_bench.models.memory import available_bytes
from mtp_bench.models.split import layers_by_device

# Of what is free, for what an estimate leaves out: kernels' workspaces, the allocator's gaps, other programs.
USABLE_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on top of the loaded weights.

    Attributes:
        cache: keys and values of all slots.
        step: the largest pass: logits, masks, the widest hidden states, and scores where attention holds them all.
    """

    cache: int
    step: int

    @property
    def total(self) -> int:
        """Both."""
        return self.cache + self.step


def memory_need(base: BaseModel, *, batch: int, length: int, rows: int, sequences: int | None = None) -> MemoryNeed:
    """Estimate for ``batch`` sequences of ``length`` slots each, verified ``rows`` rows at a time; ``sequences`` are
    cached in all, where several batches take turns."""
    size = base.dtype.itemsize
    verify, prefill = rows * batch, min(PREFILL_CHUNK, length)
    groups = base.num_attention_heads // base.num_kv_heads
    # A mask is made as booleans and handed over in the model's dtype, once per query head of a group.
    masks = max(verify, prefill) * length * (1 + groups * size)
    inner = 3 * int(getattr(base.config, "intermediate_size", 4 * base.hidden_size))
    hidden = max(verify, prefill) * (inner + 8 * base.hidden_size) * size
    scores = flex.score_bytes(base.num_attention_heads, max(verify, prefill), length) if _holds_scores(base) else 0
    step = verify * base.vocab_size * size + masks + hidden + scores
    return MemoryNeed((sequences or batch) * length * base.kv_bytes_per_token, step)


def _holds_scores(base: BaseModel) -> bool:
    return base.attention == flex.NAME and base.device.type == "cpu"


def check_memory(
    base: BaseModel, *, batch: int, length: int, rows: int, sequences: int | None = None, cached: bool = False
) -> MemoryNeed:
    """The estimate, if it fits: of a split model, on each device its layers' share of the cache and all of a step.

    Args:
        sequences: cached in all, where several batches take turns; ``batch`` when left out.
        cached: the cache is there already.

    Raises:
        InputError: it does not fit.
    """
    need = memory_need(base, batch=batch, length=length, rows=rows, sequences=sequences)
    for device, layers in {base.device: 0, **layers_by_device(base.layer_devices)}.items():
        share = need.cache * layers // base.num_layers
        wanted = need.step + (0 if cached else share)
        free = available_bytes(device)
        if free is not None and wanted > USABLE_SHARE * free:
            of_it = f", {_gib(share)} of it on {device}" if layers < base.num_layers else ""
            raise InputError(
                f"{sequences or batch} x {length} slots of cache take {_gib(need.cache)}{of_it}, a step over {rows} "
                f"rows each {_gib(need.step)}; {_gib(free)} is free on {device}",
                where="memory",
                fix="use a smaller batch, context or tree",
            )
    return need


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
