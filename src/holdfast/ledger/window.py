"""The window of a task: the rows it has read and not yet handed on, in their order.

Only the task's thread changes it. Rows that must be bought are bounded, so that a reader who stops
(`limit(5)`) has bought little; rows with a recorded answer cost nothing and are bounded by memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import cast

from holdfast._base.invariant import invariant
from holdfast.ledger.asking import Pending
from holdfast.ledger.contract import Outcome, Status

SLICE_ROWS = 4096
"""Most rows of one slice, bought or not: bounds memory."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The settled outcome of a row, and what to tell of it."""

    outcome: Outcome
    status: Status
    called: bool
    """Whether this very row led to the call. Unlike the status it differs when Spark asks again."""


@dataclass(slots=True)
class _Position:
    """A row of the input, in order. `first`: the row whose asking made the pending.

    `costly`: no answer was recorded when it came, so it may have to be bought.
    """

    pending: Pending
    first: bool
    costly: bool


class Window:
    """Rows between reading and handing on.

    Until the first slice was taken it holds `max_in_flight` rows to be bought, then `ahead` more.
    """

    def __init__(self, max_in_flight: int, ahead: int, since_ms: int) -> None:
        self._max_in_flight, self._ahead, self._since_ms = max_in_flight, ahead, since_ms
        self._most = max_in_flight
        self._positions: deque[_Position] = deque()
        self._costly = 0
        self._live: dict[bytes, Pending] = {}

    def merge(self, pending: Pending) -> bool:
        """Add a row whose very slot is in the window already. Returns False if it is not."""
        merged = self._live.get(pending.slot.hash)
        if merged is None or merged.slot.inputs != pending.slot.inputs:
            return False
        self._positions.append(_Position(merged, first=False, costly=False))
        return True

    def add_known(self, pending: Pending) -> None:
        """Add a row whose answer is recorded."""
        self._positions.append(_Position(pending, first=True, costly=False))

    def add(self, pending: Pending) -> Pending | None:
        """Add a row to be bought. Returns one before it with the same key and other inputs."""
        behind = self._live.get(pending.slot.hash)
        if behind is None:
            self._live[pending.slot.hash] = pending
        self._positions.append(_Position(pending, first=True, costly=True))
        self._costly += 1
        return behind

    def is_empty(self) -> bool:
        """Tell whether every row was handed on."""
        return not self._positions

    def is_full(self) -> bool:
        """Tell whether rows must leave before more may enter."""
        return self._costly >= self._most or len(self._positions) >= SLICE_ROWS

    def is_takeable(self, unresolved: int) -> bool:
        """Tell whether enough rows at the front are done to be worth a slice.

        One is enough when few calls are left on their way: those behind need the room.
        """
        if not self._positions[0].pending.done:
            return False
        if unresolved <= self._max_in_flight:
            return True
        enough = max(1, self._max_in_flight // 2)
        return sum(1 for p in islice(self._positions, enough) if p.pending.done) >= enough

    def take(self) -> list[Answer]:
        """Take the rows at the front that are done, at most `max_in_flight` that were bought.

        Raises:
            HoldfastError: the first row has no answer but an error.
        """
        taken: list[Answer] = []
        costly = 0
        while self._positions and costly < self._max_in_flight:
            position = self._positions[0]
            pending = position.pending
            if not pending.done or (taken and pending.error is not None):
                break
            if pending.error is not None:
                raise pending.error
            self._positions.popleft()
            taken.append(self._answer(position))
            costly += position.costly
            if position.first and self._live.get(pending.slot.hash) is pending:
                del self._live[pending.slot.hash]
        self._costly -= costly
        self._most = self._max_in_flight + self._ahead
        return taken

    def _answer(self, position: _Position) -> Answer:
        """Read the status off the outcome alone: whoever computes the row again must tell the same.

        Spark compares checksums of rows that it computes twice, and stops a job whose rows differ.
        """
        pending = position.pending
        outcome = pending.outcome
        invariant(outcome is not None, "a row without an outcome was taken")
        outcome = cast(Outcome, outcome)
        reused = outcome.status is Status.BOUGHT and outcome.recorded_ms < self._since_ms
        called = position.first and pending.bought_here
        return Answer(outcome, Status.REUSED if reused else outcome.status, called)
