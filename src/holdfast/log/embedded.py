"""The log inside the store: durable topics in one file, for one machine.

All state is in a `TopicStore`; see docs/internals/store.md for its tables. A produce returns after
the fsync of the transaction that holds its records. Several processes may use one file.

Waiting: producers of the same backend object wake a waiting fetch at once; those of other
processes are seen by looking again, at most `POLL_MAX_S` later.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.ids import START, Offset
from holdfast.errors import UsageInvalid
from holdfast.log.contract import (
    Capability,
    Position,
    QueueBackend,
    QueueEndpoint,
    Record,
    StoredRecord,
)
from holdfast.store.contract import Store, TopicStore
from holdfast.store.rows import Fence

POLL_MIN_S = 0.001
"""First look again after 1 ms: a producer that is writing right now is not waited for longer."""
POLL_MAX_S = 0.05
"""Smaller: an idle consumer costs processor time. Larger: records of other processes come late."""


class EmbeddedBackend(QueueBackend):
    """A durable log on a store: one that is given, or the one in the file that is named.

    A store that is given is not closed by `stop`. On a store in memory nothing is durable or
    shared, whatever is declared here. With a `fence`, whatever makes a topic or a group, appends or
    commits carries it: an owner that is one no more gets Fenced, and has changed nothing.
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        store: TopicStore | Path | str,
        *,
        clock: Clock | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._fence = fence
        self._path = Path(store).absolute() if isinstance(store, str | Path) else None
        self._given = None if isinstance(store, str | Path) else store
        self._owned: Store | None = None
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._appends = 0

    def start(self) -> None:
        """Open the file, if a file was named."""
        if self._path is not None and self._owned is None:
            # Late, and here alone: the log is written against the store's contract only.
            from holdfast.store.sqlite import SqliteStore

            self._owned = SqliteStore.open(self._path)

    def stop(self) -> None:
        """Close the file, if `start` opened one."""
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    @property
    def _store(self) -> TopicStore:
        store = self._given or self._owned
        if store is None:
            raise UsageInvalid(what="the log is not started", remedy="Call start() first.")
        return store

    def endpoint(self) -> QueueEndpoint:
        """Return the file's URL. A store that was given has none to tell."""
        if self._path is None:
            raise UsageInvalid(
                what="a log on a store that was handed over has no address",
                remedy="Make it by its path.",
            )
        return QueueEndpoint(self._path.as_uri())

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic if it is missing. With another number of partitions: UsageInvalid."""
        stored = self._store.create_topic(topic, partitions, fence=self._fence)
        if stored != partitions:
            raise UsageInvalid(
                what=f"topic {topic} with {partitions} partitions, it has {stored}",
                remedy="Give the number it was created with.",
            )

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. An unknown topic raises UsageInvalid."""
        found = self._store.list_topics().get(topic)
        if found is None:
            raise UsageInvalid(what=f"topic {topic} does not exist", remedy="Create it first.")
        return found

    def produce(self, topic: str, record: Record, *, partition: int = 0) -> Offset:
        """Append one record; returns its offset once the record is durable."""
        return self.produce_batch(topic, [record], partition=partition)[0]

    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        """Append records in order, all or none, with one fsync for all of them."""
        return self.produce_and_commit(topic, records, (), partition=partition)

    def produce_and_commit(
        self,
        topic: str,
        records: Sequence[Record],
        positions: Sequence[Position],
        *,
        partition: int = 0,
    ) -> list[Offset]:
        """Append records and advance positions as one transaction."""
        advance = [(at.topic, at.partition, at.group, at.offset) for at in positions]
        offsets = self._store.append_records(topic, partition, records, advance, fence=self._fence)
        with self._changed:
            self._appends += 1
            self._changed.notify_all()
        return offsets

    def fetch(
        self, topic: str, offset: Offset, *, partition: int = 0, timeout_s: float = 0.0
    ) -> StoredRecord | None:
        """Return the record at `offset`, or the next one held; None if there is none in time."""
        found = self.fetch_batch(topic, offset, count=1, partition=partition, timeout_s=timeout_s)
        return found[0] if found else None

    def fetch_batch(
        self,
        topic: str,
        offset: Offset,
        *,
        count: int,
        partition: int = 0,
        timeout_s: float = 0.0,
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on, in order; waits only if there is none."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        poll_s = POLL_MIN_S
        while True:
            appends = self._appends
            found = self._store.read_records(topic, partition, offset, count)
            left_s = deadline_s - self._clock.monotonic_s()
            if found or left_s <= 0:
                return found
            self._wait_for_append(appends, min(poll_s, left_s))
            poll_s = min(poll_s * 2, POLL_MAX_S)

    def _wait_for_append(self, seen: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._appends != seen, timeout_s)

    def register_group(self, topic: str, group: str) -> None:
        """Make a group known before it commits, so that truncation waits for it."""
        self._store.register_group(topic, group, fence=self._fence)

    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        """Record durably that a group is done with everything below `offset`."""
        self._store.advance_offset(topic, partition, group, offset, fence=self._fence)

    def get_committed_offset(self, topic: str, group: str, *, partition: int = 0) -> Offset:
        """Return the next offset a group has to read; 0 if it never committed."""
        return self._store.read_offset(topic, partition, group) or START

    def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> Offset:
        """Return the least position of all known groups; 0 with none, or one that never did."""
        return min(self._store.list_offsets(topic, partition).values(), default=START)

    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset."""
        return self._store.truncate_records(topic, partition, offset)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        """Return the first offset held and the next one to be given."""
        return self._store.topic_bounds(topic, partition)
