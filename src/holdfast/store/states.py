r"""The states of a run, and the moves between them: the one table.

    OPEN -> FORWARDING -> RECEIVING -> COMPLETING -> DONE -> SWEPT
      \________\____________\____________\-> FAILED, CANCELLED, ABANDONED -> SWEPT

It knows nothing of results. Every transaction that moves a run asks it, whoever wants the move:
engine, gateway or delivery.
"""

from __future__ import annotations

from holdfast._base.transitions import Transitions
from holdfast.store.rows import RunState

STOPS = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.ABANDONED})
"""Where a run may go from any state in which it still works."""

RUN_MOVES: Transitions[RunState] = Transitions(
    {
        RunState.OPEN: frozenset({RunState.FORWARDING}) | STOPS,
        RunState.FORWARDING: frozenset({RunState.RECEIVING}) | STOPS,
        RunState.RECEIVING: frozenset({RunState.COMPLETING}) | STOPS,
        RunState.COMPLETING: frozenset({RunState.DONE}) | STOPS,
        RunState.DONE: frozenset({RunState.SWEPT}),
        RunState.FAILED: frozenset({RunState.SWEPT}),
        RunState.CANCELLED: frozenset({RunState.SWEPT}),
        RunState.ABANDONED: frozenset({RunState.SWEPT}),
        RunState.SWEPT: frozenset(),
    }
)
"""Where a run may go from each state. Any other move is a bug."""
