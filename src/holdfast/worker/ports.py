"""Where a worker's messages come from and go to, and both on a log with offsets.

A log gives each record an offset; the ack is the committed offset of the worker's group. A sent
message carries its `message_id` as the record's id, so a log that is IDEMPOTENT takes a copy that a
restarted worker sends once only; any other consumer drops it by the chunk's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast._base.ids import Offset
from holdfast.errors import HoldfastError
from holdfast.log.contract import QueueBackend, Record
from holdfast.worker.messages import Message, decode, encode


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and what its inbox needs to ack it."""

    message: Message
    tag: int


class Inbox(Protocol):
    """Where messages come from. What was not acked comes again after a restart."""

    def receive(self, count: int) -> list[Delivery]:
        """Return the next messages, `count` at most; none if there is none in time."""

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these, and all received before them, need not come again.

        Called after they were committed, in the order in which they were received.
        """


class Outbox(Protocol):
    """Where messages go."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send in order; returns when all are safe there. The same may be sent again."""


class LogInbox:
    """One partition of a topic, read on behalf of a group."""

    def __init__(
        self,
        backend: QueueBackend,
        topic: str,
        group: str,
        *,
        partition: int = 0,
        timeout_s: float = 0.0,
    ) -> None:
        self._backend, self._topic, self._group = backend, topic, group
        self._partition, self._timeout_s = partition, timeout_s
        backend.register_group(topic, group)
        self._next = backend.get_committed_offset(topic, group, partition=partition)

    def receive(self, count: int) -> list[Delivery]:
        """Return the next messages, `count` at most; none if there is none in time."""
        found = self._backend.fetch_batch(
            self._topic,
            self._next,
            count=count,
            partition=self._partition,
            timeout_s=self._timeout_s,
        )
        deliveries: list[Delivery] = []
        for stored in found:
            try:
                message = decode(stored.record.value)
            except HoldfastError:
                if deliveries:
                    # Those before it are dealt with first; it is met again, at the front.
                    break
                raise
            deliveries.append(Delivery(message, stored.offset))
            self._next = Offset(stored.offset + 1)
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Commit the offset behind the last of these for the group."""
        offset = Offset(deliveries[-1].tag + 1)
        self._backend.commit_offset(self._topic, self._group, offset, partition=self._partition)


class LogOutbox:
    """One partition of a topic, appended to."""

    def __init__(self, backend: QueueBackend, topic: str, *, partition: int = 0) -> None:
        self._backend, self._topic, self._partition = backend, topic, partition

    def send(self, messages: Sequence[Message]) -> None:
        """Append the messages, each under its own id."""
        records = [Record(encode(one), record_id=one.message_id) for one in messages]
        self._backend.produce_batch(self._topic, records, partition=self._partition)
