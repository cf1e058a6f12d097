"""DataFrames and streams into topics: `df.write.format("holdfast")`, `df.writeStream...`.

Exactly once by record id: each row has an id, its id chooses its partition, and the log takes an id
once. A task that runs twice, a micro-batch that is written again after a killed driver or a lost
commit marker, a whole job run again: each appends only what is not there. Nothing rests on a
batch's number or on Spark's checkpoint.

Not promised: that all rows of a batch appear at one moment. A record is in the log as soon as its
task wrote it, and stays there if the job fails; running it again adds the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast._base.ids import digest_bytes
from holdfast.errors import UsageInvalid
from holdfast.log.contract import Capability, QueueBackend, Record
from holdfast.spark.paid_task import as_text
from holdfast.spark.topic_options import AT_LEAST_ONCE, WriteOptions, opened, write_options

PRODUCE_RECORDS = 1_000
"""Records per append and partition: fewer cost an fsync each, more are held in memory."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task handed to the log; some of it may have been there."""

    records: int


def shard_of(record_id: str, partitions: int) -> int:
    """Return the partition that an id belongs to: the same on every machine, for good."""
    return int.from_bytes(digest_bytes("record", record_id)[:8], "big") % partitions


def records_of(options: WriteOptions, batch: pa.RecordBatch) -> list[Record]:
    """Return the rows of a batch as records.

    Raises:
        UsageInvalid: a row has no id or no value.
    """
    values = _column(batch, options.value_column)
    ids = [""] * len(values) if options.id_column is None else _column(batch, options.id_column)
    keys = [b""] * len(values) if options.key_column is None else _column(batch, options.key_column)
    if None in values:
        raise _nothing_in(options.topic, options.value_column)
    if options.id_column is not None and (None in ids or "" in ids):
        raise _nothing_in(options.topic, options.id_column)
    return [
        Record(_bytes(value), record_id=str(name), key=_bytes(key or b""))
        for value, name, key in zip(values, ids, keys, strict=True)
    ]


def _nothing_in(topic: str, column: str) -> UsageInvalid:
    what = f"topic {topic}: a row has nothing in column {column}"
    return UsageInvalid(what=what, remedy="Filter such rows, or give them one.")


def _column(batch: pa.RecordBatch, name: str) -> list[bytes | str | int | None]:
    found: list[bytes | str | int | None] = batch.column(name).to_pylist()
    return found


def _bytes(value: bytes | str | int | None) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def append(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Append all rows of a task, each to the partition of its id."""
    total = 0
    with opened(options.url, write=True) as backend:
        shards = backend.partitions(options.topic)
        waiting: list[list[Record]] = [[] for _ in range(shards)]
        for batch in batches:
            for record in records_of(options, batch):
                # Without an id any partition will do: in turn.
                shard = shard_of(record.record_id, shards) if record.record_id else total % shards
                waiting[shard].append(record)
                total += 1
                if len(waiting[shard]) >= PRODUCE_RECORDS:
                    _produce(backend, options, shard, waiting[shard])
        for shard, records in enumerate(waiting):
            _produce(backend, options, shard, records)
    return Written(total)


def _produce(
    backend: QueueBackend, options: WriteOptions, shard: int, records: list[Record]
) -> None:
    if records:
        backend.produce_batch(options.topic, list(records), partition=shard)
        records.clear()


def prepare(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteOptions:
    """Check everything before a job begins; create the topic if its partitions are given.

    Raises:
        UsageInvalid: an option is wrong, the topic is missing, or the log takes ids twice.
    """
    found = write_options(options, schema)
    if overwrite:
        what = f"topic {found.topic} cannot be overwritten"
        raise UsageInvalid(what=what, remedy="Use mode('append') or outputMode('append').")
    with opened(found.url, write=True, create=found.partitions is not None) as backend:
        takes_once = found.id_column is not None and Capability.IDEMPOTENT in backend.capabilities
        if not takes_once and options.get("delivery") != AT_LEAST_ONCE:
            what = f"the log at {found.url} does not take an id once"
            remedy = "Readers must drop copies by id. If they do, say so:"
            raise UsageInvalid(what=what, remedy=f"{remedy} option('delivery', '{AT_LEAST_ONCE}').")
        if found.partitions is not None:
            backend.create_topic(found.topic, partitions=found.partitions)
        backend.partitions(found.topic)
    return found


class TopicWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task."""
        with as_text():
            return append(self._options, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task."""
        with as_text():
            return append(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what the tasks appended is durable."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was appended stays, and is not appended again."""
