"""The same contract for asyncio: each call runs in a thread, so the loop never waits for a disk.

A call that is cancelled may still happen: a thread cannot be stopped. Give records ids, and
produce again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast._base.ids import Offset
from holdfast.log.contract import (
    Capability,
    Position,
    QueueBackend,
    QueueEndpoint,
    Record,
    StoredRecord,
)


class AsyncBackend:
    """Wraps any QueueBackend. Each method does what its namesake does."""

    def __init__(self, backend: QueueBackend) -> None:
        self.backend = backend

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return what the wrapped backend can do."""
        return self.backend.capabilities

    def endpoint(self) -> QueueEndpoint:
        """Return what another process needs to connect."""
        return self.backend.endpoint()

    async def start(self) -> None:
        """Connect, or start what must run."""
        await asyncio.to_thread(self.backend.start)

    async def stop(self) -> None:
        """Let go of everything."""
        await asyncio.to_thread(self.backend.stop)

    async def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic if it is missing."""
        await asyncio.to_thread(self.backend.create_topic, topic, partitions=partitions)

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return await asyncio.to_thread(self.backend.partitions, topic)

    async def produce(self, topic: str, record: Record, *, partition: int = 0) -> Offset:
        """Append one record; returns its offset."""
        return await asyncio.to_thread(self.backend.produce, topic, record, partition=partition)

    async def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        """Append records in order; returns their offsets."""
        return await asyncio.to_thread(
            self.backend.produce_batch, topic, records, partition=partition
        )

    async def produce_and_commit(
        self,
        topic: str,
        records: Sequence[Record],
        positions: Sequence[Position],
        *,
        partition: int = 0,
    ) -> list[Offset]:
        """Append records and advance positions as one, where ATOMIC is declared."""
        return await asyncio.to_thread(
            self.backend.produce_and_commit, topic, records, positions, partition=partition
        )

    async def fetch(
        self, topic: str, offset: Offset, *, partition: int = 0, timeout_s: float = 0.0
    ) -> StoredRecord | None:
        """Return the record at `offset`, or the next one held; None if there is none in time."""
        return await asyncio.to_thread(
            self.backend.fetch, topic, offset, partition=partition, timeout_s=timeout_s
        )

    async def fetch_batch(
        self,
        topic: str,
        offset: Offset,
        *,
        count: int,
        partition: int = 0,
        timeout_s: float = 0.0,
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on, in order."""
        return await asyncio.to_thread(
            self.backend.fetch_batch,
            topic,
            offset,
            count=count,
            partition=partition,
            timeout_s=timeout_s,
        )

    async def register_group(self, topic: str, group: str) -> None:
        """Make a group known before it commits."""
        await asyncio.to_thread(self.backend.register_group, topic, group)

    async def commit_offset(
        self, topic: str, group: str, offset: Offset, *, partition: int = 0
    ) -> None:
        """Record that a group is done with everything below `offset`."""
        await asyncio.to_thread(
            self.backend.commit_offset, topic, group, offset, partition=partition
        )

    async def get_committed_offset(self, topic: str, group: str, *, partition: int = 0) -> Offset:
        """Return the next offset a group has to read."""
        return await asyncio.to_thread(
            self.backend.get_committed_offset, topic, group, partition=partition
        )

    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> Offset:
        """Return the least position of all known groups."""
        return await asyncio.to_thread(
            self.backend.get_min_committed_offset, topic, partition=partition
        )

    async def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset."""
        return await asyncio.to_thread(
            self.backend.truncate_before, topic, offset, partition=partition
        )

    async def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        """Return the first offset held and the next one to be given."""
        return await asyncio.to_thread(self.backend.bounds, topic, partition=partition)
