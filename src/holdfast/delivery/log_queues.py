"""Queues of external producers on a log: topics with one group, which is delivery's.

An ack moves the group's offset, so messages of one queue are acked in the order they were received.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._base.ids import Offset
from holdfast.delivery.messages import Request, encode
from holdfast.delivery.ports import Received
from holdfast.log.contract import QueueBackend, Record
from holdfast.store.contract import TopicStore

DELIVERY_GROUP = "delivery"


class LogQueues:
    """Fills `holdfast.delivery.ports.ResultQueues` with topics of the embedded log."""

    def __init__(self, log: QueueBackend, store: TopicStore) -> None:
        """Use the topics of `log`, which are those of `store`."""
        self._log, self._store = log, store

    def open(self, request: Request) -> None:
        """Make the two topics of a run; delivery's group keeps what it has not read."""
        for queue in (request.header_queue, request.payload_queue):
            self._log.create_topic(queue)
            self._log.register_group(queue, DELIVERY_GROUP)

    def send_request(self, producer: str, request: Request) -> None:
        """Append a request to a producer's topic, once under its id while it is held.

        Those that every group of the producer has passed go: nobody else ever removes one. So a
        request that is made again after a crash may come again, as it may on any queue.
        """
        self._log.create_topic(producer)
        self._log.produce(producer, Record(encode(request), record_id=request.message_id))
        _, free = self._store.topic_bounds(producer, 0)
        self._store.truncate_records(producer, 0, free)

    def receive(self, queue: str, count: int) -> Sequence[Received]:
        """Return records from the group's offset on."""
        offset = self._log.get_committed_offset(queue, DELIVERY_GROUP)
        found = self._log.fetch_batch(queue, offset, count=count)
        return [Received(queue, stored.offset, stored.record.value) for stored in found]

    def ack(self, message: Received) -> None:
        """Move the group's offset behind a record."""
        self._log.commit_offset(message.queue, DELIVERY_GROUP, Offset(message.tag + 1))

    def delete(self, request: Request) -> None:
        """Remove the two topics of a run."""
        for queue in (request.header_queue, request.payload_queue):
            self._store.drop_topic(queue)
