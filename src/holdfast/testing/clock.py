"""A clock whose hands the test turns. Fills `holdfast._base.clock.Clock`."""

from __future__ import annotations


class VirtualClock:
    """Time that passes only when told. The wall clock may jump; the monotonic one never does."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, monotonic_s: float = 0.0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s

    def wall_ms(self) -> int:
        """Return the wall clock's time."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """Return the seconds that have passed since some fixed moment."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError("time does not run backwards; see jump_wall")
        self._monotonic_s += seconds
        self._wall_ms += round(seconds * 1000)

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an operator or a time server does."""
        self._wall_ms += milliseconds
