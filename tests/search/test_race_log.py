"""A race that is killed and run again decides alike; only the prompt at hand is decoded again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from simulated_decoding import Simulation, entrants

from mtp_bench.errors import InputError
from mtp_bench.search.race.log import RaceLog
from mtp_bench.search.race.run import Lap, Race, RaceRules, run_race
from mtp_bench.search.race.verdict import decide

NODES = {"none": 0, "a": 3, "b": 7, "c": 15, "d": 31}
SPEEDS = {"none": 100.0, "a": 140.0, "b": 158.0, "c": 165.0, "d": 145.0}
PROMPTS = 14
# What a kill interrupts: decodes of 3 ms, their results kept in the file named.
CHILD = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from simulated_decoding import Simulation, entrants
from mtp_bench.search.race.run import run_race
from mtp_bench.search.race.log import RaceLog
simulation = Simulation({SPEEDS!r}, {PROMPTS})
def heat(prompt, names):
    time.sleep(0.003 * len(names))
    print("decoded", prompt, flush=True)
    return simulation(prompt, names)
run_race(entrants({NODES!r}), range({PROMPTS}), RaceLog(Path(sys.argv[1]), "key").keeping(heat))
print("over", flush=True)
"""


class Killed(Exception):
    pass


def undisturbed() -> tuple[Race, Simulation]:
    simulation = Simulation(SPEEDS, PROMPTS)
    return run_race(entrants(NODES), range(PROMPTS), simulation), simulation


def same(one: Race, other: Race) -> bool:
    return (one.laps, one.outcomes, decide(one)) == (other.laps, other.outcomes, decide(other))


@pytest.mark.parametrize("kill_at", range(PROMPTS))
def test_a_killed_race_goes_on_and_decides_alike(kill_at: int, tmp_path: Path) -> None:
    whole, whole_simulation = undisturbed()
    simulation = Simulation(SPEEDS, PROMPTS)

    def killed(prompt: int, names: Sequence[str]) -> dict[str, Lap]:
        if prompt == kill_at:
            raise Killed
        return simulation(prompt, names)

    path = tmp_path / "race.jsonl"
    with pytest.raises(Killed):
        run_race(entrants(NODES), range(PROMPTS), RaceLog(path, "key").keeping(killed))
    with open(path, "a") as stream:  # half a line, as a kill leaves it
        stream.write('{"prompt": 9, "laps": {"a"')
    log = RaceLog(path, "key")
    assert log.resumed == kill_at
    again = run_race(entrants(NODES), range(PROMPTS), log.keeping(simulation))
    assert same(again, whole)
    assert sorted(simulation.decoded) == sorted(whole_simulation.decoded)
    # And once more, with all of it known.
    idle = Simulation(SPEEDS, PROMPTS)
    assert same(run_race(entrants(NODES), range(PROMPTS), RaceLog(path, "key").keeping(idle)), whole)
    assert not idle.decoded
    log.discard()
    assert not path.exists()


def test_twenty_kills_by_signal(tmp_path: Path) -> None:
    path, generator = tmp_path / "race.jsonl", np.random.default_rng(0)
    decoded: list[str] = []
    kills, over = 0, False
    while not over:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        first = child.stdout.readline()
        if kills < 20:
            time.sleep(generator.uniform(0, 0.02))
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        lines = [first, *child.stdout.read().splitlines()]
        child.wait()
        over = "over" in [line.strip() for line in lines]
        decoded += [line.strip() for line in lines if line.startswith("decoded")]
    whole, _ = undisturbed()
    log = RaceLog(path, "key")
    assert log.resumed == PROMPTS
    assert same(run_race(entrants(NODES), range(PROMPTS), log.keeping(Simulation(SPEEDS, PROMPTS))), whole)
    # A prompt is decoded twice only when the kill fell between its decoding and its line.
    assert PROMPTS <= len(decoded) <= PROMPTS + kills


def test_laps_of_another_race_are_not_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "race.jsonl"
    run_race(entrants(NODES), range(3), RaceLog(path, "one").keeping(Simulation(SPEEDS, 3)))
    assert RaceLog(path, "another").resumed == 0
    assert [json.loads(line).get("key") for line in path.read_text().splitlines()] == ["another"]


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "race.jsonl"
    run_race(entrants(NODES), range(3), RaceLog(path, "one").keeping(Simulation(SPEEDS, 3)))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{oops", *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="damaged laps"):
        RaceLog(path, "one")


def test_rules_of_the_race_are_part_of_its_decisions() -> None:
    """Another seed means another order within prompts, and the laps of one are those of the other: interleaved."""
    orders = []
    for seed in (0, 1):
        simulation = Simulation(SPEEDS, PROMPTS)
        run_race(entrants(NODES), range(PROMPTS), simulation, RaceRules(seed=seed))
        orders.append(simulation.decoded)
    assert orders[0] != orders[1]
