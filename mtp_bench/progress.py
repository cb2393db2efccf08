"""Telling the user what goes on: stages, warnings and progress bars, all on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A warning, on stderr."""
    say(f"warning: {text}")


@contextmanager
def progress(label: str, total: int, unit: str = "it") -> Iterator[Callable[[int], None]]:
    """A progress bar with rate and time left; yields a function that advances it. Silent when not a terminal."""
    if not sys.stderr.isatty():
        say(f"{label} ...")
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, rate="")

        def advance(amount: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=amount, rate=f"{speed:.1f} {unit}/s" if speed else "")

        yield advance


def running_totals(advance: Callable[[int], None]) -> Callable[[int, int], None]:
    """A callback for work that reports (done so far, planned), turned into steps of a bar."""
    before = 0

    def on_progress(done: int, planned: int) -> None:
        nonlocal before
        advance(done - before)
        before = done

    return on_progress
