"""A message for which there is no room now: its next turn, and how long its router waits. Pure.

Its copy waits in the retry queue of its own queue, at the broker, and comes back behind what came
meanwhile. How many turns it had stands in a header, so it is as durable as the message, and any
router knows it.
"""

from __future__ import annotations

from holdfast.amqp.contract import Message
from holdfast.amqp.topology import CARRIED, attempts_of

TURNS = "holdfast-postponed"
"""The header that counts turns. A client may set it, and slows nobody down but itself."""
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""Before a message is sent on, doubled at each of its turns: everything that stands behind is
reached once at the first pace. Shorter: a client that has too much here for days keeps the broker
writing. Longer: an END that comes late behind many such messages is reached later."""
_DOUBLINGS_MAX = 10


def turns_of(message: Message) -> int:
    """Return how often a message was sent on before."""
    turns = message.headers.get(TURNS)
    return max(turns, 0) if isinstance(turns, int) else 0


def pause_of(turns: int) -> float:
    """Return how long to wait before a message that had so many turns is sent on."""
    return min(PAUSE_S * 2.0 ** min(turns, _DOUBLINGS_MAX), PAUSE_MAX_S)


def later_copy(queue: str, message: Message) -> Message:
    """Return what is sent on, to come back to `queue`.

    Without `x-death`: the broker drops what goes in circles and was never rejected. The attempts
    that raised, which it counted there, are carried on.
    """
    headers = {name: value for name, value in message.headers.items() if name != "x-death"}
    if (attempts := attempts_of(queue, message.headers)) > 0:
        headers[CARRIED] = attempts
    headers[TURNS] = min(turns_of(message), _DOUBLINGS_MAX) + 1
    return Message(message.body, message.message_id, message.kind, headers)
