"""Fetching by offset on top of consumers that read ahead.

A fetch may ask for any offset; most ask for the one behind the last. So a reader that stands there
is kept and lent to the next call, and only another offset makes it jump.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from holdfast._base.clock import Clock
from holdfast.errors import Damaged
from holdfast.log.contract import StoredRecord
from holdfast.log.kafka.connection import (
    OUT_OF_RANGE,
    RETRY_MIN_S,
    TIMED_OUT,
    Connection,
    is_passing,
)
from holdfast.log.kafka.reader import Reader, reader_of

READERS_MAX = 8
"""Idle readers that are kept, each with a connection and what it has read ahead. Fewer: a consumer
of many partitions connects for each fetch. More: memory."""
STUCK_S = 15.0
"""How long a reader may give nothing of what is there before its consumer is replaced. Shorter: a
broker that takes as long to come back is asked by one connection after the other. Longer: a fetch
stands still for so long where the client library has locked itself up (`consumers`)."""
SLICE_S = 0.25
"""Waits are cut into slices, so that a signal is heard."""


class Fetching:
    """Lends readers to fetches, and knows how far each partition reached when last seen."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self._guard = threading.Lock()
        self._idle: list[Reader] = []
        self._lettings_go = 0
        self._ends: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Let go of all readers."""
        with self._guard:
            idle, self._idle = self._idle, []
            self._lettings_go += 1
        for reader in idle:
            reader.close()
        self._ends.clear()

    def saw(self, topic: str, partition: int, end: int) -> None:
        """Learn that a partition reaches to `end`."""
        self._ends[topic, partition] = end

    def reaches(self, topic: str, partition: int, offset: int) -> bool:
        """Tell whether a partition is known to reach to `offset`. False: the broker may know."""
        return offset <= self._ends.get((topic, partition), 0)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Ask the broker for the first offset held and the next to be given."""
        with self._reading(topic, partition) as reader:
            return self._ask(reader)

    def fetch(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on; waits only if there is none."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        with self._reading(topic, partition, offset) as reader:
            return self._read(reader, offset, count, deadline_s)

    @contextmanager
    def _reading(self, topic: str, partition: int, offset: int = -1) -> Iterator[Reader]:
        """Lend a reader to one call: the one that stands at `offset`, another idle one, or a new
        one. A reader that met trouble is not used again.
        """
        with self._guard:
            here = [one for one in self._idle if (one.topic, one.partition) == (topic, partition)]
            at = [one for one in here if one.position == offset]
            reader = next(iter(at or here), None)
            if reader is not None:
                self._idle.remove(reader)
            lettings_go = self._lettings_go
        if reader is None:
            reader = reader_of(self._connection.settings, topic, partition, self._clock)
        try:
            yield reader
        except BaseException:  # even when interrupted: where it stands is unknown
            reader.close()
            raise
        surplus: Reader | None = reader
        with self._guard:
            if lettings_go == self._lettings_go:  # else all others were let go meanwhile
                self._idle.append(reader)
                surplus = self._idle.pop(0) if len(self._idle) > READERS_MAX else None
        if surplus is not None:
            surplus.close()

    def _read(
        self, reader: Reader, offset: int, count: int, deadline_s: float
    ) -> list[StoredRecord]:
        """Take what is there; if that is nothing, wait for the first to come.

        How far the log reaches is asked only if `count` records are not known to be there.
        """
        end = self._ends.get((reader.topic, reader.partition), 0)
        if offset == end == reader.position:
            # It stands at the end as last seen: what came since is on its way to it.
            left_s = deadline_s - self._clock.monotonic_s()
            found = self._await(reader, offset, count, left_s) if left_s > 0 else []
            if found:
                return found
        if offset + count > end:
            end = self._ask(reader)[1]
        if offset < end:
            return self._collect(reader, offset, min(count, end - offset), end)
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            if offset in (end, reader.position):
                if found := self._await(reader, offset, count, left_s):
                    return found
            else:
                self._connection.rest(min(left_s, RETRY_MIN_S))
                end = max(end, min(self._ask(reader)[1], offset))
        return []

    def _await(self, reader: Reader, offset: int, count: int, left_s: float) -> list[StoredRecord]:
        """Take what comes next; the broker answers as soon as there is a record."""
        found = self._take(reader, offset, 1, min(left_s, SLICE_S))
        if found:
            found += self._take(reader, reader.position, count - 1, 0.0)
            self.saw(reader.topic, reader.partition, reader.position)
        return found

    def _collect(self, reader: Reader, offset: int, count: int, end: int) -> list[StoredRecord]:
        """Take records that are there, across a broker's restart if need be."""
        found: list[StoredRecord] = []
        began_s = renewed_s = self._clock.monotonic_s()
        while len(found) < count and offset < end:
            more = self._take(reader, offset, count - len(found), SLICE_S)
            found += more
            if not more:
                self._connection.check()
                now_s = self._clock.monotonic_s()
                if now_s > began_s + self._connection.settings.timeout_s:
                    raise self._connection.trouble(KafkaError(TIMED_OUT))
                if now_s > renewed_s + STUCK_S:
                    reader.renew()
                    renewed_s = now_s
            offset = max(offset, reader.position)
        return found

    def _take(
        self, reader: Reader, offset: int, count: int, timeout_s: float
    ) -> list[StoredRecord]:
        """Take records from `offset` on, or from the first one held."""
        if count < 1:
            return []
        reader.seek(offset)
        try:
            return reader.take(count, timeout_s)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() not in OUT_OF_RANGE:
                if is_passing(cause):
                    return []
                raise self._connection.trouble(cause) from error
        first, end = self._ask(reader)
        if offset > end:
            what = f"topic {reader.topic} ends at {end}, it had reached {offset}: records are lost"
            raise Damaged(path=self._connection.settings.url, what=what)
        reader.seek(max(first, offset))
        return []

    def _ask(self, reader: Reader) -> tuple[int, int]:
        first, end = self._connection.again(reader.bounds)
        self.saw(reader.topic, reader.partition, end)
        return first, end
