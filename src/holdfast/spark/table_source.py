"""What Holdfast keeps, as Spark tables: `spark.read.format("holdfast").option("ledger", path)`.

Options choose the kind of table. `topic` is a topic of a log: see `topic_source`, `topic_sink`.
`ledger` is every slot of a ledger (columns: docs/paid-calls.md),
with `step` those of one step. A partition is a range of slot hashes, so each slot is in exactly
one of them, whatever is bought or compacted between planning and reading. Each partition is a view
of its own moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import UsageInvalid
from holdfast.ledger.books import Choice, HashRange, ranges_of
from holdfast.ledger.opening import check_url, open_books
from holdfast.ledger.table import SCHEMA, record_batches
from holdfast.spark.paid_task import as_text
from holdfast.spark.topic_options import read_options
from holdfast.spark.topic_sink import TopicStreamWriter, TopicWriter, prepare
from holdfast.spark.topic_source import SCHEMA as TOPIC_SCHEMA
from holdfast.spark.topic_source import TopicReader, TopicStream

_PART_ROWS = 100_000
"""Slots of one partition, about. Fewer: tasks that cost more than they read. More: few tasks."""


class DefaultSource(DataSource):
    """The data source `holdfast`. The name of the class is the one Spark looks for."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns of the table that the options choose."""
        with as_text():
            if "topic" in self.options:
                read_options(self.options)
                return from_arrow_schema(TOPIC_SCHEMA)
            _ledger_of(self.options)
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it."""
        del schema
        with as_text():
            if "topic" in self.options:
                return TopicReader(read_options(self.options))
            return LedgerReader(_ledger_of(self.options), self.options.get("step"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what follows a topic."""
        del schema
        with as_text():
            return TopicStream(read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a DataFrame into a topic."""
        with as_text():
            return TopicWriter(prepare(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a stream into a topic."""
        with as_text():
            return TopicStreamWriter(prepare(self.options, schema, overwrite=overwrite))


def _ledger_of(options: Mapping[str, str]) -> str:
    """Return the ledger's URL, or refuse the options by name."""
    unknown = sorted(set(options) - {"ledger", "step"})
    if "ledger" not in options or unknown:
        what = f"it has no table {unknown[0]!r}" if unknown else "it was not told which table"
        raise UsageInvalid(
            what=f"format holdfast: {what}",
            remedy="Give option('ledger', 'file:///a/path'), or option('topic', NAME) and a url.",
        )
    check_url(options["ledger"])
    return options["ledger"]


@dataclass(frozen=True)
class LedgerPart(InputPartition):
    """The slots of a range of hashes."""

    within: HashRange


class LedgerReader(DataSourceReader):
    """Reads the slots of a ledger."""

    def __init__(self, url: str, step: str | None) -> None:
        """Choose a ledger, and one step of it or all."""
        self._url, self._choice = url, Choice(step)

    def partitions(self) -> list[LedgerPart]:
        """Cut the slots into ranges."""
        with as_text(), closing(open_books(self._url)) as books:
            books.chosen_steps(self._choice)
            return [LedgerPart(part) for part in ranges_of(1 + books.rows() // _PART_ROWS)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the slots of one range."""
        with as_text(), closing(open_books(self._url)) as books:
            yield from record_batches(books.slots(self._choice, partition.within))
