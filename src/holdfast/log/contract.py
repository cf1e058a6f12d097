"""What a queue backend must do, and what it may declare that it can do besides.

A topic has partitions; a partition is a sequence of records, each with an offset that counts
from 0 without gaps. Consumers belong to a group, pull records by offset, and commit how far they
got. A committed offset is the *next* one to read: `last processed + 1`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from holdfast._base.ids import Offset

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
"""Nobody can write to it, so every record without headers has the same."""


class Capability(StrEnum):
    """What a backend can do beyond the core. Each has a contract suite of its own."""

    DURABLE = "durable"
    """What `produce` returned an offset for survives a power cut at that instant."""
    IDEMPOTENT = "idempotent"
    """A record whose id is still held is not appended again."""
    ATOMIC = "atomic"
    """`produce_and_commit`: append these and advance those offsets, as one transaction."""
    TRUNCATE = "truncate"
    """`truncate_before` gives room back."""
    SHARED = "shared"
    """Several processes may use the same topics by an endpoint."""


# These two are tuples: a log makes as many as it has records, and a frozen dataclass takes 0.35
# microseconds to make where SQLite takes as much to read the row.
class Record(NamedTuple):
    """What is appended. `record_id` names it for deduplication; empty means: not deduplicated."""

    value: bytes
    record_id: str = ""
    key: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS


class StoredRecord(NamedTuple):
    """A record with the place the log gave it."""

    topic: str
    partition: int
    offset: Offset
    record: Record


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group is in a partition: `offset` is the next record to read."""

    topic: str
    partition: int
    group: str
    offset: Offset


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A reference to data, never the data: what stages send each other.

    `message_id` is a hash of what the message says; `split_id` numbers the piece it refers to;
    `data_ref` says where the bytes are.
    """

    message_id: str
    split_id: str
    data_ref: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueEndpoint:
    """What a worker needs to connect to a backend, wherever it runs. Never holds a secret."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)


class QueueBackend(ABC):
    """A log with offsets. Subclass it to add a backend; run `holdfast.testing.queues` on it.

    The contract is synchronous and thread-safe. `holdfast.log.aio` wraps any backend for asyncio.
    """

    capabilities: frozenset[Capability]

    @abstractmethod
    def start(self) -> None:
        """Connect, or start what must run. Called once before anything else; again: no effect."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of everything. May never be called: nothing durable may depend on it."""

    @abstractmethod
    def endpoint(self) -> QueueEndpoint:
        """Return what another process needs to connect."""

    @abstractmethod
    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic if it is missing. With another number of partitions: UsageInvalid."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. An unknown topic raises UsageInvalid."""

    @abstractmethod
    def produce(self, topic: str, record: Record, *, partition: int = 0) -> Offset:
        """Append one record; returns its offset once the record is as safe as it will be."""

    @abstractmethod
    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        """Append records in order, all or none where the backend is ATOMIC; returns offsets."""

    @abstractmethod
    def fetch(
        self, topic: str, offset: Offset, *, partition: int = 0, timeout_s: float = 0.0
    ) -> StoredRecord | None:
        """Return the record at `offset`, or the next one held; None if there is none in time."""

    @abstractmethod
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

    @abstractmethod
    def register_group(self, topic: str, group: str) -> None:
        """Make a group known before it commits, so that truncation waits for it."""

    @abstractmethod
    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        """Record that a group is done with everything below `offset`. A lower one: no effect.

        One beyond the end raises UsageInvalid: records still to come would be skipped.
        """

    @abstractmethod
    def get_committed_offset(self, topic: str, group: str, *, partition: int = 0) -> Offset:
        """Return the next offset a group has to read; 0 if it never committed."""

    @abstractmethod
    def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> Offset:
        """Return the least position of all known groups; 0 with none, or one that never did."""

    @abstractmethod
    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset.

        Returns the first offset still held.
        """

    @abstractmethod
    def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        """Return the first offset held and the next one to be given."""

    def produce_and_commit(
        self,
        topic: str,
        records: Sequence[Record],
        positions: Sequence[Position],
        *,
        partition: int = 0,
    ) -> list[Offset]:
        """Append records and advance positions as one transaction, where ATOMIC is declared."""
        raise NotImplementedError(f"{type(self).__name__} does not declare ATOMIC")
