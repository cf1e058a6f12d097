"""How far an upload is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from holdfast._base.clock import Clock
from holdfast._base.tell import tell
from holdfast.cli.live import clock_text
from holdfast.cli.words import moment, size_of
from holdfast.client.submit import Sent

_LINE_S = 5.0
"""Between two lines in a log: often enough to see that it lives."""


class Bar(Protocol):
    """What an upload tells how far it is."""

    def __call__(self, sent: Sent) -> None:
        """Show how far it is. Called by several threads, one at a time."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def words_of(sent: Sent, elapsed_s: float) -> str:
    """Return how far an upload is, in words: share, rate, what is left. Pure.

    Only what this process sent counts for the rate.
    """
    share = 100 * sent.size // sent.size_all if sent.size_all else 100
    text = f"sent {size_of(sent.size)} of {size_of(sent.size_all)} ({share}%)"
    text += f", {sent.chunks} of {sent.chunks_all} chunks"
    moved = sent.size - sent.size_before
    if elapsed_s <= 0 or moved <= 0:
        return text
    rate = moved / elapsed_s
    left = clock_text((sent.size_all - sent.size) / rate)
    return f"{text}, {size_of(rate)}/s, {left} left"


class LineBar:
    """A line when it begins, every few seconds, and when it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_s = self._told_s = float("-inf")

    def __call__(self, sent: Sent) -> None:
        """Say how far it is, if it is time to."""
        now_s = self._clock.monotonic_s()
        first = self._begun_s == float("-inf")
        if first:
            self._begun_s = now_s
        if not first and now_s - self._told_s < _LINE_S and sent.chunks < sent.chunks_all:
            return
        self._told_s = now_s
        line = words_of(sent, now_s - self._begun_s)
        tell(f"{moment(self._clock.wall_ms())} {line}\n")

    def close(self) -> None:
        """Nothing to do."""


class LiveBar:
    """A bar on standard error."""

    def __init__(self, clock: Clock, console: Console | None = None) -> None:
        self._clock = clock
        self._begun_s: float | None = None
        self._progress = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.description}", markup=False),
            console=console or Console(stderr=True, highlight=False),
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=None)

    def __call__(self, sent: Sent) -> None:
        """Show how far it is."""
        now_s = self._clock.monotonic_s()
        if self._begun_s is None:
            self._begun_s = now_s
            self._progress.start()
        text = words_of(sent, now_s - self._begun_s)
        total, done = max(sent.size_all, 1), sent.size if sent.size_all else 1
        self._progress.update(self._task, description=text, completed=done, total=total)

    def close(self) -> None:
        """Stop drawing; the bar stays."""
        if self._begun_s is not None:
            self._progress.stop()
