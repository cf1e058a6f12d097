"""Calls of the client library's consumers that may never come back.

librdkafka (seen with 2.16.0) can lock itself up when a broker dies while it compares its place with
the new leader's: its main thread waits for a lock that another of its threads has, and that one for
the main thread. Whatever has to ask the main thread then waits for ever: `assign`, `close`. Reading
only finds nothing. So the former are waited for a while, and a consumer that gives nothing of what
is there is replaced (`fetching`). What is left behind is its threads and its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer

CALL_S = 5.0
"""What these calls take otherwise: milliseconds, with a broker that is away, too. Longer: a fetch
stands still for so long. Shorter: on a busy machine one is given up that works."""


def comes_back(call: Callable[[], object], within_s: float | None = None) -> bool:
    """Tell whether a call came back in time. What it raises is raised here."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # raised again by whoever waits
            raised.append(error)

    thread = threading.Thread(target=work, name="kafka", daemon=True)
    thread.start()
    thread.join(CALL_S if within_s is None else within_s)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def let_go(consumer: Consumer) -> None:
    """Close a consumer, or leave it behind."""
    comes_back(consumer.close)
