"""The log in this process's memory: for tests, and for stages that share one process.

Not durable. Records are kept as they were given, so an append costs little more than a list's.
One lock guards everything; a condition wakes whoever waits for records.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from holdfast._base.ids import START, Offset, fresh_token
from holdfast.errors import UsageInvalid
from holdfast.log.contract import (
    Capability,
    Position,
    QueueBackend,
    QueueEndpoint,
    Record,
    StoredRecord,
)


@dataclass(slots=True)
class _Partition:
    """Records from offset `first` on, the offsets of their ids, and how far groups are."""

    records: list[Record] = field(default_factory=list)
    first: int = 0
    known: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Return the next offset to be given."""
        return self.first + len(self.records)

    def append(self, records: Sequence[Record]) -> list[Offset]:
        """Append records; return their offsets, old ones for ids still held."""
        names = [record.record_id for record in records]
        if not any(names):
            free = self.free
            self.records.extend(records)
            return cast("list[Offset]", list(range(free, free + len(names))))
        return [self._append_named(record) for record in records]

    def count_new(self, records: Sequence[Record]) -> int:
        """Return how many records `append` would add."""
        names = [record.record_id for record in records if record.record_id]
        return len(records) - len(names) + len(set(names) - self.known.keys())

    def _append_named(self, record: Record) -> Offset:
        name = record.record_id
        if name and name in self.known:
            return Offset(self.known[name])
        offset = self.free
        if name:
            self.known[name] = offset
        self.records.append(record)
        return Offset(offset)

    def truncate(self, offset: int) -> None:
        """Forget records below `offset`, and their ids."""
        if offset <= self.first:
            return
        dropped = self.records[: offset - self.first]
        del self.records[: offset - self.first]
        for record in dropped:
            self.known.pop(record.record_id, None)
        self.first = offset


class MemoryBackend(QueueBackend):
    """A log without a disk. It lives as long as this object does."""

    capabilities = frozenset((Capability.IDEMPOTENT, Capability.ATOMIC, Capability.TRUNCATE))

    def __init__(self, name: str = "") -> None:
        self._name = name or fresh_token()
        self._topics: dict[str, list[_Partition]] = {}
        self._groups: dict[str, set[str]] = {}
        self._changed = threading.Condition()

    def start(self) -> None:
        """Do nothing: there is nothing to connect to."""

    def stop(self) -> None:
        """Do nothing: the records live as long as this object."""

    def endpoint(self) -> QueueEndpoint:
        """Return a name that `holdfast.log.open` knows within this process."""
        return QueueEndpoint(f"memory://{self._name}")

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic if it is missing."""
        with self._changed:
            stored = len(self._topics.get(topic, ())) or partitions
            if partitions < 1 or stored != partitions:
                raise UsageInvalid(
                    what=f"topic {topic} with {partitions} partitions, it has {stored}",
                    remedy="Give the number it was created with, at least one.",
                )
            if topic not in self._topics:
                self._topics[topic] = [_Partition() for _ in range(partitions)]
                self._groups[topic] = set()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        with self._changed:
            self._partition(topic, 0)
            return len(self._topics[topic])

    def _partition(self, topic: str, partition: int) -> _Partition:
        found = self._topics.get(topic, [])
        if not 0 <= partition < len(found):
            raise UsageInvalid(
                what=f"topic {topic} has no partition {partition}, or does not exist",
                remedy="Create the topic first, with enough partitions.",
            )
        return found[partition]

    def produce(self, topic: str, record: Record, *, partition: int = 0) -> Offset:
        """Append one record; returns its offset."""
        return self.produce_batch(topic, [record], partition=partition)[0]

    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        """Append records in order, all or none."""
        with self._changed:
            offsets = self._partition(topic, partition).append(records)
            self._changed.notify_all()
        return offsets

    def produce_and_commit(
        self,
        topic: str,
        records: Sequence[Record],
        positions: Sequence[Position],
        *,
        partition: int = 0,
    ) -> list[Offset]:
        """Append records and advance positions as one: no reader sees one without the other."""
        with self._changed:
            target = self._partition(topic, partition)
            ahead = target.count_new(records)
            for position in positions:
                here = (position.topic, position.partition) == (topic, partition)
                self._check_offset(position, ahead if here else 0)
            offsets = target.append(records)
            for position in positions:
                self._advance(position)
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
        with self._changed:
            source = self._partition(topic, partition)
            if offset >= source.free and timeout_s > 0:
                self._changed.wait_for(lambda: offset < source.free, timeout_s)
            start = max(offset, source.first)
            low = start - source.first
            records = source.records[low : low + max(count, 0)]
        return [
            StoredRecord(topic, partition, cast("Offset", place), record)
            for place, record in enumerate(records, start)
        ]

    def register_group(self, topic: str, group: str) -> None:
        """Make a group known before it commits, so that truncation waits for it."""
        with self._changed:
            self._partition(topic, 0)
            self._groups[topic].add(group)

    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        """Record that a group is done with everything below `offset`."""
        position = Position(topic, partition, group, offset)
        with self._changed:
            self._check_offset(position)
            self._advance(position)

    def _check_offset(self, position: Position, ahead: int = 0) -> None:
        free = self._partition(position.topic, position.partition).free + ahead
        if not 0 <= position.offset <= free:
            raise UsageInvalid(
                what=f"offset {position.offset} of topic {position.topic}, partition"
                f" {position.partition}, which ends at {free}",
                remedy="Commit the offset of the last record processed, plus one.",
            )

    def _advance(self, position: Position) -> None:
        self._groups[position.topic].add(position.group)
        positions = self._partition(position.topic, position.partition).positions
        positions[position.group] = max(positions.get(position.group, 0), position.offset)

    def get_committed_offset(self, topic: str, group: str, *, partition: int = 0) -> Offset:
        """Return the next offset a group has to read; 0 if it never committed."""
        with self._changed:
            return Offset(self._partition(topic, partition).positions.get(group, START))

    def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> Offset:
        """Return the least position of all known groups; 0 with none, or one that never did."""
        with self._changed:
            return self._least(topic, partition)

    def _least(self, topic: str, partition: int) -> Offset:
        positions = self._partition(topic, partition).positions
        return Offset(min((positions.get(group, 0) for group in self._groups[topic]), default=0))

    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset."""
        with self._changed:
            target = self._partition(topic, partition)
            target.truncate(min(offset, self._least(topic, partition)))
            return Offset(target.first)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        """Return the first offset held and the next one to be given."""
        with self._changed:
            found = self._partition(topic, partition)
            return Offset(found.first), Offset(found.free)
