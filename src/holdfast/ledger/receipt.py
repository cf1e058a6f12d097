"""A receipt: what a paid step bought, reused and spent, by the ledger's own counters.

* bought, parked, failed: slots settled so. Counted in the transaction that records the outcome.
* in doubt: slots without an outcome whose owner is dead, at the moment of the receipt.
* reused: how often a row was given a recorded answer. Spark's repetitions count, for each of them
  would have been a call; so do rows that share a key. Counted by each task at its end.
* spent: what the provider charged, as `cost` says; a call whose outcome is unknown counts as
  charged once it is asked again. saved: what the reused answers had cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ledger.contract import MICROS, Ledger, Reused, Status, Totals


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a step did. Money is in dollars; `since` tells what it covers."""

    step: str
    bought: int = 0
    reused: int = 0
    in_doubt: int = 0
    parked: int = 0
    failed: int = 0
    spent_usd: float = 0.0
    saved_usd: float = 0.0

    def since(self, earlier: Receipt) -> Receipt:
        """Return what happened after `earlier`. `in_doubt` is a state: as it is now."""
        return Receipt(
            self.step,
            self.bought - earlier.bought,
            self.reused - earlier.reused,
            self.in_doubt,
            # `holdfast calls retry` takes outcomes away in between.
            max(0, self.parked - earlier.parked),
            max(0, self.failed - earlier.failed),
            round(self.spent_usd - earlier.spent_usd, 6),
            round(self.saved_usd - earlier.saved_usd, 6),
        )

    def __str__(self) -> str:
        return (
            f"{self.step}: bought {self.bought:,}, reused {self.reused:,},"
            f" in doubt {self.in_doubt:,}, parked {self.parked:,}, failed {self.failed:,},"
            f" spent {self.spent_usd:,.4f} USD, saved {self.saved_usd:,.4f} USD"
        )


def receipt_of(ledger: Ledger, step: int, name: str) -> Receipt:
    """Return the receipt of a step over the ledger's life."""
    return receipt_from(name, ledger.totals(step), ledger.reused(step))


def receipt_from(name: str, totals: Totals, reused: Reused) -> Receipt:
    """Return the receipt of a step by its counters."""
    return Receipt(
        name,
        totals.settled[Status.BOUGHT],
        reused.answers,
        totals.in_doubt,
        totals.settled[Status.PARKED],
        totals.settled[Status.FAILED],
        totals.spent_micros / MICROS,
        reused.saved_micros / MICROS,
    )
