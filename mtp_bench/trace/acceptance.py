"""The acceptance table: how often the draft's rank r at depth d was the true token.

Four rates, never to be mixed up (d = depth, r = rank, "hit" = the true token is within the top_k):

* ``rate_unconditional``: P(depths 1..d-1 all hit, and depth d hit at rank r);
* ``rate_conditional``: P(depth d hit at rank r | depths 1..d-1 all hit) - what a child is worth below its parent;
* ``marginal_hit_rate``: P(depth d hit at rank r), whatever happened before - what Medusa's scripts call accuracy;
* ``per_rank``: the table that the product model multiplies along a path; here the conditional rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mtp_bench.trace.bootstrap import LEVEL, RESAMPLES, resample_weights
from mtp_bench.trace.ranks import MISS, RankTrace

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MeasuredRates:
    """What a trace adds to a bare table of rates. Rates are NaN where their n is 0.

    Args:
        n: int64 [D], rows whose text goes on for d more tokens.
        n_conditional: int64 [D], those of them at which depths 1..d-1 all hit.
        hits: int64 [D, K], those of them at which depth d hit at rank r.
        marginal_hits: int64 [D, K], hits at depth d and rank r among all ``n``.
        ci_low, ci_high: float64 [D, K], 95% interval of ``rate_conditional``, resampling prompts; NaN with fewer
            than two prompts.
    """

    n: Counts
    n_conditional: Counts
    hits: Counts
    marginal_hits: Counts
    ci_low: Floats
    ci_high: Floats

    @property
    def rate_unconditional(self) -> Floats:
        """float64 [D, K]: hits / n."""
        return _ratio(self.hits, self.n[:, None])

    @property
    def rate_conditional(self) -> Floats:
        """float64 [D, K]: hits / n_conditional."""
        return _ratio(self.hits, self.n_conditional[:, None])

    @property
    def marginal_hit_rate(self) -> Floats:
        """float64 [D, K]: marginal_hits / n."""
        return _ratio(self.marginal_hits, self.n[:, None])


@dataclass(frozen=True, eq=False)
class AcceptanceTable:
    """Rates by depth and rank, measured or taken from a publication.

    Args:
        per_rank: float64 [D, K], rate of rank r at depth d + 1 given its parent accepted; 0 where unknown.
        measured: counts and intervals, when the table comes from a trace.
        source: where the rates come from, for people.
    """

    per_rank: Floats
    measured: MeasuredRates | None = None
    source: str = ""

    @property
    def depth(self) -> int:
        """D."""
        return int(self.per_rank.shape[0])

    @property
    def top_k(self) -> int:
        """K."""
        return int(self.per_rank.shape[1])

    @classmethod
    def from_trace(cls, trace: RankTrace, *, resamples: int = RESAMPLES, seed: int = 0) -> AcceptanceTable:
        """Count a trace over all positions; intervals by a percentile bootstrap over prompts."""
        counts = [_count_depth(trace, depth, chained) for depth, chained in _chained_hits(trace)]
        reached, hits, marginal = (np.stack(columns, axis=1) for columns in zip(*counts, strict=True))
        rows_with_text = np.stack([np.maximum(trace.prompt_lengths - d, 0) for d in range(1, trace.depth + 1)])
        low, high = _intervals(hits, reached, resamples=resamples, seed=seed)
        measured = MeasuredRates(
            n=rows_with_text.sum(axis=1),
            n_conditional=reached.sum(axis=0),
            hits=hits.sum(axis=0),
            marginal_hits=marginal.sum(axis=0),
            ci_low=low,
            ci_high=high,
        )
        return cls(np.nan_to_num(measured.rate_conditional), measured, source=f"trace of {trace.num_prompts} prompts")

    @classmethod
    def from_json(cls, path: Path | str) -> AcceptanceTable:
        """Read ``{"kind": "per_rank" | "cumulative", "rates": [[...], ...]}``.

        Raises:
            InputError: no kind stated, a rate outside [0, 1], a cumulative row that falls, a row above 1 in sum.
        """
        from mtp_bench.trace.acceptance_files import parse_document, read_document

        rates, source = parse_document(read_document(path), where=str(path))
        return cls(rates, source=source or str(path))

    @classmethod
    def from_csv(cls, path: Path | str) -> AcceptanceTable:
        """Read the conditional rates of an ``acceptance.csv``.

        Raises:
            InputError: missing columns or values that are not rates.
        """
        from mtp_bench.trace.acceptance_files import read_csv

        return cls(read_csv(path), source=str(path))

    @classmethod
    def load(cls, path: Path | str) -> AcceptanceTable:
        """Read a JSON or, by its suffix, a CSV table."""
        return cls.from_csv(path) if Path(path).suffix.lower() == ".csv" else cls.from_json(path)

    def to_csv(self, path: Path | str) -> None:
        """Write ``acceptance.csv`` atomically; equal tables give equal bytes."""
        from mtp_bench.trace.acceptance_files import write_csv

        write_csv(path, self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One dict per (depth, rank): the columns of ``acceptance.csv``; None where a rate has no observations."""
        return [self._row(d, r) for d in range(self.depth) for r in range(self.top_k)]

    def _row(self, d: int, r: int) -> dict[str, Any]:
        row: dict[str, Any] = {"depth": d + 1, "rank": r}
        if self.measured is None:
            return {**row, "rate_conditional": float(self.per_rank[d, r])}
        m = self.measured
        rates = {
            "rate_unconditional": m.rate_unconditional,
            "rate_conditional": m.rate_conditional,
            "marginal_hit_rate": m.marginal_hit_rate,
            "ci_low": m.ci_low,
            "ci_high": m.ci_high,
        }
        row |= {"n": int(m.n[d]), "n_conditional": int(m.n_conditional[d]), "hits": int(m.hits[d, r])}
        return row | {name: None if np.isnan(rate[d, r]) else float(rate[d, r]) for name, rate in rates.items()}


