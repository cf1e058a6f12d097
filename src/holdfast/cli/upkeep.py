"""What a supervisor does when a part of its service ends or stands still. Pure: time is handed in.

| a part ends | then |
| --- | --- |
| after it was asked to | nothing |
| with exit code 2: it was asked wrongly | the service ends: another start would be the same |
| with exit code 75: the disk was full | it is started again, after a wait that doubles |
| with another exit code, again and again, and never held out | the same, with its last words |
| else: killed, or after it held out | it is started again, after a wait that doubles |
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cli.exits import DISK_WAS_FULL

WAIT_FIRST_S = 0.2
WAIT_LAST_S = 30.0
"""How long the next start waits: doubled each time a part ends early. Shorter: a part that cannot
run takes the machine. Longer: one that can run again is away for so long."""
STEADY_S = 30.0
"""A part that lived so long held out: its next end counts as the first. Shorter: a part that ends
just after its start-up, which for Spark takes 10 s, never counts as looping."""
START_S = 120.0
"""How long a part may take to its first beat. It loads Python modules till then; Spark starts after
it. Shorter: one that starts slowly on a busy machine is killed again and again, and never runs.
Longer: one that was stopped while it started is away for so long."""
LOOP_ENDS = 5
"""So many early ends in a row are a crash loop."""
ASKED_WRONGLY = 2
"""The exit code of a command line or a pipeline that can never work."""


@dataclass(frozen=True, slots=True)
class Next:
    """What is done after an end. `wait_s` None: nothing more, the service ends."""

    wait_s: float | None
    loops: bool = False


class Restarts:
    """The ends of one part."""

    def __init__(self) -> None:
        """Begin: it has not ended yet."""
        self._early = 0
        self._errors = 0
        self._held_out = False

    def ended(self, code: int, *, lived_s: float) -> Next:
        """Say what to do after an end with an exit code, or with a signal (negative)."""
        if lived_s >= STEADY_S:
            self._early = self._errors = 0
            self._held_out = True
        self._early += 1
        # A full disk says nothing about the part: it runs when there is room.
        is_error = code > 0 and code != DISK_WAS_FULL
        self._errors = self._errors + 1 if is_error else 0
        if code == ASKED_WRONGLY:
            return Next(None)
        loops = self._early >= LOOP_ENDS and code != DISK_WAS_FULL
        if self._errors >= LOOP_ENDS and not self._held_out:
            return Next(None, loops)
        return Next(min(WAIT_FIRST_S * 2 ** (self._early - 1), WAIT_LAST_S), loops)


class Pulse:
    """Whether a part's beat stands still."""

    def __init__(self, stall_s: float, *, begun_s: float) -> None:
        """Call it stalled after so long without a beat. It was started at `begun_s`."""
        self._stall_s = stall_s
        self._beat, self._since_s = 0, begun_s

    def is_stalled(self, beat: int, now_s: float) -> bool:
        """Tell so, having seen `beat` now. 0: it has none yet, and more time."""
        if beat != self._beat:
            self._beat, self._since_s = beat, now_s
        return now_s - self._since_s >= (self._stall_s if beat else max(START_S, self._stall_s))


def ending(code: int) -> str:
    """Return how a process ended, in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
