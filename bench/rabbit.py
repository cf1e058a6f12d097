"""The sides of `bench.backends` on RabbitMQ: the adapter, and aio-pika itself.

Quorum queues; everything sent is persistent, mandatory and confirmed; what is read is acked one by
one, and is then gone: a queue has no offsets.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count as counting
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractRobustConnection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, AMQPError

from bench.sides import Side
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.contract import Message
from holdfast.amqp.loop import LoopThread
from holdfast.amqp.topology import QueueSpec

T = TypeVar("T")
PATIENCE_S = 120.0
PREFETCH = 100
"""Of a listener, on both sides."""


class RabbitSide(Side):
    """The adapter."""

    def open(self) -> None:
        self._broker = Broker(self.address, patience_s=PATIENCE_S)
        self._broker.connect()
        self._numbers = counting()

    def close(self) -> None:
        self._broker.close()

    def _queue(self, topic: str) -> Queue:
        return Queue(self._broker, QueueSpec(topic))

    def create(self, topic: str) -> None:
        self._broker.queue(QueueSpec(topic))

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        ids = self._numbers
        self._queue(topic).publish(*(Message(one, message_id=str(next(ids))) for one in values))

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:  # noqa: ARG002 - of logs
        got, all_in = 0, threading.Event()

        def take(_: Message) -> None:
            nonlocal got
            got += 1
            if got >= count:
                all_in.set()

        consumer = self._queue(topic).consume(take, prefetch=at_once)
        assert all_in.wait(1800), f"{got} of {count} records"
        consumer.stop()

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        consumer = self._queue(topic).consume(lambda one: heard(one.body), prefetch=PREFETCH)
        try:
            yield
        finally:
            consumer.stop()


class RawRabbit(Side):
    """aio-pika alone, in a loop of its own."""

    def open(self) -> None:
        self._loop = LoopThread("raw")
        self._numbers = counting()
        self._loop.call(self._connect())

    async def _connect(self) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._connection: AbstractRobustConnection = await aio_pika.connect_robust(
                    self.address
                )
                break
            except CONNECTION_EXCEPTIONS:
                if time.monotonic() > give_up_s:
                    raise
                await asyncio.sleep(0.05)
        self._channel: AbstractChannel = await self._connection.channel(
            publisher_confirms=True, on_return_raises=True
        )

    def close(self) -> None:
        self._loop.call(self._connection.close())
        self._loop.close()

    def create(self, topic: str) -> None:
        self._loop.call(self._create(topic))

    async def _create(self, topic: str) -> None:
        quorum = {"x-queue-type": "quorum"}
        await self._channel.declare_queue(topic, durable=True, arguments={**quorum})

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        self._again(lambda: self._send(topic, values))

    def _again(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until it works: a broker that was killed takes a while to find its queues' leaders,
        and ends connections meanwhile.
        """
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._connection.is_closed:
                    self._loop.call(self._connect())
                return self._loop.call(ask())
            except (*CONNECTION_EXCEPTIONS, AMQPError):
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.05)
                with suppress(*CONNECTION_EXCEPTIONS, AMQPError):
                    self._loop.call(self._connection.close())

    async def _send(self, topic: str, values: Sequence[bytes]) -> None:
        async def send(value: bytes) -> None:
            message_id = str(next(self._numbers))
            message = aio_pika.Message(value, message_id=message_id, delivery_mode=2)
            await self._channel.default_exchange.publish(message, topic, mandatory=True)

        await asyncio.gather(*(send(value) for value in values))

    async def _consume(
        self, topic: str, prefetch: int, heard: Callable[[bytes], None]
    ) -> Callable[[], Future[None]]:
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(topic, ensure=False)

        async def take(message: AbstractIncomingMessage) -> None:
            await message.ack()
            heard(message.body)

        await queue.consume(take)
        return lambda: self._loop.submit(_closed(channel))

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:  # noqa: ARG002 - of logs
        got, all_in = 0, threading.Event()

        def heard(_: bytes) -> None:
            nonlocal got
            got += 1
            if got >= count:
                all_in.set()

        end = self._again(lambda: self._consume(topic, at_once, heard))
        assert all_in.wait(1800), f"{got} of {count} records"
        end().result()

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        end = self._loop.call(self._consume(topic, PREFETCH, heard))
        try:
            yield
        finally:
            end().result()


async def _closed(channel: AbstractChannel) -> None:
    await channel.close()
