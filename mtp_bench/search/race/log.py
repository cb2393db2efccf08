"""Laps of a race that survive being killed: a JSONL line per prompt, taken up by the next run of the same race.

A line holds the laps of all candidates of one prompt. A prompt that only some of them had decoded is decoded again by
all, because laps that are compared must have seen the same machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import read_text, write_text
from mtp_bench.search.race.run import Heat, Lap

SCHEMA = "mtp-bench/race"
VERSION = 1


class RaceLog:
    """The laps in ``path`` of the race that ``key`` names; those of another race are dropped.

    Attributes:
        resumed: prompts that were taken up.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._header = {"schema": SCHEMA, "version": VERSION, "key": key}
        self._heats = self._read()
        self.resumed = len(self._heats)
        # Half a line at the end, or another race's lines, must not stand in front of the next.
        write_text(path, "".join(json.dumps(line) + "\n" for line in (self._header, *map(_line, self._heats.items()))))

    def keeping(self, heat: Heat) -> Heat:
        """``heat``, of which every result is kept; those known are not decoded again."""

        def kept(prompt: int, names: Sequence[str]) -> Mapping[str, Lap]:
            known = self._heats.get(prompt)
            if known is not None and known.keys() == set(names):
                return known
            laps = dict(heat(prompt, names))
            self._heats[prompt] = laps
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(_line((prompt, laps))) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            return laps

        return kept

    def discard(self) -> None:
        """Delete the file: the race is over and its result written."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> dict[int, dict[str, Lap]]:
        try:
            lines = read_text(self.path).split("\n")[:-1]
        except InputError:
            return {}
        try:
            parsed = [json.loads(line) for line in lines]
            if not parsed or parsed[0] != self._header:
                return {}
            return {
                int(line["prompt"]): {name: Lap(**lap) for name, lap in line["laps"].items()} for line in parsed[1:]
            }
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"damaged laps of an unfinished race: {error}", where=str(self.path), fix="delete the file"
            ) from error


def _line(heat: tuple[int, Mapping[str, Lap]]) -> dict[str, object]:
    prompt, laps = heat
    return {"prompt": prompt, "laps": {name: asdict(lap) for name, lap in laps.items()}}
