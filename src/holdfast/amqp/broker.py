"""A connection to RabbitMQ as callers see it: queues and exchanges, synchronous.

    with Broker("amqp://user@localhost/") as broker:
        queue = broker.queue(QueueSpec("orders"))
        queue.publish(Message(b"...", message_id="order-1"))
        consumer = queue.consume(work)

Everything sent is durable, mandatory and confirmed: a call that returns was taken by a queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from holdfast._base.clock import Clock, SystemClock
from holdfast.errors import DependencyMissing, UsageInvalid

try:
    from holdfast.amqp.consumer import Consumer, Tell
    from holdfast.amqp.link import Link
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("holdfast"):
        raise
    raise DependencyMissing(
        what="RabbitMQ needs the package aio-pika", install="pip install 'holdfast[rabbitmq]'"
    ) from missing

from holdfast.amqp.address import Address, address_of
from holdfast.amqp.contract import PREFETCH, Callback, DeadLetter, Message
from holdfast.amqp.loop import LoopThread
from holdfast.amqp.names import dead_queue, retry_queue, subscriber_queue
from holdfast.amqp.topology import ATTEMPTS, CODE, QUEUE, REASON, QueueSpec

PATIENCE_S = 30.0
"""How long a call goes on trying while the broker is away: a restart takes it a few seconds."""
KINDS = ("direct", "topic", "fanout")


def say_nothing(event: str, facts: dict[str, Any]) -> None:
    """Be told, and do nothing about it."""


def _forget(generation: int) -> None:
    """Do nothing about lost tags: their messages come again."""


class Broker:
    """One connection, made again when it breaks, with an event loop's thread behind it."""

    def __init__(
        self,
        url: str | Address,
        *,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
        tell: Tell = say_nothing,
    ) -> None:
        """Connects when first used. `tell` hears of what consumers live through."""
        self.address = url if isinstance(url, Address) else address_of(url)
        self.tell = tell
        self.loop = LoopThread("amqp")
        self._consumers: list[Consumer] = []
        self._guard = threading.Lock()
        self._clock, self._patience_s = clock or SystemClock(), patience_s
        self.link = self.loop.call(self._make_link())

    async def _make_link(self) -> Link:
        return Link(self.address, clock=self._clock, patience_s=self._patience_s)

    def connect(self) -> None:
        """Connect now.

        Raises:
            BrokerUnreachable, BrokerRefused: it cannot be.
        """
        self.loop.call(self._connect())

    async def _connect(self) -> None:
        await self.link.connection(self.link.deadline())

    def queue(self, spec: QueueSpec | str) -> Queue:
        """Return a queue, declared with its neighbours.

        Raises:
            QueueMismatch: it exists with other settings.
            BrokerUnreachable, BrokerRefused: see `connect`.
        """
        spec = spec if isinstance(spec, QueueSpec) else QueueSpec(spec)
        self.loop.call(self.link.declare_queue(spec))
        return Queue(self, spec)

    def delete(self, queue: str) -> None:
        """Delete a queue and its neighbours with all that is in them. Missing ones: no error."""
        names = (queue, retry_queue(queue), dead_queue(queue))
        self.loop.call(self.link.delete(*names))

    def exchange(self, name: str, kind: str = "direct") -> Exchange:
        """Return an exchange, declared. Raises as `queue`."""
        if kind not in KINDS or not name:
            remedy = f"Give it a name and one of {', '.join(KINDS)}."
            raise UsageInvalid(what=f"an exchange {name!r} of kind {kind!r}", remedy=remedy)
        self.loop.call(self.link.declare_exchange(name, kind))
        return Exchange(self, name)

    def publish(self, key: str, messages: Iterable[Message], *, exchange: str = "") -> None:
        """Send messages, many in flight; returns when every one is confirmed.

        Raises:
            MessageUnroutable, MessageReturned, MessageNacked: the first that was not sent; others
                may have been.
            BrokerUnreachable, BrokerRefused: see `connect`.
        """
        self.loop.call(self._publish(exchange, key, tuple(messages)))

    async def _publish(self, exchange: str, key: str, messages: tuple[Message, ...]) -> None:
        deadline = self.link.deadline()
        sent = (self.link.publish(exchange, key, message, deadline) for message in messages)
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def enlist(self, consumer: Consumer) -> None:
        """Remember a consumer, to stop it with the broker."""
        with self._guard:
            self._consumers.append(consumer)

    def close(self) -> None:
        """Stop all consumers and hang up. What is unfinished stays un-acked, and comes again."""
        with self._guard:
            consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.stop()
        with suppress(RuntimeError):
            self.loop.call(self.link.close())
        self.loop.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Queue:
    """One queue and its neighbours. Made by `Broker.queue`."""

    def __init__(self, broker: Broker, spec: QueueSpec) -> None:
        self._broker, self.spec = broker, spec

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def publish(self, *messages: Message) -> None:
        """Send to this queue; returns when all are confirmed. Raises as `Broker.publish`."""
        self._broker.publish(self.name, messages)

    def consume(
        self,
        callback: Callback,
        *,
        prefetch: int = PREFETCH,
        threads: int = 1,
        tell: Tell | None = None,
        lost: Callable[[int], None] = _forget,
    ) -> Consumer:
        """Hand messages to `callback` until stopped; at most `prefetch` are un-acked at a time.

        Several `threads` call it at once, in no order; one keeps the queue's order, but for what
        comes again.

        Raises:
            UsageInvalid: the callback takes other arguments.
            BrokerUnreachable, BrokerRefused, QueueMismatch: it cannot be consumed.
        """
        if prefetch < 1 or threads < 1:
            what = f"queue {self.name} with prefetch {prefetch} and {threads} threads"
            raise UsageInvalid(what=what, remedy="Both count from 1.")
        consumer = Consumer(
            self._broker.loop,
            self._broker.link,
            self.spec,
            callback,
            prefetch=prefetch,
            threads=threads,
            tell=tell or self._broker.tell,
            lost=lost,
        )
        self._broker.enlist(consumer)
        consumer.ready()
        return consumer

    def depth(self) -> int | None:
        """Return how many messages wait, those that consumers hold not counted; None: no queue."""
        return self._broker.loop.call(self._broker.link.depth(self.name))

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Return the oldest dead letters. They stay where they are."""
        return self._broker.loop.call(self._look(limit))

    async def _look(self, limit: int) -> list[DeadLetter]:
        channel = await self._broker.link.open_channel(self._broker.link.deadline(), confirms=False)
        found: list[DeadLetter] = []
        try:
            queue = await channel.get_queue(dead_queue(self.name), ensure=False)
            while len(found) < limit and (one := await queue.get(fail=False)) is not None:
                headers = dict(one.headers)
                attempts = headers.get(ATTEMPTS, 0)
                found.append(
                    DeadLetter(
                        Message(one.body, one.message_id or "", one.type or "", headers),
                        str(headers.get(QUEUE, "")),
                        str(headers.get(CODE, "")),
                        str(headers.get(REASON, "")),
                        attempts if isinstance(attempts, int) else 0,
                    )
                )
        finally:
            await channel.close()  # un-acked, so each goes back to its place
        return found

    def delete(self) -> None:
        """Delete the queue and its neighbours with all that is in them. Again: no error."""
        self._broker.delete(self.name)


class Exchange:
    """Passes messages on to the queues bound to it. Made by `Broker.exchange`."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker, self.name = broker, name

    def bind(self, queue: Queue, key: str) -> None:
        """Let this queue get messages with this key.

        A consumer of this broker that finds its queue deleted makes it again with this.
        """
        self._broker.loop.call(self._broker.link.bind(self.name, queue.name, key))

    def consume(
        self,
        callback: Callback,
        *,
        name: str,
        key: str = "",
        prefetch: int = PREFETCH,
        threads: int = 1,
    ) -> Consumer:
        """Hand copies of what is sent with this key to `callback`, as `Queue.consume` does.

        They wait in a queue of their own, `<exchange>.<name>.in`, from the first call on, also
        while nobody consumes. Consumers of one name share it; those of another have their own.
        Called again with another key, it gets both. Raises as there.
        """
        queue = self._broker.queue(subscriber_queue(self.name, name))
        self.bind(queue, key)
        return queue.consume(callback, prefetch=prefetch, threads=threads)

    def publish(self, key: str, *messages: Message) -> None:
        """Send with a key; returns when all are confirmed. Raises as `Broker.publish`."""
        self._broker.publish(key, messages, exchange=self.name)
