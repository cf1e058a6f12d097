"""A worker's inbox and outbox on RabbitMQ. It has a queue of its own: nobody else consumes it.

A message stays un-acked until its data commit. After a lost connection or a crash it comes again,
known by its identity, and is only acked. A message that is none of ours can never be worked on: it
goes to the dead letters of the queue, with the reason.

Queues know no copies: what a restarted worker sends again is there twice, and is dropped by the
next worker, which knows chunks by their identity.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from itertools import count

from holdfast.amqp import contract
from holdfast.amqp.broker import Queue
from holdfast.errors import HoldfastError
from holdfast.worker.messages import Message, decode, encode
from holdfast.worker.ports import Delivery

PREFETCH = 100
"""Messages held un-acked. Fewer than a worker's batch: the batch is never full."""


class QueueInbox:
    """One queue, consumed by this worker alone."""

    def __init__(self, source: Queue, *, prefetch: int = PREFETCH, timeout_s: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._came: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._handles: dict[int, contract.Handle] = {}
        self._tags = count(1)
        self._consumer = source.consume(self._take, prefetch=prefetch)

    def _take(self, message: contract.Message, redelivered: bool, handle: contract.Handle) -> bool:
        """Keep a message for `receive`. Called in the consumer's thread."""
        del redelivered
        try:
            found = decode(message.body)
        except HoldfastError as error:
            raise contract.Reject(str(error), code=error.code) from error
        tag = next(self._tags)
        self._handles[tag] = handle
        self._came.put(Delivery(found, tag))
        return False

    def receive(self, count: int) -> list[Delivery]:
        """Return the next messages, `count` at most; none if there is none in time.

        Raises:
            BrokerRefused, QueueMismatch: the queue is consumed no more, so none will come.
        """
        found: list[Delivery] = []
        try:
            found.append(self._came.get(timeout=self._timeout_s or None, block=self._timeout_s > 0))
            while len(found) < count:
                found.append(self._came.get_nowait())
        except queue.Empty:
            pass
        if not found and (failure := self._consumer.failure()) is not None:
            raise failure
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Ack each. One whose tag died with its channel comes again, and is known then."""
        for delivery in deliveries:
            self._handles.pop(delivery.tag).ack()

    def close(self) -> None:
        """Stop consuming: what is not acked comes again."""
        self._consumer.stop()


class QueueOutbox:
    """One queue, sent to."""

    def __init__(self, target: Queue) -> None:
        self._target = target

    def send(self, messages: Sequence[Message]) -> None:
        """Send under the messages' own ids; returns when the broker has confirmed all."""
        self._target.publish(
            *(contract.Message(encode(one), one.message_id, type(one).__name__) for one in messages)
        )
