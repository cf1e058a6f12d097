r"""The states of a run, and the moves between them.

    OPEN -> FORWARDING -> RECEIVING -> COMPLETING -> DONE -> SWEPT
      \________\____________\____________\-> FAILED, CANCELLED, ABANDONED -> SWEPT

For a run on Spark FORWARDING begins with the barrier, RECEIVING with the first final result,
COMPLETING with the last. Each move is persisted before it is acted on. The table knows nothing
of results: whatever has these states can use it.
"""

from __future__ import annotations

from holdfast._base.ids import RunId
from holdfast._base.invariant import invariant
from holdfast.store.contract import RunStore
from holdfast.store.rows import Fence, RunState

_STOPS = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.ABANDONED})

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.OPEN: frozenset({RunState.FORWARDING}) | _STOPS,
    RunState.FORWARDING: frozenset({RunState.RECEIVING}) | _STOPS,
    RunState.RECEIVING: frozenset({RunState.COMPLETING}) | _STOPS,
    RunState.COMPLETING: frozenset({RunState.DONE}) | _STOPS,
    RunState.DONE: frozenset({RunState.SWEPT}),
    RunState.FAILED: frozenset({RunState.SWEPT}),
    RunState.CANCELLED: frozenset({RunState.SWEPT}),
    RunState.ABANDONED: frozenset({RunState.SWEPT}),
    RunState.SWEPT: frozenset(),
}
"""Where a run may go from each state. Any other move is a bug."""

TERMINAL = frozenset({RunState.DONE, RunState.SWEPT}) | _STOPS
"""States in which a run does no more work."""


def may_move(current: RunState, to: RunState) -> bool:
    """Tell whether the table allows a move."""
    return to in TRANSITIONS[current]


def move(
    store: RunStore,
    fence: Fence,
    run_id: RunId,
    *,
    current: RunState,
    to: RunState,
    error: str | None = None,
) -> bool:
    """Persist a move. False: the run was not in `current` any more, and nothing changed."""
    invariant(may_move(current, to), f"run {run_id}: no move leads from {current} to {to}")
    return store.move_run(fence, run_id, expected=current, to=to, error=error)
