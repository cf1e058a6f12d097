"""A Spark data source for CSV chunks: one partition per source, checksum first, then parsed.

Each task reads its byte range into memory once, compares the SHA-256 of those very bytes with the
one that was bound, and gives Spark record batches parsed by `csv_parse`. Tasks may run any number
of times: nothing here has an effect.

Bad rows. Under FAIL the task raises BadRows; workers hand over only the text of a traceback, so
the text carries the error for `errors.from_text`. Under QUARANTINE three columns are added, and a
row is either good (they are null) or bad (all others are null); `split_bad_rows` parts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import col, lit
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.engine.executor import Source
from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.intake.tables import BadRowPolicy
from holdfast.spark.chunk import FILE, LINE, RAW, REASON, read_chunk
from holdfast.spark.types import Column, columns_of

__all__ = ["FILE", "FORMAT", "LINE", "RAW", "REASON", "CsvChunks", "read_csv", "split_bad_rows"]

FORMAT = "holdfast_csv"

_ASIDE = StructType(
    [
        StructField(FILE, StringType()),
        StructField(LINE, LongType()),
        StructField(RAW, StringType()),
        StructField(REASON, StringType()),
    ]
)

_registered: WeakSet[SparkSession] = WeakSet()
"""The sessions that know the source. Spark keeps its sources by session."""


def read_csv(
    spark: SparkSession,
    schema: StructType,
    sources: Sequence[Source],
    policy: BadRowPolicy,
    *,
    table: str = "",
) -> DataFrame:
    """Return the rows of `sources`, one partition each, in the columns of `schema`.

    Nothing is read before an action; every action reads again. All columns are nullable. Under
    QUARANTINE the frame also has the columns of bad rows: part it with `split_bad_rows`. `table`
    is for messages.

    Raises:
        UsageInvalid: a column's type cannot be read from CSV.
    """
    columns_of(schema)
    taken = {FILE, LINE, RAW, REASON} & set(schema.fieldNames())
    if taken:
        raise UsageInvalid(
            what=f"column {min(taken)} has a name that is kept for bad rows",
            remedy="Rename it.",
        )
    nullable = StructType([StructField(field.name, field.dataType) for field in schema.fields])
    if policy is BadRowPolicy.QUARANTINE:
        nullable = StructType([*nullable.fields, *_ASIDE.fields])
    if not sources:
        return no_rows(spark, nullable)
    if spark not in _registered:
        # Once: Spark logs a warning whenever a source replaces one of the same name.
        spark.dataSource.register(CsvChunks)
        _registered.add(spark)
    return (
        spark.read.format(FORMAT)
        .schema(nullable)
        .option("sources", json.dumps([asdict(source) for source in sources]))
        .option("required", json.dumps([f.name for f in schema.fields if not f.nullable]))
        .option("policy", policy.value)
        .option("table", table)
        .load()
    )


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame of some columns without rows.

    `createDataFrame([])` runs a job; this is empty before there is one.
    """
    nothing = spark.range(1).where(lit(False))
    return nothing.select(*(lit(None).cast(f.dataType).alias(f.name) for f in schema.fields))


def split_bad_rows(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Part what `read_csv` gave under QUARANTINE into good rows and bad ones.

    Both read the same frame: persist it first, or the input is parsed twice.
    """
    aside = _ASIDE.fieldNames()
    good = frame.where(col(LINE).isNull()).drop(*aside)
    return good, frame.where(col(LINE).isNotNull()).select(*aside)


class CsvChunks(DataSource):
    """The data source `holdfast_csv`. Its options are made by `read_csv` and are no interface."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. Runs in a planning process, never in a task."""
        # Spark pickles this object into every task; the long list is of use only here.
        sources = [Source(**fact) for fact in json.loads(self.options.pop("sources"))]
        required = set(json.loads(self.options["required"]))
        declared = StructType(
            [
                StructField(field.name, field.dataType, field.name not in required)
                for field in schema.fields
                if field.name not in _ASIDE.fieldNames()
            ]
        )
        policy = BadRowPolicy(self.options["policy"])
        return CsvReader(sources, self.options["table"], columns_of(declared), policy)


@dataclass
class CsvPartition(InputPartition):
    """The work of one task."""

    source: Source


class CsvReader(DataSourceReader):
    """Plans one partition per source, and reads one."""

    def __init__(
        self,
        sources: list[Source],
        table: str,
        columns: tuple[Column, ...],
        policy: BadRowPolicy,
    ) -> None:
        self._sources = sources
        self._table = table
        self._columns = columns
        self._policy = policy

    def __getstate__(self) -> dict[str, Any]:
        # A task gets its source as its partition; the whole list would go to each of them.
        return {**vars(self), "_sources": []}

    def partitions(self) -> list[InputPartition]:
        """Return one partition per source."""
        return [CsvPartition(source) for source in self._sources]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one source."""
        if not isinstance(partition, CsvPartition):
            raise TypeError(f"{type(partition).__name__} is not a CsvPartition")
        try:
            yield from read_chunk(partition.source, self._table, self._columns, self._policy)
        except HoldfastError as error:
            raise SourceFailed(error.wire_text()) from error


class SourceFailed(Exception):
    """Carries a HoldfastError through the text of a worker's traceback. Never seen by callers."""
