"""How a message for which there is no room is sent on, and how its router slows down."""

from __future__ import annotations

import pytest

from holdfast.amqp.contract import Message
from holdfast.router.later import PAUSE_MAX_S, PAUSE_S, TURNS, later_copy, pause_of, turns_of


def test_each_turn_is_counted_and_the_message_stays_what_it_is() -> None:
    first = Message(b"body", "id", "kind", {"x-death": [{"queue": "q.retry"}], "own": "kept"})
    second = later_copy(first)
    assert second == Message(b"body", "id", "kind", {"own": "kept", TURNS: 1})
    assert [turns_of(one) for one in (first, second, later_copy(second))] == [0, 1, 2]


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
    assert 1 <= turns_of(later_copy(message)) <= 20
