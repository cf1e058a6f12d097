"""The log on any broker that speaks the Kafka protocol: `kafka://host:port/prefix`.

What a broker gives, and what not (docs/backends.md):

* A record counts as appended when the broker confirmed it. A delivery report that says failed, or
  none in time, raises: nothing of that batch is counted as sent, though some of it may be there.
* The producer is idempotent within its life: its own retries append once and in order. A record
  id is carried, not enforced: a producer that starts anew may append it again. So IDEMPOTENT is
  not declared; whoever reads deduplicates.
* Broker transactions are not used. Their markers take offsets, and offsets here have no gaps.
* A group's position is one of a Kafka group of its own, read and then written: two processes that
  commit for one group at the same instant may set it back. It is advice; a store is the truth.

Calls that a broker's restart interrupts are made again until `timeout_s` has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import TopicPartition

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.ids import START, Offset
from holdfast.errors import UsageInvalid
from holdfast.log.contract import Capability, QueueBackend, QueueEndpoint, Record, StoredRecord
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.fetching import Fetching
from holdfast.log.kafka.positions import Positions
from holdfast.log.kafka.producing import Producing
from holdfast.log.kafka.settings import KafkaSettings, read_settings
from holdfast.log.kafka.topics import Topics


class KafkaBackend(QueueBackend):
    """Topics on a broker that runs somewhere. Safe to use from several threads."""

    def __init__(self, url: str | KafkaSettings, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._marks: dict[tuple[str, int], int] = {}
        self._use(read_settings(url) if isinstance(url, str) else url)
        self.capabilities = _capabilities(self.settings)

    def _use(self, settings: KafkaSettings) -> None:
        """Talk to the broker that `settings` name, from the next start on."""
        self.settings = settings
        self._connection = Connection(settings, self._clock, self._life)
        self._topics = Topics(self._connection)
        self._positions = Positions(self._connection)
        self._producing = Producing(self._connection)
        self._fetching = Fetching(self._connection, self._clock)

    def start(self) -> None:
        """Connect, and see that the broker answers.

        Raises:
            LogUnreachable: it does not.
            LogRefused: it does, but not for us.
        """
        self._connection.open()

    def stop(self) -> None:
        """Let go of all connections."""
        self._forget()
        self._connection.close()

    def _forget(self) -> None:
        self._fetching.close()
        self._producing.close()
        self._positions.close()
        self._topics.forget()
        self._marks.clear()

    def _life(self) -> int:
        """Return which life of the broker it is, where a new one has lost all."""
        return 0

    def _known(self) -> Topics:
        """Return the topics as they are known. After trouble with the broker they are asked for
        anew, and all else: it may have lost them.
        """
        if self._connection.is_stale():
            self._forget()
            self._connection.renew()
        return self._topics

    def endpoint(self) -> QueueEndpoint:
        """Return the URL. Whoever connects brings user and password itself."""
        return QueueEndpoint(self.settings.url)

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic if it is missing, kept until it is truncated."""
        self._known().create(topic, partitions)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        found = self._known().find(topic)
        if found is None:
            raise UsageInvalid(what=f"topic {topic} does not exist", remedy="Create it first.")
        return found

    def produce(self, topic: str, record: Record, *, partition: int = 0) -> Offset:
        """Append one record; returns its offset when the broker has confirmed it."""
        return self.produce_batch(topic, [record], partition=partition)[0]

    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        """Append records in order; returns their offsets when the broker has confirmed all.

        Raises:
            LogUnreachable: some were not confirmed. Some may be there: produce all of them again.
        """
        name = self._known().to_append(topic, partition)
        offsets = self._producing.send(name, partition, records)
        if offsets:
            self._fetching.saw(topic, partition, offsets[-1] + 1)
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
        """Return up to `count` records from `offset` on, in order; waits only if there is none.

        Raises:
            Damaged: the log ends before where it was once seen to reach: it lost records.
        """
        name = self._known().name(topic, partition)
        if count < 1:
            return []
        start = max(offset, self._mark(name, partition))
        return self._fetching.fetch(topic, partition, start, count, timeout_s)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        """Return the first offset held and the next one to be given."""
        name = self._known().name(topic, partition)
        first, end = self._fetching.bounds(topic, partition)
        return Offset(max(first, self._mark(name, partition))), Offset(end)

    def register_group(self, topic: str, group: str) -> None:
        """Make a group known before it commits, so that truncation waits for it."""
        self._positions.register(self._known().name(topic, 0), group, self.partitions(topic))

    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        """Record that a group is done with everything below `offset`. A lower one: no effect."""
        name = self._known().name(topic, partition)
        if offset < 0 or not self._fetching.reaches(topic, partition, offset):
            _, end = self._fetching.bounds(topic, partition)
            if not 0 <= offset <= end:
                raise UsageInvalid(
                    what=f"offset {offset} of topic {topic}, partition {partition},"
                    f" which ends at {end}",
                    remedy="Commit the offset of the last record processed, plus one.",
                )
        self._positions.advance(name, group, partition, offset)

    def get_committed_offset(self, topic: str, group: str, *, partition: int = 0) -> Offset:
        """Return the next offset a group has to read; 0 if it never committed."""
        return Offset(self._positions.of(self._known().name(topic, partition), group, partition))

    def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> Offset:
        """Return the least position of all known groups; 0 with none, or one that never did."""
        return Offset(self._positions.least(self._known().name(topic, partition), partition))

    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset.

        Where the broker cannot, a mark says from where on records count as held: they are not
        seen any more, but no room is given back.
        """
        name = self._known().name(topic, partition)
        first, _ = self.bounds(topic, partition=partition)
        target = min(offset, self._positions.least(name, partition))
        if target <= first:
            return first
        if self.settings.truncate == "mark":
            self._positions.mark(name, partition, target)
            self._marks[name, partition] = target
            return Offset(target)
        where, admin = TopicPartition(name, partition, target), self._connection.admin

        def ask(wait_s: float) -> Future[Any]:
            (future,) = admin.delete_records([where], request_timeout=wait_s).values()
            return future

        return Offset(self._connection.again_in_future(ask).low_watermark)

    def _mark(self, name: str, partition: int) -> int:
        """Return from which offset on records count as held, as it was when first asked."""
        if self.settings.truncate != "mark":
            return START
        if (name, partition) not in self._marks:
            self._marks[name, partition] = self._positions.marked(name, partition)
        return self._marks[name, partition]


def _capabilities(settings: KafkaSettings) -> frozenset[Capability]:
    """Return what a log with these settings can do."""
    found = {Capability.SHARED}
    if settings.flush == "always" or settings.replicas > 1:
        found.add(Capability.DURABLE)
    if settings.truncate == "delete":
        found.add(Capability.TRUNCATE)
    return frozenset(found)
