"""Topics as Spark tables and streams: `format("holdfast").option("topic", ...).option("url", ...)`.

A partition of the topic is cut into ranges of offsets, one per task. The end is fixed when a read
or a micro-batch is planned, so what is appended since is not in it. Tasks may run any number of
times: nothing here has an effect, save that a stream with a `group` commits how far it got.

Records that were dropped before they could be read are an error, never a smaller result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from holdfast._base.ids import Offset
from holdfast.errors import RecordsDropped
from holdfast.log.contract import QueueBackend, StoredRecord
from holdfast.spark.paid_task import as_text
from holdfast.spark.topic_options import LATEST, ReadOptions, opened

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("record_id", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
TASK_RECORDS = 100_000
"""Records of one task. Fewer: tasks that cost more than they read. More: few tasks."""
FETCH_RECORDS = 1_000
"""Records held at once in a task."""

Offsets = dict[str, int]
"""The next offset to read, by partition. Spark keeps it as JSON, so partitions are texts."""


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Records of one partition, from `start` up to `stop`, which is not in it."""

    partition: int
    start: int
    stop: int


def cut(start: Mapping[str, int], stop: Mapping[str, int], size: int) -> list[TopicRange]:
    """Return what lies between two positions, in ranges of at most `size` records. Pure."""
    return [
        TopicRange(int(partition), low, min(low + size, end))
        for partition, end in stop.items()
        for low in range(start.get(partition, 0), end, size)
    ]


def limited(start: Mapping[str, int], end: Mapping[str, int], rows_max: int) -> Offsets:
    """Return the positions after at most `rows_max` more records, fair to all partitions. Pure.

    Those that have least left are served first, so that what they leave goes to the others.
    """
    found = dict(start)
    ahead = sorted(end, key=lambda name: end[name] - start.get(name, 0))
    for place, name in enumerate(ahead):
        share = -(-rows_max // (len(ahead) - place))
        taken = min(max(end[name] - start.get(name, 0), 0), share)
        found[name] = start.get(name, 0) + taken
        rows_max -= taken
    return found


def read_range(options: ReadOptions, part: TopicRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range.

    Raises:
        RecordsDropped: some of them are not held any more.
    """
    if part.start >= part.stop:
        return
    with opened(options.url) as backend:
        _refuse_dropped(backend, options.topic, part.partition, part.start)
        place = part.start
        while place < part.stop:
            found = backend.fetch_batch(
                options.topic,
                Offset(place),
                count=min(FETCH_RECORDS, part.stop - place),
                partition=part.partition,
                timeout_s=FETCH_TIMEOUT_S,
            )
            if not found:
                raise RecordsDropped(
                    topic=options.topic, partition=part.partition, wanted=place, first=part.stop
                )
            if (missing := _first_missing(found, place)) is not None:
                _refuse_dropped(backend, options.topic, part.partition, missing)
            place = found[-1].offset + 1
            # Past offsets that no record has, a fetch goes on to the next range's.
            if here := [one for one in found if one.offset < part.stop]:
                yield _batch(here)


def _first_missing(found: Sequence[StoredRecord], start: int) -> int | None:
    """Return the first offset from `start` on that `found` passes over. Pure.

    It was dropped meanwhile, or no record ever had it: a broker that dies may lose a batch that has
    its offsets and was not confirmed.
    """
    if found[-1].offset == start + len(found) - 1:
        return None
    return next(place for place, one in enumerate(found, start) if one.offset != place)


FETCH_TIMEOUT_S = 30.0
"""How long a task waits for records that the log said it holds. Longer: a broker is gone."""


def _batch(found: Sequence[StoredRecord]) -> pa.RecordBatch:
    columns = (
        [one.topic for one in found],
        [one.partition for one in found],
        [one.offset for one in found],
        [one.record.record_id or None for one in found],
        [one.record.key or None for one in found],
        [one.record.value for one in found],
        [list(one.record.headers.items()) for one in found],
    )
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _refuse_dropped(backend: QueueBackend, topic: str, partition: int, wanted: int) -> None:
    first, _ = backend.bounds(topic, partition=partition)
    if wanted < first:
        raise RecordsDropped(topic=topic, partition=partition, wanted=wanted, first=first)


def _bounds(backend: QueueBackend, topic: str) -> tuple[Offsets, Offsets]:
    """Return where each partition begins and ends."""
    found = {
        str(partition): backend.bounds(topic, partition=partition)
        for partition in range(backend.partitions(topic))
    }
    firsts = {name: int(first) for name, (first, _) in found.items()}
    return firsts, {name: int(end) for name, (_, end) in found.items()}


class TopicReader(DataSourceReader):
    """Reads what a topic holds now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[TopicRange]:
        """Cut the topic into ranges."""
        with as_text(), opened(self._options.url) as backend:
            first, end = _bounds(backend, self._options.topic)
            found = cut(end if self._options.starting == LATEST else first, end, TASK_RECORDS)
            # Spark makes a task of its own kind out of an empty list.
            return found or [TopicRange(0, 0, 0)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        with as_text():
            yield from read_range(self._options, partition)


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a topic. Spark keeps the positions in its checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._is_known = False

    @contextmanager
    def _joined(self) -> Iterator[QueueBackend]:
        """Open the log. The group is known from the first time on, whatever the checkpoint says."""
        with as_text(), opened(self._options.url) as backend:
            if self._options.group is not None and not self._is_known:
                backend.register_group(self._options.topic, self._options.group)
                self._is_known = True
            yield backend

    def initialOffset(self) -> Offsets:
        """Return where a new query begins."""
        with self._joined() as backend:
            first, end = _bounds(backend, self._options.topic)
            return end if self._options.starting == LATEST else first

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxRecordsPerBatch` sets."""
        most = self._options.records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is appended from now on is for the next query."""
        self._target = self.reportLatestOffset()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return where the next micro-batch ends."""
        end = self.reportLatestOffset() if self._target is None else self._target
        # A restarted query may be beyond the target of one that was stopped.
        end = {name: max(place, start.get(name, 0)) for name, place in end.items()}
        return limited(start, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def reportLatestOffset(self) -> Offsets:
        """Return where the topic ends: the progress of a query shows how far it is behind."""
        with self._joined() as backend:
            return _bounds(backend, self._options.topic)[1]

    def partitions(self, start: Offsets, end: Offsets) -> list[TopicRange]:
        """Cut a micro-batch into ranges."""
        with self._joined() as backend:
            for name, place in start.items():
                if place < end.get(name, 0):
                    _refuse_dropped(backend, self._options.topic, int(name), place)
        return cut(start, end, TASK_RECORDS)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        with as_text():
            yield from read_range(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Commit for the group, if there is one, that all below `end` is done with."""
        if self._options.group is None:
            return
        with as_text(), opened(self._options.url) as backend:
            for name, place in end.items():
                backend.commit_offset(
                    self._options.topic, self._options.group, Offset(place), partition=int(name)
                )
