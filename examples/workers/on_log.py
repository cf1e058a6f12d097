"""The workers on the embedded log: one store file, a topic per group, partitions by lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from examples.workers.client import Answers, send_tables
from examples.workers.plan import ANSWERS, GROUPS, destinations, place_of
from examples.workers.rows import ROWS_PER_CHUNK

from holdfast._base.ids import START, Offset
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.sqlite import SqliteStore
from holdfast.worker.group import Member, Place
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Message, decode, encode
from holdfast.worker.ports import LogInbox, LogOutbox

BATCH = 20


def open_store(state: Path) -> SqliteStore:
    """Open the store of a state directory, with its topics."""
    store = SqliteStore.open(state / "store.sqlite3")
    log = EmbeddedBackend(store)
    for name, group in GROUPS.items():
        log.create_topic(name, partitions=group.workers)
    log.create_topic(ANSWERS)
    return store


def _outbox(log: EmbeddedBackend, to: str) -> LogOutbox:
    if to == ANSWERS:
        return LogOutbox(log, ANSWERS)
    topic, partition = place_of(to)
    return LogOutbox(log, topic, partition=partition)


def make_worker(store: SqliteStore, name: str, place: Place) -> Worker[Any]:
    """Make the worker of a partition that this process got."""
    group, log = GROUPS[name], EmbeddedBackend(store, fence=place.fence)
    return Worker(
        f"{name}-{place.partition}",
        group.role,
        place.persistence,
        LogInbox(log, name, name, partition=place.partition),
        {to: _outbox(log, to) for to in destinations(name)},
        senders=group.senders,
        reporting=group.reporting,
        batch_size=BATCH,
    )


class Host:
    """One process: a member of one group, or of several."""

    def __init__(self, state: Path, groups: Iterable[str], *, patience_s: float = 10.0) -> None:
        self._store = open_store(state)
        self._members = [
            Member(
                self._store,
                EmbeddedBackend(self._store),
                partial(make_worker, self._store, name),
                topic=name,
                group=name,
                directory=state / "workers" / name,
                patience_s=patience_s,
            )
            for name in groups
        ]

    def step(self) -> bool:
        """Let every member deal with a batch. False: none had anything to do."""
        busy = [member.step() for member in self._members]
        return any(busy)

    def close(self) -> None:
        """Leave all groups."""
        for member in self._members:
            member.close()
        self._store.close()


class Client:
    """The client's side of a state directory."""

    def __init__(self, state: Path, name: str) -> None:
        self._store = open_store(state)
        self._log = EmbeddedBackend(self._store)
        self._name, self.answers, self._next = name, Answers(name), START

    def send(self, data: Path, *, rows_per_chunk: int = ROWS_PER_CHUNK) -> int:
        """Send the tables in a directory."""
        return send_tables(data, self._name, self._send, rows_per_chunk=rows_per_chunk)

    def _send(self, to: str, messages: Sequence[Message]) -> None:
        topic, partition = place_of(to)
        records = [Record(encode(one), record_id=one.message_id) for one in messages]
        self._log.produce_batch(topic, records, partition=partition)

    def look(self, timeout_s: float = 0.0) -> bool:
        """Take in what came. True: the answers are complete."""
        found = self._log.fetch_batch(ANSWERS, self._next, count=1000, timeout_s=timeout_s)
        if found:
            self._next = Offset(found[-1].offset + 1)
        self.answers.take(decode(one.record.value) for one in found)
        return self.answers.is_complete

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()
