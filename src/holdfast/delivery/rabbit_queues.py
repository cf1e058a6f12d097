"""Queues of external producers on RabbitMQ, and clients' notices there.

The two queues of a run are deleted with it: when it is done, or abandoned and swept. Should nobody
do that, they expire, later than any run is abandoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import START, Offset
from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Message
from holdfast.amqp.names import notice_queue
from holdfast.amqp.pull import Pull
from holdfast.amqp.topology import QueueSpec, expiry_after
from holdfast.delivery.messages import Request, encode
from holdfast.delivery.ports import RELAY_GROUP, Received
from holdfast.delivery.troubles import Troubles
from holdfast.errors import MessageUnroutable
from holdfast.store.contract import TopicStore, notice_topic

KIND_REQUEST, KIND_NOTICE = "holdfast.request", "holdfast.notice"
NOTICES_AT_ONCE = 100


class RabbitQueues:
    """Fills `holdfast.delivery.ports.ResultQueues`. Used by one thread."""

    def __init__(self, broker: Broker, *, abandon_s: float) -> None:
        """`abandon_s`: after how long a run is abandoned; 0: never, and queues never expire."""
        self._broker, self._pull = broker, Pull(broker)
        self._expires_s = expiry_after(abandon_s) if abandon_s else None

    def open(self, request: Request) -> None:
        """Make the two queues of a run, durable, if they are missing."""
        for name in (request.header_queue, request.payload_queue):
            self._broker.queue(QueueSpec(name, expires_s=self._expires_s))

    def send_request(self, producer: str, request: Request) -> None:
        """Put a request on a producer's queue, under its id; confirmed when this returns."""
        queue = self._broker.queue(producer)
        queue.publish(Message(encode(request), request.message_id, KIND_REQUEST))

    def receive(self, queue: str, count: int) -> Sequence[Received]:
        """Return up to `count` messages that are not acked. A queue that vanished has none."""
        with suppress(MessageUnroutable):
            found = self._pull.take(queue, count)
            return [Received(queue, number, message.body) for number, message in found]
        return ()

    def ack(self, message: Received) -> None:
        """Say that a message is dealt with. If its channel is gone it comes again."""
        self._pull.ack(message.tag)

    def delete(self, request: Request) -> None:
        """Remove the two queues of a run with all that is on them."""
        for name in (request.header_queue, request.payload_queue):
            self._broker.delete(name)


class NoticeRelay:
    """Sends clients' notices on to their queues, in order, at least once each, under their ids."""

    def __init__(self, store: TopicStore, broker: Broker, troubles: Troubles) -> None:
        self._store, self._broker, self._troubles = store, broker, troubles
        self._registered: set[str] = set()

    def advance(self) -> int:
        """Send what has come since; returns how many notices.

        1. Our group is known on every client's topic, whether or not the broker answers: from then
           on no sweep drops a notice that was not sent.
        2. The notices are confirmed by the client's queue.
        3. The group's offset moves behind them. Crash in between: they are sent again.

        A client whose queue does not take them keeps its own waiting; the others get theirs.
        """
        prefix = notice_topic("")
        topics = [topic for topic in self._store.list_topics() if topic.startswith(prefix)]
        for topic in topics:
            if topic not in self._registered:
                self._store.register_group(topic, RELAY_GROUP)
                self._registered.add(topic)
        sent = 0
        for topic in topics:
            client = topic.removeprefix(prefix)
            work = partial(self._send, topic, client)
            what = f"the queue of client {client}"
            sent += self._troubles.attempt(what, work, asks_broker=True)
        return sent

    def _send(self, topic: str, client: str) -> int:
        position = self._store.read_offset(topic, 0, RELAY_GROUP) or START
        found = self._store.read_records(topic, 0, position, NOTICES_AT_ONCE)
        if not found:
            return 0
        messages = [
            Message(stored.record.value, stored.record.record_id, KIND_NOTICE) for stored in found
        ]
        self._broker.queue(notice_queue(client)).publish(*messages)
        crashpoint("queue.notice.sent")
        self._store.advance_offset(topic, 0, RELAY_GROUP, Offset(found[-1].offset + 1))
        return len(found)
