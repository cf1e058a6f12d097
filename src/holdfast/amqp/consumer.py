"""Hands the messages of a queue to a callback, and tells the broker what became of them.

The event loop takes deliveries and sends acks; callbacks run in threads of their own, so one that
waits for a disk holds up nobody's heartbeat. A delivery belongs to the channel it came on: when
that is gone (a lost connection, a consumer's time-out, a deleted queue), its tag is dead, an ack
of it is not sent, and the broker hands the message out again. The channel is then made again,
until somebody stops the consumer.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError

from holdfast._base.crashpoint import crashpoint
from holdfast.amqp.contract import Callback, Handle, Message, Reject
from holdfast.amqp.link import CONNECT_S, LOST, Link, edge
from holdfast.amqp.loop import LoopThread
from holdfast.amqp.names import dead_queue
from holdfast.amqp.topology import ATTEMPTS, CARRIED, CODE, QUEUE, REASON, QueueSpec, attempts_of
from holdfast.errors import (
    BrokerRefused,
    BrokerUnreachable,
    HoldfastError,
    InvariantViolated,
    MessageUnroutable,
    QueueMismatch,
    UsageInvalid,
)

Tell = Callable[[str, dict[str, Any]], None]
"""Told what happens: an event's name and its facts. Called in any thread."""
LOST_PAUSE_S = 0.05
"""Before a lost channel is made again: a broker that closes each one at once is not flooded."""
REASON_CHARACTERS_MAX = 2000
BROKEN = (AMQPError, OSError, RuntimeError, TimeoutError)
"""What a call on a channel that broke may end with."""
RAISED = "CALLBACK_RAISED"


class Tag:
    """One delivery. Fills `holdfast.amqp.contract.Handle`."""

    __slots__ = ("_consumer", "_message", "is_settled", "tag")

    def __init__(self, consumer: Consumer, message: Message, tag: tuple[int, int]) -> None:
        self._consumer, self._message = consumer, message
        self.tag, self.is_settled = tag, False

    def is_live(self) -> bool:
        """Tell whether an ack would still be heard."""
        return not self.is_settled and self._consumer.live == self.tag[0]

    def ack(self) -> bool:
        """Ack. False: the tag died with its channel; the message comes again."""
        return self._consumer.settle(self, keep=False)

    def reject(self, reason: str, *, code: str = "REJECTED") -> bool:
        """Send it to the dead letters after all. False: the tag is dead."""
        return self.is_live() and self._consumer.bury(self, self._message, code, reason)


