"""The workers on RabbitMQ: a queue per worker, journals below the state directory.

The lock of its journal is a worker's right to act: the second process that wants it stands by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from examples.workers.client import Answers, send_tables
from examples.workers.plan import ANSWERS, GROUPS, INPUTS, destinations
from examples.workers.rows import ROWS_PER_CHUNK

from holdfast.amqp.broker import Broker, Queue
from holdfast.errors import StateBusy
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Message
from holdfast.worker.persistence import PersistenceService
from holdfast.worker.queues import QueueInbox, QueueOutbox

BATCH = 20
PATIENCE_S = 120.0
"""How long a broker may be away: a restart on a busy machine takes a minute."""
ANSWERS_MAX = 10_000
"""Answers that the client holds un-acked until it has written them."""


def _queue(broker: Broker, state: Path, name: str) -> Queue:
    """Return a worker's queue. Two states on one broker do not meet."""
    return broker.queue(f"{state.name}.{name}")


class Host:
    """One process: the workers of one group or of several, as far as nobody else runs them."""

    def __init__(self, url: str, state: Path, groups: Iterable[str]) -> None:
        self._broker, self._state = Broker(url, patience_s=PATIENCE_S), state
        self._wanted = [(name, n) for name in groups for n in range(GROUPS[name].workers)]
        self._running: list[Worker[Any]] = []

    def step(self) -> bool:
        """Let every worker deal with a batch. False: none had anything to do."""
        for place in list(self._wanted):
            if place in self._wanted:
                self._try_start(*place)
        busy = [worker.handle_batch() for worker in self._running]
        return any(busy)

    def _try_start(self, name: str, number: int) -> None:
        worker, group = f"{name}-{number}", GROUPS[name]
        try:
            books = PersistenceService(self._state / "workers" / worker, worker)
        except StateBusy:
            return
        # One of each group: the others are for other processes.
        self._wanted = [place for place in self._wanted if place[0] != name]
        self._running.append(
            Worker(
                worker,
                group.role,
                books,
                QueueInbox(_queue(self._broker, self._state, worker)),
                {
                    to: QueueOutbox(_queue(self._broker, self._state, to))
                    for to in destinations(name)
                },
                senders=group.senders,
                reporting=group.reporting,
                batch_size=BATCH,
            )
        )

    def close(self) -> None:
        """Hang up. What is not acked comes again."""
        self._broker.close()


class Client:
    """The client's side of a state directory."""

    def __init__(self, url: str, state: Path, name: str) -> None:
        self._broker = Broker(url, patience_s=PATIENCE_S)
        self._name, self.answers = name, Answers(name)
        self._inbox = QueueInbox(_queue(self._broker, state, ANSWERS), prefetch=ANSWERS_MAX)
        workers = dict.fromkeys(worker for workers in INPUTS.values() for worker in workers)
        self._outboxes = {to: QueueOutbox(_queue(self._broker, state, to)) for to in workers}

    def send(self, data: Path, *, rows_per_chunk: int = ROWS_PER_CHUNK) -> int:
        """Send the tables in a directory."""
        return send_tables(data, self._name, self._send, rows_per_chunk=rows_per_chunk)

    def _send(self, to: str, messages: Sequence[Message]) -> None:
        self._outboxes[to].send(messages)

    def look(self) -> bool:
        """Take in what came. True: the answers are complete."""
        self.answers.take(one.message for one in self._inbox.receive(ANSWERS_MAX))
        return self.answers.is_complete

    def close(self) -> None:
        """Hang up; answers that were not acked come again to whoever asks next."""
        self._broker.close()
