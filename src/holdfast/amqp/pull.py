"""Takes messages out of queues when asked, instead of being handed them: no thread per queue.

What was taken and not acked is given again when the same queue is asked again, and by the broker
when the channel is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count as counting
from typing import Any

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError

from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Message
from holdfast.amqp.link import CONNECT_S
from holdfast.errors import BrokerUnreachable, MessageUnroutable

_BROKEN = (AMQPError, OSError, RuntimeError, TimeoutError)


class Pull:
    """One channel that takes from any number of queues. Used by one thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._channel: AbstractChannel | None = None
        self._numbers = counting(1)
        self._held: dict[int, tuple[str, Message, int]] = {}

    def take(self, queue: str, count: int) -> list[tuple[int, Message]]:
        """Return up to `count` messages that are not acked, each with its number; does not wait.

        Raises:
            BrokerUnreachable, BrokerRefused: nobody can be asked.
            MessageUnroutable: there is no such queue.
        """
        return self._broker.loop.call(self._take(queue, count))

    def ack(self, number: int) -> bool:
        """Ack a message that was taken. False: its channel is gone, it comes again."""
        return self._broker.loop.call(self._ack(number))

    async def _take(self, queue: str, count: int) -> list[tuple[int, Message]]:
        if self._channel is None or self._channel.is_closed:
            self._held.clear()
            link = self._broker.link
            self._channel = await link.open_channel(link.deadline(), confirms=False)
        held = [(n, message) for n, (name, message, _) in self._held.items() if name == queue]
        try:
            underlay = await self._channel.get_underlay_channel()
            while len(held) < count:
                found = await underlay.basic_get(queue, timeout=CONNECT_S)
                tag = getattr(found.delivery, "delivery_tag", None)
                if not tag:
                    break
                number, message = next(self._numbers), _message(found)
                self._held[number] = (queue, message, tag)
                held.append((number, message))
        except _BROKEN as error:
            await self._forget()
            text = self._broker.address.safe(", ".join(map(str, error.args)) or repr(error))
            if "NOT_FOUND" in text:
                raise MessageUnroutable(target=queue, message="", error=text) from None
            raise BrokerUnreachable(broker=self._broker.address.label, error=text) from None
        return held[:count]

    async def _ack(self, number: int) -> bool:
        _, _, tag = self._held.pop(number, ("", None, 0))
        if not tag or self._channel is None or self._channel.is_closed:
            return False
        try:
            await (await self._channel.get_underlay_channel()).basic_ack(tag)
        except _BROKEN:
            return False
        return True

    async def _forget(self) -> None:
        channel, self._channel = self._channel, None
        self._held.clear()
        if channel is not None:
            with suppress(*_BROKEN, asyncio.CancelledError):
                await asyncio.wait_for(channel.close(), CONNECT_S)


def _message(found: Any) -> Message:
    properties = found.header.properties
    name, kind = properties.message_id or "", properties.message_type or ""
    return Message(found.body, name, kind, properties.headers or {})
