"""One connection to a broker at a time, made again when it breaks. Lives in the loop's thread.

aio-pika also offers connections that mend themselves. Here a broken one is never mended, it is
replaced: then it is certain which delivery tags died with it, and every publisher hears whether
its message was confirmed (docs/adr/0022).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)
from aiormq import spec

from holdfast._base.clock import Clock
from holdfast.amqp.address import Address
from holdfast.amqp.contract import Message
from holdfast.amqp.names import dead_queue, retry_queue
from holdfast.amqp.topology import QueueSpec, declarations, version_of
from holdfast.errors import (
    BrokerRefused,
    BrokerUnreachable,
    HoldfastError,
    MessageNacked,
    MessageReturned,
    MessageUnroutable,
    QueueMismatch,
)

CONNECT_S = 10.0
"""For one try at a connection. Shorter: a busy broker's greeting is missed."""
CONFIRM_S = 10.0
"""For the first try at a confirm; doubled for each next one. A quorum queue that is asked while its
leader is being elected may never answer on that channel; on a new one it does."""
HEARTBEAT_S = 15
"""A line that is dead without having said so is noticed after two of these."""
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between two tries at a connection; the last one repeats."""
IN_FLIGHT_MAX = 512
"""Messages sent but not confirmed. Fewer: the broker's fsync is shared by fewer. More: memory."""
NO_ROUTE = 312
PERSISTENT = 2
T = TypeVar("T")
LOST = (AMQPError, OSError, EOFError)
"""What a call on a connection that broke may end with, behind `edge`."""

