"""The transition table of runs."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast._base.ids import RunId
from holdfast.delivery.states import TERMINAL, TRANSITIONS, may_move, move
from holdfast.errors import InvariantViolated
from holdfast.store.rows import CLOSED_STATES, NewRun, RunState, SenderDecl
from holdfast.store.sqlite import SqliteStore

RUN = RunId("r")
ALLOWED = {
    ("OPEN", "FORWARDING"),
    ("FORWARDING", "RECEIVING"),
    ("RECEIVING", "COMPLETING"),
    ("COMPLETING", "DONE"),
    *product(
        ("OPEN", "FORWARDING", "RECEIVING", "COMPLETING"), ("FAILED", "CANCELLED", "ABANDONED")
    ),
    *product(("DONE", "FAILED", "CANCELLED", "ABANDONED"), ("SWEPT",)),
}
PAIRS = list(product(RunState, RunState))


def test_the_table_is_this_one() -> None:
    assert {(a, b) for a, b in PAIRS if may_move(a, b)} == ALLOWED
    assert set(TRANSITIONS) == set(RunState)


def test_every_state_can_be_reached_from_open() -> None:
    reached, pending = set(), [RunState.OPEN]
    while pending:
        state = pending.pop()
        if state not in reached:
            reached.add(state)
            pending += TRANSITIONS[state]
    assert reached == set(RunState)


def test_terminal_states_lead_to_swept_at_most_and_swept_nowhere() -> None:
    assert TRANSITIONS[RunState.SWEPT] == frozenset()
    for state in TERMINAL:
        assert TRANSITIONS[state] <= {RunState.SWEPT}
    for state in set(RunState) - TERMINAL:
        assert RunState.SWEPT not in TRANSITIONS[state]
    assert TERMINAL == CLOSED_STATES


def test_work_goes_forward_only() -> None:
    """No cycle: a run passes each state at most once."""
    order = list(RunState)
    for state, nexts in TRANSITIONS.items():
        assert all(order.index(following) > order.index(state) for following in nexts)


@pytest.mark.parametrize(("current", "to"), [p for p in PAIRS if p not in ALLOWED], ids=str)
def test_a_move_that_is_not_in_the_table_stops_before_the_store(
    current: RunState, to: RunState
) -> None:
    store = SqliteStore.memory()
    try:
        with pytest.raises(InvariantViolated):
            move(store, store.take_lease("engine", "x"), RUN, current=current, to=to)
    finally:
        store.close()


def test_a_move_is_persisted_once_and_only_from_the_state_it_names() -> None:
    store = SqliteStore.memory()
    try:
        store.create_run(NewRun(RUN, "", "p", {}, 1, (SenderDecl("t", "", 1),), 0))
        fence = store.take_lease("engine", "x")
        to_failed = {"current": RunState.OPEN, "to": RunState.FAILED}
        assert move(store, fence, RUN, **to_failed, error="why")
        assert not move(store, fence, RUN, **to_failed, error="again")
        run = store.read_run(RUN)
        assert run is not None
        assert (run.state, run.error) == ("FAILED", "why")
    finally:
        store.close()
