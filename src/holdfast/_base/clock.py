"""Time, handed in rather than asked for, so that tests can turn the hands themselves.

No decision of Holdfast uses the wall clock: it only labels what people read. Waiting and expiry
use `monotonic_s`, which never jumps.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs time is given."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 in UTC. It may jump: for people's eyes only."""

    def monotonic_s(self) -> float:
        """Return seconds that only grow, comparable within one process."""


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 in UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()


def pause(seconds: float) -> None:
    """Let the others have a moment. For loops that look again until a deadline."""
    time.sleep(seconds)