for _name in ("aio_pika", "aiormq"):
    # Errors reach our callers by name; without a handler Python would print them as well.
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextmanager
def edge() -> Iterator[None]:
    """Raise ConnectionError where the library says otherwise that a connection or channel is gone.

    It raises RuntimeError from one that closed meanwhile, and cancels those that wait on a channel
    which it closes. Whoever cancels us from outside is obeyed.
    """
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(_said(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the channel was closed") from None


class Link:
    """Connects, declares and publishes."""

    def __init__(self, address: Address, *, clock: Clock, patience_s: float) -> None:
        """`patience_s`: how long a call goes on trying while the broker is away."""
        self.address, self._clock, self._patience_s = address, clock, patience_s
        self._connection: AbstractConnection | None = None
        self._publishing: AbstractChannel | None = None
        self._connecting, self._opening = asyncio.Lock(), asyncio.Lock()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._flying: dict[str, asyncio.Event | None] = {}
        self._kinds: dict[str, str] = {}
        self._bindings: dict[str, dict[tuple[str, str], None]] = {}

    def deadline(self) -> float:
        """Return until when a call that begins now goes on trying."""
        return self._clock.monotonic_s() + self._patience_s

    async def connection(self, deadline: float) -> AbstractConnection:
        """Return the open connection; makes one if there is none.

        Raises:
            BrokerUnreachable: there was none until the deadline.
            BrokerRefused: the broker does not know this user.
        """
        async with self._connecting:
            for pause_s in _pauses():
                if self._connection is not None and not _is_closed(self._connection):
                    return self._connection
                try:
                    with edge():
                        self._connection = await aio_pika.connect(
                            self.address.url, timeout=CONNECT_S, heartbeat=HEARTBEAT_S
                        )
                except (AuthenticationError, ProbableAuthenticationError) as error:
                    raise self._refused(error) from None
                except LOST as error:
                    await self._wait(pause_s, deadline, error)
        raise AssertionError("pauses do not end")

    async def open_channel(self, deadline: float, *, confirms: bool) -> AbstractChannel:
        """Return a new channel. With `confirms` it tells the fate of everything published."""
        for pause_s in _pauses():
            try:
                with edge():
                    connection = await self.connection(deadline)
                    channel = connection.channel(
                        publisher_confirms=confirms, on_return_raises=confirms
                    )
                    await asyncio.wait_for(channel.initialize(), CONNECT_S)
            except LOST as error:
                await self._wait(pause_s, deadline, error)
            else:
                return channel
        raise AssertionError("pauses do not end")

    async def publish(
        self, exchange: str, key: str, message: Message, deadline: float | None = None
    ) -> None:
        """Send; returns when the broker confirmed that it is in a queue, durably.

        A connection that breaks before the confirm leaves the outcome unknown: it is sent again,
        under the same name, until the deadline. So is what a queue could not take.

        Raises:
            MessageUnroutable, MessageReturned, MessageNacked: it was not sent.
            BrokerUnreachable, BrokerRefused: it may or may not have been.
        """
        deadline = self.deadline() if deadline is None else deadline
        async with self._room:
            await self._wait_turn(message.message_id)
            try:
                await self._publish_until(exchange, key, message, deadline)
            finally:
                self._end_turn(message.message_id)

    async def _publish_until(
        self, exchange: str, key: str, message: Message, deadline: float
    ) -> None:
        for tried, pause_s in enumerate(_pauses()):
            try:
                wait_s = CONFIRM_S * 2**tried
                with edge():
                    await self._publish_once(exchange, key, message, deadline, wait_s=wait_s)
                return
            except LOST as error:
                refusal = self._refusal(exchange, key, message, error)
                is_over = self._clock.monotonic_s() + pause_s > deadline
                # A queue whose leader is being elected does not take it now; soon it may.
                if refusal is not None and (is_over or not isinstance(refusal, MessageNacked)):
                    raise refusal from None
                await self._wait(pause_s, deadline, error)

    async def _wait_turn(self, name: str) -> None:
        """Keep two messages of one name from being in flight together.

        The library finds a returned message by its name, and would tell the wrong one.
        """
        while name and name in self._flying:
            landed = self._flying[name] = self._flying[name] or asyncio.Event()
            await landed.wait()
        if name:
            self._flying[name] = None  # an event only if somebody waits: most are alone

    def _end_turn(self, name: str) -> None:
        landed = self._flying.pop(name, None)
        if landed is not None:
            landed.set()

    async def _publishing_channel(self, deadline: float) -> AbstractChannel:
        async with self._opening:
            channel = self._publishing
            if channel is None or channel.is_closed:
                channel = self._publishing = await self.open_channel(deadline, confirms=True)
            return channel

    async def _publish_once(
        self, exchange: str, key: str, message: Message, deadline: float, *, wait_s: float
    ) -> None:
        channel = self._publishing
        if channel is None or channel.is_closed:
            channel = await self._publishing_channel(deadline)
        underlay: Any = await channel.get_underlay_channel()  # `wait` is not in its contract
        left_s = max(deadline - self._clock.monotonic_s(), 0.001)
        try:
            await underlay.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=key,
                properties=spec.Basic.Properties(
                    headers=dict(message.headers),
                    message_id=message.message_id or None,
                    message_type=message.kind or None,
                    delivery_mode=PERSISTENT,
                ),
                mandatory=True,
                timeout=min(left_s, wait_s),
                wait=False,  # for the socket; what is waited for is the confirm
            )
        except TimeoutError:
            await self._drop(channel)
            raise

    async def _drop(self, channel: AbstractChannel) -> None:
        """Give a channel up that does not answer. Whoever waits on it sends again on another."""
        if self._publishing is channel:
            self._publishing = None
        with suppress(*LOST, RuntimeError, asyncio.CancelledError):
            await asyncio.wait_for(channel.close(), CONNECT_S)

    def _refusal(
        self, exchange: str, key: str, message: Message, error: BaseException
    ) -> HoldfastError | None:
        """Return the named error if the broker said no to this very message; None: try again."""
        target = f"exchange {exchange!r}, key {key!r}" if exchange else f"queue {key!r}"
        name = message.message_id or "without a name"
        text = self.address.safe(_said(error))
        if isinstance(error, PublishError):
            code = getattr(error.frame, "reply_code", None)
            kind = MessageUnroutable if code == NO_ROUTE else MessageReturned
            return kind(target=target, message=name, error=text)
        if isinstance(error, DeliveryError):
            return MessageNacked(target=target, message=name)
        # These close the channel, and so end everybody's calls: only the one they name is meant.
        if "NOT_FOUND" in text and f"'{exchange}'" in text:
            return MessageUnroutable(target=target, message=name, error=text)
        if "ACCESS_REFUSED" in text and (f"'{exchange}'" in text or not exchange):
            return BrokerRefused(broker=self.address.label, error=text)
        return None

    async def declare_queue(self, spec: QueueSpec, deadline: float | None = None) -> None:
        """Make sure that a queue and its two neighbours are there, bound as this link bound it.

        One that somebody deleted is else made again without its bindings: what is sent to their
        exchanges is confirmed by other queues, and misses it.

        Raises:
            QueueMismatch: one exists with other settings.
            BrokerUnreachable, BrokerRefused: see `connection`.
        """

        async def declare(channel: AbstractChannel) -> None:
            for name, arguments in declarations(spec, await self._version()).items():
                await channel.declare_queue(name, durable=True, arguments=arguments)
            for exchange, key in tuple(self._bindings.get(spec.name, ())):
                if exchange in self._kinds:
                    await _declare_exchange(channel, exchange, self._kinds[exchange])
                await _tie(channel, exchange, spec.name, key)

        await self._asked(spec.name, declare, deadline)

    async def keep_queue(self, spec: QueueSpec) -> None:
        """Keep the neighbours of a queue from expiring: they have no consumer.

        Declaring a quorum queue again does not count as its use (3.10), a get does. What it gets
        is never acked, so it goes back to its place. Raises as `declare_queue`.
        """

        async def use(channel: AbstractChannel) -> None:
            for name in (retry_queue(spec.name), dead_queue(spec.name)):
                queue = await channel.get_queue(name, ensure=False)
                await queue.get(fail=False)

        await self.declare_queue(spec)
        await self._asked(spec.name, use)

    async def _version(self) -> tuple[int, ...]:
        connection = await self.connection(self.deadline())
        transport = connection.transport
        if transport is None:
            raise ConnectionError("the connection was closed")
        return version_of(transport.connection.server_properties or {})

    async def declare_exchange(self, name: str, kind: str) -> None:
        """Make sure that a durable exchange is there. Raises as `declare_queue`."""
        await self._asked(name, lambda channel: _declare_exchange(channel, name, kind))
        self._kinds[name] = kind

    async def bind(self, exchange: str, queue: str, key: str) -> None:
        """Let an exchange pass messages with this key on to a queue; also when it is made again."""
        await self._asked(exchange, lambda channel: _tie(channel, exchange, queue, key))
        self._bindings.setdefault(queue, {})[exchange, key] = None

    async def delete(self, *queues: str) -> None:
        """Delete queues with all that is in them. One that is not there is no error."""
        for queue in queues:
            self._bindings.pop(queue, None)

        async def remove(channel: AbstractChannel) -> None:
            for queue in queues:
                await channel.queue_delete(queue)

        await self._asked(queues[0], remove)

    async def depth(self, queue: str) -> int | None:
        """Return how many messages wait in a queue; None if there is no such queue."""
        try:
            found = await self._asked(queue, lambda ch: ch.declare_queue(queue, passive=True))
        except MessageUnroutable:
            return None
        return found.declaration_result.message_count or 0

    async def _asked(
        self,
        name: str,
        question: Callable[[AbstractChannel], Awaitable[T]],
        deadline: float | None = None,
    ) -> T:
        """Return what the broker answers about `name`; its refusals get our names.

        A question may be asked twice. A quorum queue that is asked while its leader is being
        elected may never answer on that channel, so it is asked again on another until the
        deadline.
        """
        deadline = self.deadline() if deadline is None else deadline
        for pause_s in _pauses():
            channel = await self.open_channel(deadline, confirms=False)
            try:
                with edge():
                    async with asyncio.timeout(CONNECT_S):
                        return await question(channel)
            except LOST as error:
                if (refusal := self._answer_no(name, error)) is not None:
                    raise refusal from None
                await self._wait(pause_s, deadline, error)
            finally:
                with suppress(*LOST, RuntimeError, asyncio.CancelledError):
                    await asyncio.wait_for(channel.close(), CONNECT_S)
        raise AssertionError("pauses do not end")

    def _answer_no(self, name: str, error: BaseException) -> HoldfastError | None:
        """Return the named error if the broker said no; None: ask again."""
        text = self.address.safe(_said(error))
        if "PRECONDITION_FAILED" in text:
            return QueueMismatch(queue=name, error=text)
        if "NOT_FOUND" in text:
            return MessageUnroutable(target=name, message="", error=text)
        if "ACCESS_REFUSED" in text:
            return BrokerRefused(broker=self.address.label, error=text)
        return None

    async def _wait(self, pause_s: float, deadline: float, error: BaseException) -> None:
        if self._clock.monotonic_s() + pause_s > deadline:
            raise self._unreachable(error) from None
        await asyncio.sleep(pause_s)

    def _unreachable(self, error: BaseException) -> BrokerUnreachable:
        return BrokerUnreachable(broker=self.address.label, error=self.address.safe(_said(error)))

    def _refused(self, error: BaseException) -> BrokerRefused:
        return BrokerRefused(broker=self.address.label, error=self.address.safe(_said(error)))

    async def close(self) -> None:
        """Hang up. What consumers hold un-acked goes back to its queues."""
        if self._connection is not None:
            with suppress(*LOST, RuntimeError, asyncio.CancelledError):
                await asyncio.wait_for(self._connection.close(), CONNECT_S)


async def _declare_exchange(channel: AbstractChannel, name: str, kind: str) -> None:
    await channel.declare_exchange(name, type=kind, durable=True)


async def _tie(channel: AbstractChannel, exchange: str, queue: str, key: str) -> None:
    underlay = await channel.get_underlay_channel()
    await underlay.queue_bind(queue, exchange=exchange, routing_key=key)


def _pauses() -> Any:
    yield from PAUSES_S
    while True:
        yield PAUSES_S[-1]


def _is_closed(connection: AbstractConnection) -> bool:
    transport = connection.transport
    return connection.is_closed or transport is None or transport.connection.is_closed


def _said(error: BaseException) -> str:
    """Return what the broker or the machine said, not the library's essay about it."""
    parts = [str(part) for part in error.args if isinstance(part, (str, int)) and str(part)]
    return ", ".join(parts) or repr(error)
