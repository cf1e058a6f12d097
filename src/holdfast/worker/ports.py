"""Where a worker's messages come from and go to, and both on a log with offsets.

A log gives each record an offset; the ack is the committed offset of the worker's group. A sent
message carries its `message_id` as the record's id, so a log that is IDEMPOTENT takes a copy that a
restarted worker sends once only; any other consumer drops it by the chunk's identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast._base.ids import Offset
from holdfast.log.contract import QueueBackend, Record
from holdfast.worker.messages import Message, decode, encode


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and what its inbox needs to ack it."""

    message: Message
    tag: int


class Inbox(Protocol):
    """Where messages come from. What was not acked comes again after a restart."""

    def receive(self) -> Delivery | None:
        """Return the next message; None if there is none in time."""

    def ack(self, delivery: Delivery) -> None:
        """Say that this message need not come again. Called after it was committed."""


class Outbox(Protocol):
    """Where messages go."""

    def send(self, message: Message) -> None:
        """Send; returns when the message is safe there. The same may be sent again."""


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

    def receive(self) -> Delivery | None:
        """Return the next message; None if there is none in time."""
        found = self._backend.fetch(
            self._topic, self._next, partition=self._partition, timeout_s=self._timeout_s
        )
        if found is None:
            return None
        message = decode(found.record.value)
        self._next = Offset(found.offset + 1)
        return Delivery(message, found.offset)

    def ack(self, delivery: Delivery) -> None:
        """Commit the offset behind this message for the group."""
        offset = Offset(delivery.tag + 1)
        self._backend.commit_offset(self._topic, self._group, offset, partition=self._partition)


class LogOutbox:
    """One partition of a topic, appended to."""

    def __init__(self, backend: QueueBackend, topic: str, *, partition: int = 0) -> None:
        self._backend, self._topic, self._partition = backend, topic, partition

    def send(self, message: Message) -> None:
        """Append the message under its own id."""
        record = Record(encode(message), record_id=message.message_id)
        self._backend.produce(self._topic, record, partition=self._partition)
