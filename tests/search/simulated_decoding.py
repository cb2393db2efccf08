"""Decoding without a model: candidates of known true speeds, on prompts of unlike difficulty, with noise and drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtp_bench.search.race.run import Entrant, Lap

TOKENS = 64


@dataclass
class Simulation:
    """A decoder for races.

    Args:
        speeds: candidate -> true tokens/s.
        prompt_spread: log standard deviation of prompts' difficulty, common to all candidates.
        own_spread: of how well a tree suits a prompt; zero mean over the prompts, so that ``speeds`` stay true.
        noise: of a single timing.
        drift: how much slower the machine is after ``horizon`` decodes than at the start.
    """

    speeds: Mapping[str, float]
    prompts: int
    seed: int = 0
    prompt_spread: float = 0.15
    own_spread: float = 0.05
    noise: float = 0.02
    drift: float = 0.0
    horizon: int = 100
    decodes: int = 0
    decoded: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        ease = np.exp(generator.normal(0, self.prompt_spread, self.prompts))
        self._ease = ease / ease.mean()
        self._own = {}
        for name in self.speeds:
            factor = np.exp(generator.normal(0, self.own_spread, self.prompts))
            # Pooled over all prompts the candidate has exactly its true speed.
            self._own[name] = factor * self._ease.sum() / (factor * self._ease).sum()

    def seconds(self, name: str, prompt: int) -> float:
        """The next timing; noise belongs to candidate and prompt, drift to when it is taken."""
        place = list(self.speeds).index(name)
        noise = np.random.default_rng([self.seed, prompt, place]).normal(0, self.noise)
        slower = 1 + self.drift * self.decodes / self.horizon
        self.decodes += 1
        return float(TOKENS / self.speeds[name] * self._ease[prompt] * self._own[name][prompt] * np.exp(noise) * slower)

    def __call__(self, prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        self.decoded += [(name, prompt) for name in names]
        return {name: Lap(TOKENS, TOKENS // 2, self.seconds(name, prompt)) for name in names}


def entrants(nodes: Mapping[str, int]) -> list[Entrant]:
    """Candidates by their sizes; the one of no node is the baseline."""
    return [Entrant(name, size, stays=size == 0) for name, size in nodes.items()]
