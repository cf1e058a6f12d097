"""When is a run's input complete? When every announced chunk is applied, and no other. Pure.

Sets are compared, never counts: with a count, one chunk applied twice would hide one that is
missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._base.intervals import Intervals
from holdfast.store.rows import SenderProgress


def is_complete(progress: Sequence[SenderProgress]) -> bool:
    """Tell whether each sender's applied chunks are exactly those it announced.

    No sender at all is complete. A sender that said END with 0 is complete with nothing applied.
    """
    return all(
        sender.announced is not None and sender.applied == Intervals.first(sender.announced)
        for sender in progress
    )


def missing(sender: SenderProgress) -> Intervals:
    """Return the announced ordinals that have not been received."""
    return Intervals.first(sender.announced or 0).minus(sender.received)


def are_complete(progress: Sequence[SenderProgress], tables: Sequence[str]) -> bool:
    """Tell whether these whole tables are complete, so that a batch may use them."""
    return is_complete([sender for sender in progress if sender.table in tables])
