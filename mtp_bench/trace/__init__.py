"""Rank traces, acceptance tables, replay and intervals: everything that is known about acceptance without a model."""

from mtp_bench.trace.acceptance import AcceptanceTable, MeasuredRates
from mtp_bench.trace.batching import batch_passes, mean_longest_context
from mtp_bench.trace.bootstrap import (
    Interval,
    interval_of,
    paired_difference,
    paired_ratio,
    ratio_draws,
    ratio_interval,
    resample_weights,
)
from mtp_bench.trace.ranks import RankTrace, merge_traces
from mtp_bench.trace.replay import Replay, replay, step_starts
from mtp_bench.trace.stats import StepStats
from mtp_bench.trace.walk import accepted_lengths

__all__ = [
    "AcceptanceTable",
    "Interval",
    "MeasuredRates",
    "RankTrace",
    "Replay",
    "StepStats",
    "accepted_lengths",
    "batch_passes",
    "interval_of",
    "mean_longest_context",
    "merge_traces",
    "paired_difference",
    "paired_ratio",
    "ratio_draws",
    "ratio_interval",
    "replay",
    "resample_weights",
    "step_starts",
]
