"""A worker's inbox on a queue, without a broker: what it does when consuming ends by itself."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.amqp.broker import Queue
from holdfast.amqp.contract import Callback, Handle, Message
from holdfast.errors import HoldfastError, QueueMismatch
from holdfast.worker.messages import Chunk, encode
from holdfast.worker.queues import QueueInbox

CHUNK = Chunk("ada", "t", "s", 1, b"x")


class Line:
    """A queue and its consumer, which gives up when it is told to."""

    def __init__(self) -> None:
        self.refusal: HoldfastError | None = None

    def consume(self, callback: Callback, *, prefetch: int) -> Line:
        del prefetch
        self.callback = callback
        return self

    def failure(self) -> HoldfastError | None:
        return self.refusal

    def give(self, chunk: Chunk) -> None:
        cast(Any, self.callback)(Message(encode(chunk)), False, cast(Handle, None))


def test_a_queue_that_is_consumed_no_more_is_no_empty_queue() -> None:
    """A worker that took it for one would end as if all were done."""
    line = Line()
    inbox = QueueInbox(cast(Queue, line))
    assert inbox.receive(1) == []
    line.give(CHUNK)
    line.refusal = QueueMismatch(queue="q", error="it is another")
    assert [one.message for one in inbox.receive(5)] == [CHUNK]
    with pytest.raises(QueueMismatch):
        inbox.receive(5)
