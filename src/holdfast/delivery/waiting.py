"""What a run waits for from outside: its client, or its producer. Pure.

A run that waits stays as it is, however long; it never completes because time went by. It is
shown with what is missing and since when, and counted. Work of our own is not waited for here.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._base.intervals import Intervals
from holdfast.delivery.rules import lacks
from holdfast.store.contract import Store
from holdfast.store.rows import Run, RunKind, RunState, SenderProgress


def missing_inputs(progress: Sequence[SenderProgress]) -> list[str]:
    """Return what a run's senders still have to send, in words."""
    found = []
    for one in progress:
        if one.produced:
            continue
        name = f"{one.table}, sender {one.sender}" if one.sender else one.table
        if one.announced is None:
            found.append(f"END of {name}")
        elif missing := Intervals.first(one.announced).minus(one.received):
            found.append(f"chunks {missing} of {name}")
    return found


def awaited(store: Store, run: Run) -> list[str]:
    """Return what a run waits for from outside; nothing: it is over, or at work."""
    if run.state == RunState.OPEN:
        return missing_inputs(store.read_progress(run.run_id))
    if run.kind is RunKind.EXTERNAL and run.state == RunState.RECEIVING:
        known = store.read_external(run.run_id)
        return lacks(known.facts) if known else []
    return []
