"""Confidence intervals by resampling prompts.

Steps of one answer resemble each other, so resampling steps would claim far too narrow intervals. Prompts are drawn
with replacement, the ratio ``sum tokens / sum steps`` is taken anew, and percentiles of 2,000 draws give the interval.
The same seed and number of prompts give the same draws, so comparisons of two trees are paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mtp_bench.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its percentile interval."""

    value: float
    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high

    def excludes(self, point: float) -> bool:
        """Whether ``point`` lies outside: 0 for a difference, 1 for a ratio means the two really differ."""
        return not self.low <= point <= self.high


@lru_cache(maxsize=2)  # one search takes the same draws for dozens of trees
def resample_weights(num_prompts: int, *, resamples: int = RESAMPLES, seed: int = 0) -> npt.NDArray[np.int64]:
    """int64 [resamples, P]: how often each prompt was drawn; every row sums to P. Read-only."""
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=resamples)
    draws.setflags(write=False)
    return draws


def ratio_draws(
    tokens: npt.ArrayLike, steps: npt.ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Floats | None:
    """float64 [resamples]: ``sum tokens / sum steps`` of each draw, or None with fewer than two prompts.

    Raises:
        InputError: arrays of different length.
    """
    numerator, denominator = np.asarray(tokens, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    if numerator.shape != denominator.shape or numerator.ndim != 1:
        raise InputError(f"tokens {numerator.shape} and steps {denominator.shape} must be one value per prompt")
    if len(numerator) < 2:
        return None
    weights = resample_weights(len(numerator), resamples=resamples, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights @ numerator) / (weights @ denominator))


def interval_of(value: float, draws: Floats | None, *, level: float = LEVEL) -> Interval | None:
    """The percentile interval of ``draws`` around ``value``; None without draws."""
    if draws is None or not np.isfinite(draws).any():
        return None
    low, high = np.nanpercentile(draws, [50 * (1 - level), 50 * (1 + level)])
    return Interval(float(value), float(low), float(high))


def ratio_interval(
    tokens: npt.ArrayLike, steps: npt.ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval | None:
    """Interval of ``sum tokens / sum steps`` over prompts; None with fewer than two prompts."""
    draws = ratio_draws(tokens, steps, resamples=resamples, seed=seed)
    return interval_of(_pooled(tokens, steps), draws, level=level)


def paired_difference(
    first: tuple[npt.ArrayLike, npt.ArrayLike],
    second: tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of ``second - first``, each a pair (tokens [P], steps [P]) on the same prompts."""
    draws = _paired_draws(first, second, resamples=resamples, seed=seed)
    value = _pooled(*second) - _pooled(*first)
    return interval_of(value, None if draws is None else draws[1] - draws[0], level=level)


def paired_ratio(
    first: tuple[npt.ArrayLike, npt.ArrayLike],
    second: tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of ``second / first``, each a pair (tokens [P], steps or seconds [P]) on the same prompts."""
    draws = _paired_draws(first, second, resamples=resamples, seed=seed)
    value = _pooled(*second) / _pooled(*first)
    return interval_of(value, None if draws is None else draws[1] / draws[0], level=level)


def _paired_draws(
    first: tuple[npt.ArrayLike, npt.ArrayLike],
    second: tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    resamples: int,
    seed: int,
) -> tuple[Floats, Floats] | None:
    if np.shape(first[0]) != np.shape(second[0]):
        raise InputError("a paired comparison needs the same prompts on both sides")
    one = ratio_draws(*first, resamples=resamples, seed=seed)
    other = ratio_draws(*second, resamples=resamples, seed=seed)
    return None if one is None or other is None else (one, other)


def _pooled(tokens: npt.ArrayLike, steps: npt.ArrayLike) -> float:
    denominator = float(np.sum(np.asarray(steps, dtype=np.float64)))
    return float(np.sum(np.asarray(tokens, dtype=np.float64))) / denominator if denominator else float("nan")
