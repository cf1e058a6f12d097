"""Moves of a run, persisted before they are acted on.

The table of moves stands in `holdfast.store.states`, where every transaction that moves a run asks
it. For a run on Spark FORWARDING begins with the barrier, RECEIVING with the first final result,
COMPLETING with the last. For an external run FORWARDING begins when its inputs are complete,
RECEIVING when the producer was asked, COMPLETING when no piece of any series is missing.
"""

from __future__ import annotations

from holdfast._base.ids import RunId
from holdfast.store.contract import RunStore
from holdfast.store.rows import Fence, RunState
from holdfast.store.states import RUN_MOVES, STOPS

TRANSITIONS: dict[RunState, frozenset[RunState]] = RUN_MOVES.table
"""Where a run may go from each state. Any other move is a bug."""

TERMINAL = frozenset({RunState.DONE, RunState.SWEPT}) | STOPS
"""States in which a run does no more work."""


def may_move(current: RunState, to: RunState) -> bool:
    """Tell whether the table allows a move."""
    return RUN_MOVES.allow(current, to)


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
    RUN_MOVES.require(current, to, what=f"run {run_id}")
    return store.move_run(fence, run_id, expected=current, to=to, error=error)
