"""Names of queues: made of what they are for, so that everybody finds the same one."""

from __future__ import annotations

import re

from holdfast.errors import UsageInvalid

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
QUEUE_BYTES_MAX = 255
"""AMQP's own limit on a name."""


def _checked(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        remedy = "Use 1 to 64 letters, digits, _ and -."
        raise UsageInvalid(what=f"{what} {name!r} cannot be part of a queue's name", remedy=remedy)
    return name


def client_queue(client: str) -> str:
    """Return the queue that a client sends its chunks and ENDs to.

    Whoever may write to it is that client: the broker's permissions are the proof.
    """
    return f"clients.{_checked('client', client)}.in"


def notice_queue(client: str) -> str:
    """Return the queue on which a client hears that a run ended."""
    return f"clients.{_checked('client', client)}.notices"


def subscriber_queue(exchange: str, name: str) -> str:
    """Return the queue on which one subscriber of an exchange has its copies."""
    return f"{exchange}.{_checked('subscriber', name)}.in"


def retry_queue(queue: str) -> str:
    """Return where a message waits between two attempts."""
    return f"{queue}.retry"


def dead_queue(queue: str) -> str:
    """Return where the dead letters of a queue are."""
    return f"{queue}.dead"
