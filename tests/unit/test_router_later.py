"""How a message for which there is no room is sent on, and how its router slows down."""

from __future__ import annotations

import pytest

from holdfast.amqp.contract import Message
from holdfast.amqp.topology import attempts_of
from holdfast.router.later import PAUSE_MAX_S, PAUSE_S, TURNS, later_copy, pause_of, turns_of


def test_each_turn_is_counted_and_the_message_stays_what_it_is() -> None:
    first = Message(b"body", "id", "kind", {"x-death": [{"queue": "q.retry"}], "own": "kept"})
    second = later_copy("q", first)
    assert second == Message(b"body", "id", "kind", {"own": "kept", TURNS: 1})
    assert [turns_of(one) for one in (first, second, later_copy("q", second))] == [0, 1, 2]


def test_attempts_that_raised_are_carried_on() -> None:
    """The broker's own count starts from zero with each copy."""
    raised = {"queue": "q", "reason": "rejected", "count": 2}
    waited = {"queue": "q.retry", "reason": "expired", "count": 2}
    copy = later_copy("q", Message(b"", headers={"x-death": [raised, waited]}))
    assert attempts_of("q", copy.headers) == 2
    again = later_copy("q", Message(b"", headers={**copy.headers, "x-death": [waited]}))
    assert attempts_of("q", again.headers) == 2
    raised_again = {**again.headers, "x-death": [{**raised, "count": 1}]}
    assert attempts_of("q", raised_again) == 3


def test_pauses_grow_to_a_limit() -> None:
    assert pause_of(0) == PAUSE_S
    pauses = [pause_of(turns) for turns in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[1] == 2 * PAUSE_S
    assert pauses[-1] == PAUSE_MAX_S


@pytest.mark.parametrize("told", ["many", -3, None, 10**30, [1]])
def test_a_clients_own_header_does_no_harm(told: object) -> None:
    message = Message(b"", headers={TURNS: told})
    assert PAUSE_S <= pause_of(turns_of(message)) <= PAUSE_MAX_S
    assert 1 <= turns_of(later_copy("q", message)) <= 20
