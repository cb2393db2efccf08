"""Who won a race: the fastest, if the paired interval tells it from every other; else the smallest of those tied."""

from __future__ import annotations

from dataclasses import dataclass

from mtp_bench.search.race.run import FINISHED, NOT_LOSSLESS, Race
from mtp_bench.trace import Interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes:
    winner: who is taken.
    fastest: who decoded most tokens per second of those that finished.
    tied: finished candidates, the fastest among them, that its interval cannot be told from; only it: a clear win.
    runner_up: the next best: of those that finished, else of those stopped early; None when nobody else is lossless.
    ratio: speed of the runner-up over the winner's on the prompts that both decoded.
    """

    winner: str
    fastest: str
    tied: tuple[str, ...]
    runner_up: str | None
    ratio: Interval | None

    @property
    def clear(self) -> bool:
        """Whether the fastest beat every other candidate that finished."""
        return len(self.tied) == 1

    @property
    def rule(self) -> str:
        """What decided, in words."""
        if self.clear:
            return "the fastest: its paired interval excludes every other that finished"
        others = ", ".join(name for name in self.tied if name != self.winner)
        return f"the smallest of those that the paired interval cannot tell apart (tied with {others})"


def decide(race: Race) -> Verdict:
    """The winner among the candidates that finished.

    The fastest wins if the 95% interval of each other's speed over its own, over the prompts that both decoded, lies
    below 1; otherwise the candidate with the fewest nodes among those tied with it (then the faster one).
    """
    finished = [name for name, outcome in race.outcomes.items() if outcome == FINISHED]
    speed = {name: race.tokens_per_s(name) for name in race.laps}
    fastest = max(finished, key=lambda name: speed[name])
    tied = tuple(name for name in finished if name == fastest or not race.beaten(name, by=fastest))
    winner = min(tied, key=lambda name: (race.nodes(name), -speed[name]))
    runner_up = _runner_up(race, winner, finished)
    return Verdict(winner, fastest, tied, runner_up, None if runner_up is None else race.speed_ratio(runner_up, winner))


def _runner_up(race: Race, winner: str, finished: list[str]) -> str | None:
    stopped = [name for name, outcome in race.outcomes.items() if outcome not in (FINISHED, NOT_LOSSLESS)]
    for group in (finished, stopped):
        others = [name for name in group if name != winner]
        if others:
            return max(others, key=lambda name: _ratio(race, name, winner))
    return None


def _ratio(race: Race, name: str, winner: str) -> float:
    ratio = race.speed_ratio(name, over=winner)
    return race.tokens_per_s(name) / race.tokens_per_s(winner) if ratio is None else ratio.value