def _chained_hits(trace: RankTrace) -> list[tuple[int, npt.NDArray[np.bool_]]]:
    """For depth 1..D: (depth, bool [T]: the text goes on for that many tokens and every earlier depth hit)."""
    hit = trace.ranks != MISS
    chained = []
    alive = np.ones(trace.num_positions, dtype=np.bool_)
    for depth in range(1, trace.depth + 1):
        chained.append((depth, alive & (trace.tokens_left >= depth)))
        alive = alive & hit[:, depth - 1]
    return chained


def _count_depth(trace: RankTrace, depth: int, chained: npt.NDArray[np.bool_]) -> tuple[Counts, Counts, Counts]:
    """By prompt: rows that got here [P], hits among them by rank [P, K], hits among all rows by rank [P, K]."""
    ranks = trace.ranks[:, depth - 1]
    hit = ranks != MISS
    reached = np.bincount(trace.prompt_of_row[chained], minlength=trace.num_prompts)
    return reached, _by_prompt_and_rank(trace, ranks, chained & hit), _by_prompt_and_rank(trace, ranks, hit)


def _by_prompt_and_rank(trace: RankTrace, ranks: npt.NDArray[np.int16], rows: npt.NDArray[np.bool_]) -> Counts:
    cells = trace.prompt_of_row[rows] * trace.top_k + ranks[rows]
    return np.bincount(cells, minlength=trace.num_prompts * trace.top_k).reshape(trace.num_prompts, trace.top_k)


def _intervals(hits: Counts, reached: Counts, *, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Percentiles of ``sum hits / sum reached`` over resampled prompts, each float64 [D, K]."""
    prompts, depth, top_k = hits.shape
    low, high = np.full((2, depth, top_k), np.nan)
    if prompts < 2:
        return low, high
    weights = resample_weights(prompts, resamples=resamples, seed=seed).astype(np.float64)
    for d in range(depth):  # one depth at a time: [resamples, K] stays small
        draws = _ratio(weights @ hits[:, d], (weights @ reached[:, d])[:, None])
        if np.isfinite(draws).any():
            low[d], high[d] = np.nanpercentile(draws, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    return low, high


def _ratio(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator / denominator, dtype=np.float64)
