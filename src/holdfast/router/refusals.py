"""What a refusal by intake means for a message: the dead letters, a later turn, or waiting."""

from __future__ import annotations

from holdfast.amqp.contract import Reject
from holdfast.errors import BacklogFull, EnvironmentFailed, HoldfastError, QuotaReached

WAITS = (EnvironmentFailed,)
"""What is wrong with the machine: no message can be taken, so all wait."""
POSTPONES = (BacklogFull, QuotaReached)
"""What is too much of one client now. What makes room may stand behind it in the same queue: the
END of a whole table that the engine waits for. All else is the message's own fault, also what its
sender could do better by sending again: the broker would only hand out this one."""


class Stopped(Exception):
    """Somebody asked the router to stop while it waited for the machine."""


class Postponed(Exception):
    """The message may be taken later, and others before it."""


def rejected(error: HoldfastError) -> Reject:
    """Return the rejection that carries an error to the dead letters."""
    return Reject(str(error), code=error.code)
