"""A race: candidates decode the same prompts for real, side by side, and those that clearly lose stop early.

Speeds of a machine drift by more than good trees differ, so every prompt is decoded by all candidates still running
before the next one, in a new random order: what drifts, drifts for all of them. After each prompt Optuna's
``WilcoxonPruner`` is asked who has lost to the leader (see ``wilcoxon``).

A candidate with fewer nodes than the leader is held to more: where the final interval cannot tell two apart the smaller
one wins, so it is stopped only when that interval, too, says that the leader beats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mtp_bench.errors import InputError
from mtp_bench.search.race.wilcoxon import wilcoxon_losers
from mtp_bench.trace import Interval, paired_ratio, ratio_interval
from mtp_bench.trace.bootstrap import LEVEL

FINISHED = "finished"
SLOWER = "slower"
NOT_LOSSLESS = "not lossless"
EARLY_LEVEL = 0.99  # of an interval that is looked at after every prompt, so oftener than the final one


@dataclass(frozen=True, slots=True)
class Lap:
    """One prompt decoded by one candidate.

    Args:
        tokens: emitted in ``seconds``, the first token (prefill's) apart.
        steps: verification passes.
        diverged: its tokens are not the baseline's.
        lossless: they are, or rounding explains why they are not.
    """

    tokens: int
    steps: int
    seconds: float
    diverged: bool = False
    lossless: bool = True

    @property
    def ms_per_token(self) -> float:
        """What is compared prompt by prompt: its mean weighs prompts as pooled tokens per second do, up to length."""
        return 1e3 * self.seconds / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who takes part.

    Args:
        name: unique.
        num_nodes: the smaller one wins a tie.
        stays: is never stopped for being slow: the baseline, which the others' speedups and texts are held against.
    """

    name: str
    num_nodes: int
    stays: bool = False


@dataclass(frozen=True, slots=True)
class RaceRules:
    """When a candidate is stopped.

    Args:
        p_threshold: of Optuna's ``WilcoxonPruner``: the one-sided p-value below which a candidate is stopped.
        startup_prompts: prompts before which none is.
        seed: of the orders within prompts and of the intervals.
    """

    p_threshold: float = 0.1
    startup_prompts: int = 6
    seed: int = 0


Heat = Callable[[int, Sequence[str]], Mapping[str, Lap]]
"""Decodes a prompt (its index) with the candidates named, in that order; returns the lap of each."""


@dataclass(frozen=True, eq=False)
class Race:
    """What happened.

    Attributes:
        laps: candidate -> prompt index -> lap, in the order of decoding.
        outcomes: candidate -> ``finished``, ``slower`` (stopped by the pruner) or ``not lossless``.
        prompts: how many the finished candidates decoded.
    """

    entrants: tuple[Entrant, ...]
    rules: RaceRules
    laps: dict[str, dict[int, Lap]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    prompts: int = 0

    @property
    def decodes(self) -> int:
        """Prompts decoded by all candidates together."""
        return sum(len(laps) for laps in self.laps.values())

    def nodes(self, name: str) -> int:
        """N of a candidate."""
        return next(one.num_nodes for one in self.entrants if one.name == name)

    def tokens_per_s(self, name: str) -> float:
        """Pooled over the candidate's prompts."""
        tokens, seconds = self._pooled(name, self.laps[name])
        return float(np.sum(tokens) / np.sum(seconds))

    def tokens_per_s_interval(self, name: str) -> Interval | None:
        """``tokens_per_s`` with its 95% interval over prompts; None with fewer than two."""
        return ratio_interval(*self._pooled(name, self.laps[name]), seed=self.rules.seed)

    def speed_ratio(self, name: str, over: str, level: float = LEVEL) -> Interval | None:
        """Speed of ``name`` over that of ``over`` on the prompts that both decoded; None with fewer than two."""
        shared = [prompt for prompt in self.laps[over] if prompt in self.laps[name]]
        if len(shared) < 2:
            return None
        return paired_ratio(self._pooled(over, shared), self._pooled(name, shared), seed=self.rules.seed, level=level)

    def beaten(self, name: str, by: str, level: float = LEVEL) -> bool:
        """Whether the paired interval says that ``by`` is faster."""
        ratio = self.speed_ratio(name, by, level)
        return ratio is not None and ratio.high < 1

    def _pooled(self, name: str, prompts: Any) -> tuple[list[int], list[float]]:
        laps = [self.laps[name][prompt] for prompt in prompts]
        return [lap.tokens for lap in laps], [lap.seconds for lap in laps]


def run_race(
    entrants: Sequence[Entrant],
    prompts: Sequence[int],
    heat: Heat,
    rules: RaceRules | None = None,
    *,
    on_heat: Callable[[int], None] | None = None,
) -> Race:
    """Decode ``prompts`` in order with every candidate, stopping losers early.

    Args:
        on_heat: called after each prompt with the number of candidates still running.

    Raises:
        InputError: no candidate, two of one name, or no prompt.
    """
    rules = rules or RaceRules()
    names = [one.name for one in entrants]
    if not names or len(set(names)) < len(names) or not prompts:
        raise InputError(f"a race of {names} over {len(prompts)} prompts", where="--measure")
    race = Race(tuple(entrants), rules, {name: {} for name in names})
    running = list(entrants)
    for done, prompt in enumerate(prompts, start=1):
        order = np.random.default_rng([rules.seed, prompt]).permutation(len(running))
        for name, lap in heat(prompt, [running[i].name for i in order]).items():
            race.laps[name][prompt] = lap
            if not lap.lossless:
                race.outcomes[name] = NOT_LOSSLESS
        running = [one for one in running if one.name not in race.outcomes]
        if done < len(prompts):
            race.outcomes.update(dict.fromkeys(_losers(race, running), SLOWER))
            running = [one for one in running if one.name not in race.outcomes]
        if on_heat is not None:
            on_heat(len(running))
    race.outcomes.update({one.name: FINISHED for one in running})
    return Race(race.entrants, rules, race.laps, race.outcomes, len(prompts))


def _losers(race: Race, running: Sequence[Entrant]) -> list[str]:
    """Whom to stop now; all that run have decoded the same prompts."""
    values = {one.name: {p: lap.ms_per_token for p, lap in race.laps[one.name].items()} for one in running}
    leader, losers = wilcoxon_losers(values, race.rules.p_threshold, race.rules.startup_prompts)
    by_name = {one.name: one for one in running}

    def stops(one: Entrant) -> bool:
        smaller = one.num_nodes < by_name[leader].num_nodes
        return not one.stays and (not smaller or race.beaten(one.name, leader, EARLY_LEVEL))

    return [name for name in losers if stops(by_name[name])]


def balanced_order(categories: Sequence[str], seed: int = 0) -> list[int]:
    """Indices of prompts in random order, each round taking one prompt of every category that has any left.

    A candidate stopped after a few prompts has then been judged on all kinds of text, not on the first in the file.
    """
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(categories)):
        queues.setdefault(categories[index], []).append(int(index))
    order: list[int] = []
    while any(queues.values()):
        waiting = [queue for queue in queues.values() if queue]
        order += [waiting[place].pop() for place in generator.permutation(len(waiting))]
    return order
