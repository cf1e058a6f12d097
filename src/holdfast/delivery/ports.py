"""What delivery needs of the queues of external producers, whoever provides them.

The queues of a run are durable, and named after it: known again after a crash, by both sides. A
message that was received and not acked is received again, by this process or the next. Order is
not promised, nor that a message comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast._base.ids import RunId
from holdfast.delivery.messages import Request

RESULTS = "results/"
"""The prefix of the names of the queues of all runs."""
RELAY_GROUP = "rabbitmq"
"""The group whose offset says how far a client's notices have been sent on to its queue."""


def header_queue(run_id: RunId) -> str:
    """Return the queue on which the producer of a run announces its series."""
    return f"{RESULTS}{run_id}/header"


def payload_queue(run_id: RunId) -> str:
    """Return the queue on which the producer of a run sends pieces."""
    return f"{RESULTS}{run_id}/payload"


def request_for(run_id: RunId, client: str) -> Request:
    """Return what the producer of a run is asked: the same whenever it is asked."""
    return Request(run_id, client, header_queue(run_id), payload_queue(run_id))


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a queue handed it out. `tag` is the queue's own, and lives as long as it."""

    queue: str
    tag: int
    body: bytes


class ResultQueues(Protocol):
    """Queues of requests to producers, and of their answers. Used by one thread."""

    def open(self, request: Request) -> None:
        """Make the two queues of a run, durable, if they are missing."""

    def send_request(self, producer: str, request: Request) -> None:
        """Put a request on a producer's queue, under its id; durable when this returns.

        May be sent again: the producer deduplicates by run.
        """

    def receive(self, queue: str, count: int) -> Sequence[Received]:
        """Return up to `count` messages that are not acked, without waiting for more."""

    def ack(self, message: Received) -> None:
        """Say that a message is dealt with: what it says is durable here."""

    def delete(self, request: Request) -> None:
        """Remove the two queues of a run with all that is on them. Missing ones are no error."""
