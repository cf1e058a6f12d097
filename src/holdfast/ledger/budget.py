"""What a step may still ask, and what its outcomes add up to. Pure: both kinds of ledger use it.

Money is in integer millionths of a dollar.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ledger.contract import Limit, Outcome, Status


@dataclass(slots=True)
class Sums:
    """What a transaction adds to a step's counters."""

    bought: int = 0
    parked: int = 0
    failed: int = 0
    spent: int = 0
    dearest: int = 0
    held: int = 0

    def add(self, outcome: Outcome, held: int) -> None:
        """Count one outcome whose claim had reserved `held`."""
        self.bought += outcome.status is Status.BOUGHT
        self.parked += outcome.status is Status.PARKED
        self.failed += outcome.status is Status.FAILED
        self.spent += outcome.cost_micros
        self.dearest = max(self.dearest, outcome.cost_micros)
        self.held += held


@dataclass(slots=True)
class Room:
    """What a step may still ask, while claims are granted one by one."""

    step: int
    limit: Limit
    calls: int
    spent: int
    reserved: int
    each: int

    def most(self, wanted: int) -> int:
        """Return how many of `wanted` calls the budget allows."""
        if self.limit.calls is not None:
            wanted = min(wanted, self.limit.calls - self.calls)
        if self.limit.cost_micros is not None:
            left = self.limit.cost_micros - self.spent - self.reserved
            # A call of unknown price is allowed as long as anything is left.
            wanted = min(wanted, left // self.each if self.each else wanted * (left > 0))
        return max(0, wanted)

    def take(self, *, lost: int) -> None:
        """Reserve one call.

        `lost` was reserved by an attempt whose outcome is unknown: it counts as charged.
        """
        self.calls += 1
        self.spent += lost
        self.reserved += self.each - lost