def three_arguments(callback: Callback) -> Callable[[Message, bool, Handle], bool | None]:
    """Return a callback that takes message, redelivered and handle, whatever the given one takes.

    Raises:
        UsageInvalid: it takes neither one nor three arguments.
    """
    signature = inspect.signature(callback)
    for count in (3, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        if count == 3:
            return cast(Callable[[Message, bool, Handle], bool | None], callback)
        alone = cast(Callable[[Message], bool | None], callback)
        return lambda message, *_: alone(message)
    raise UsageInvalid(
        what=f"a queue's callback {callback!r} takes {signature}",
        remedy="Take (message), or (message, redelivered, handle).",
    )


class Consumer:
    """Consumes one queue until it is stopped. Made by `Queue.consume`."""

    def __init__(
        self,
        loop: LoopThread,
        link: Link,
        spec: QueueSpec,
        callback: Callback,
        *,
        prefetch: int,
        threads: int,
        tell: Tell,
        lost: Callable[[int], None],
    ) -> None:
        """`lost` is called, in the loop's thread, with the generation whose tags all died."""
        self._loop, self._link, self._spec = loop, link, spec
        self._call, self._prefetch, self._tell, self._lost = (
            *(three_arguments(callback), prefetch, tell, lost),
        )
        self.live = 0
        """Which channel's tags live: they are counted from 1. 0: none is open."""
        self._channels = 0
        self._channel: Any = None
        self._wake: asyncio.Event | None = None
        self._settled: deque[tuple[tuple[int, int], bool]] = deque()
        self._nudged, self._guard = False, threading.Lock()
        self._inbox: SimpleQueue[tuple[Tag, Message, bool] | None] = SimpleQueue()
        self._stopping = False
        self._refusal: HoldfastError | None = None
        self._started: Future[None] = Future()
        self._done = loop.submit(self._run())
        self._threads = [
            threading.Thread(target=self._work, name=f"{spec.name}-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ready(self) -> None:
        """Return when the queue is being consumed.

        Raises:
            BrokerUnreachable, BrokerRefused, QueueMismatch: it cannot be.
        """
        self._started.result()

    def failure(self) -> HoldfastError | None:
        """Return why consuming ended by itself; None while it goes on."""
        return self._refusal

    # In the loop's thread.

    async def _run(self) -> None:
        """Keep a channel that consumes; make it again when it is lost."""
        while not self._stopping:
            try:
                with edge():
                    await self._consume_once()
            except (BrokerRefused, QueueMismatch) as error:
                return self._give_up(error)
            except LOST as error:
                self._tell_broken(error)
            except (BrokerUnreachable, MessageUnroutable) as error:
                if not self._started.done():
                    return self._give_up(error)
                self._tell("unreachable", {"queue": self._spec.name, "error": str(error)})
            except Exception as error:  # ours: a queue must not stop unnoticed
                return self._give_up(self._bug(error))
            await asyncio.sleep(LOST_PAUSE_S)
        return None

    def _give_up(self, error: HoldfastError) -> None:
        self._refusal = error
        if not self._started.done():
            self._started.set_exception(error)
        else:
            self._tell("gave up", {"queue": self._spec.name, "error": str(error)})

    async def _consume_once(self) -> None:
        await self._link.declare_queue(self._spec)
        channel = await self._link.open_channel(self._link.deadline(), confirms=False)
        underlay = await channel.get_underlay_channel()
        gone = asyncio.Event()
        underlay.closing.add_done_callback(lambda _: gone.set())
        cast(Any, underlay).on_consumer_cancel_callbacks.add(lambda _: gone.set())
        self._channels = generation = self._channels + 1
        self._channel, self._wake = underlay, asyncio.Event()
        # Whoever settled last may have woken the former channel's sender, which is gone: without
        # this nobody would wake ours.
        self._wake.set()
        sender = asyncio.create_task(self._send_settled(generation))
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._begin(channel, underlay, generation)
            while not await self._is_over(gone):
                await self._link.keep_queue(self._spec)
        except BROKEN as error:
            self._tell_broken(error)
        finally:
            self.live = 0  # all its tags are dead from here on
            sender.cancel()
            with suppress(*BROKEN, asyncio.CancelledError):
                await asyncio.wait_for(channel.close(), CONNECT_S)
            if not self._stopping:
                self._tell("lost", {"queue": self._spec.name})
            self._lost(generation)

    def _tell_broken(self, error: BaseException) -> None:
        facts = {"queue": self._spec.name, "error": self._link.address.safe(error)}
        self._tell("broken", facts)

    def _bug(self, error: Exception) -> InvariantViolated:
        said = self._link.address.safe(f"{type(error).__name__}: {error}")
        return InvariantViolated(what=f"consumer of {self._spec.name}: {said}")

    async def _begin(self, channel: AbstractChannel, underlay: Any, generation: int) -> None:
        await channel.set_qos(prefetch_count=self._prefetch)
        self.live = generation

        async def take(delivered: Any) -> None:
            self._take(generation, delivered)

        await underlay.basic_consume(self._spec.name, take)
        if not self._started.done():
            self._started.set_result(None)
        else:
            self._tell("consuming again", {"queue": self._spec.name})

    async def _is_over(self, gone: asyncio.Event) -> bool:
        """Wait for the channel's end; False: long before the queue would expire."""
        refresh_s = None if self._spec.expires_s is None else self._spec.expires_s / 4
        with suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), refresh_s)
        return gone.is_set() or self._stopping

    def _take(self, generation: int, delivered: Any) -> None:
        properties = delivered.header.properties
        message = Message(
            delivered.body,
            properties.message_id or "",
            properties.message_type or "",
            properties.headers or {},
        )
        tag = Tag(self, message, (generation, delivered.delivery.delivery_tag))
        self._inbox.put((tag, message, bool(delivered.delivery.redelivered)))

    async def _send_settled(self, generation: int) -> None:
        """Send acks and rejections as callbacks give them."""
        wake, channel = self._wake, self._channel
        assert wake is not None  # noqa: S101 - set by the caller, for the type checker
        while True:
            await wake.wait()
            wake.clear()
            self._nudged = False  # before the deque is read: what comes later wakes us again
            while self._settled:
                (born, number), keep = self._settled.popleft()
                if born != generation:
                    continue
                with suppress(*BROKEN):
                    if keep:
                        await channel.basic_reject(number, requeue=False, wait=False)
                    else:
                        await channel.basic_ack(number, wait=False)

    # In any thread.

    def settle(self, tag: Tag, *, keep: bool) -> bool:
        """Ack a delivery; with `keep`, reject it: it comes again. False: its tag is dead."""
        if not tag.is_live():
            return False
        with self._guard:
            tag.is_settled = True
            self._settled.append((tag.tag, keep))
            is_first, self._nudged = not self._nudged, True
        if is_first:
            self._loop.soon(self._nudge)
        return True

    def _nudge(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # In the callbacks' threads.

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            tag, message, redelivered = item
            if not tag.is_live() or self._stopping:
                continue
            try:
                self._work_on(tag, message, redelivered)
            except Exception as error:  # not the callback's, ours: a queue must not stop unnoticed
                self._refusal = self._bug(error)
                raise

    def _work_on(self, tag: Tag, message: Message, redelivered: bool) -> None:
        try:
            if self._call(message, redelivered, tag) is not False:
                tag.ack()
        except Reject as error:
            self.bury(tag, message, error.code, error.reason)
        except Exception as error:  # whatever a callback raises counts as an attempt, and is told
            self._count(tag, message, error)

    def _count(self, tag: Tag, message: Message, error: Exception) -> None:
        attempts = attempts_of(self._spec.name, message.headers) + 1
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS_MAX]
        facts = {"queue": self._spec.name, "message_id": message.message_id, "attempt": attempts}
        if attempts >= self._spec.attempts_max:
            code = error.code if isinstance(error, HoldfastError) else RAISED
            self.bury(tag, message, code, reason)
        else:
            self._tell("raised", {**facts, "error": reason})
            self.settle(tag, keep=True)

    def bury(self, tag: Tag, message: Message, code: str, reason: str) -> bool:
        """Move a message to the dead letters. False: it stays, and comes again.

        1. A copy with the reason is confirmed there. Crash after: the message comes again, and is
           buried again under the same name.
        2. The ack.
        """
        attempts = attempts_of(self._spec.name, message.headers) + 1
        counts = ("x-death", CARRIED)  # whoever sends it again begins anew
        headers = {name: value for name, value in message.headers.items() if name not in counts}
        headers |= {REASON: reason[:REASON_CHARACTERS_MAX], CODE: code}
        headers |= {QUEUE: self._spec.name, ATTEMPTS: attempts}
        letter = Message(message.body, message.message_id, message.kind, headers)
        facts = {"queue": self._spec.name, "message_id": message.message_id, "code": code}
        try:
            self._loop.call(self._publish_letter(letter))
        except HoldfastError as error:
            # It stays un-acked: the link is down, or about to be made again, and it comes again.
            self._tell("not buried", {**facts, "error": str(error)})
            self.settle(tag, keep=True)
            return False
        crashpoint("queue.bury.after")
        self._tell("dead letter", {**facts, "reason": reason})
        return tag.ack()

    async def _publish_letter(self, letter: Message) -> None:
        target = dead_queue(self._spec.name)
        try:
            await self._link.publish("", target, letter)
        except MessageUnroutable:  # somebody deleted the dead letters, and their queue with them
            await self._link.declare_queue(self._spec)
            await self._link.publish("", target, letter)

    def stop(self, grace_s: float = 5.0) -> None:
        """Take nothing more; wait for callbacks that run, at most `grace_s` in all.

        What they finish is acked. What is unfinished stays un-acked, and comes again.
        """
        if self._stopping:
            return
        self._stopping = True
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(grace_s / len(self._threads))
        self._loop.call(self._hang_up())

    async def _hang_up(self) -> None:
        self._nudge()
        for _ in range(100):  # the last acks go out
            if not self._settled or self._channel is None or self._channel.is_closed:
                break
            await asyncio.sleep(0.01)
        if self._channel is not None and not self._channel.is_closed:
            with suppress(*BROKEN, asyncio.CancelledError):
                await self._channel.close()
        with suppress(*BROKEN, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.wrap_future(self._done), 5)
