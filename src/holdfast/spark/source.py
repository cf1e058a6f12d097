"""A Spark data source for CSV chunks: checksum first, then parsed.

Each task reads the byte ranges of its partition into memory, one after the other and each once,
compares the SHA-256 of those very bytes with the one that was bound, and gives Spark record batches
parsed by `csv_parse`. Tasks may run any number of times: nothing here has an effect.

Bad rows. Under FAIL the task raises BadRows; workers hand over only the text of a traceback, so
the text carries the error for `errors.from_text`. Under QUARANTINE three columns are added, and a
row is either good (they are null) or bad (all others are null); `split_bad_rows` parts them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
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

_registering = Lock()
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
    """Return the rows of `sources` in the columns of `schema`.

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
    with _registering:
        if spark not in _registered:
            # Once: Spark logs a warning whenever a source replaces one of the same name, and
            # refuses one that comes while another is being registered.
            spark.dataSource.register(CsvChunks)
            _registered.add(spark)
    return (
        spark.read.format(FORMAT)
        .schema(nullable)
        .option("sources", json.dumps([asdict(source) for source in sources]))
        .option("required", json.dumps([f.name for f in schema.fields if not f.nullable]))
        .option("policy", policy.value)
        .option("table", table)
        .option("cores", cores_of(spark.conf.get("spark.master", "") or ""))
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


def cores_of(master: str) -> int:
    """Return how many tasks a master on this machine runs at once; 0 for any other. Pure but for
    the number of cores.
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found is None:
        return 0
    number = found[1] or "1"
    return os.cpu_count() or 1 if number == "*" else int(number)


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
        cores = int(self.options["cores"])
        return CsvReader(sources, self.options["table"], columns_of(declared), policy, cores)


@dataclass
class CsvPartition(InputPartition):
    """The work of one task."""

    sources: tuple[Source, ...]


_TASKS_PER_CORE = 2
"""Small sources are put together until so many tasks remain. A task costs some 30 ms whatever it
reads. Fewer: one slow task leaves the other cores idle. More: that cost shows."""


def pack(sources: Sequence[Source], cores: int) -> list[tuple[Source, ...]]:
    """Put neighbours together into the partitions of a job, in order. Pure.

    `cores` is how many tasks run at once; 0 where that is not known: then each source is its own.
    """
    packed: list[tuple[Source, ...]] = []
    total = sum(source.stop - source.start for source in sources)
    room = total / (cores * _TASKS_PER_CORE) if cores else 0.0
    size = 0
    for source in sources:
        own = source.stop - source.start
        if packed and size + own <= room:
            packed[-1] += (source,)
            size += own
        else:
            packed.append((source,))
            size = own
    return packed


class CsvReader(DataSourceReader):
    """Plans the partitions, and reads one."""

    def __init__(
        self,
        sources: list[Source],
        table: str,
        columns: tuple[Column, ...],
        policy: BadRowPolicy,
        cores: int,
    ) -> None:
        self._sources, self._cores = sources, cores
        self._table = table
        self._columns = columns
        self._policy = policy

    def __getstate__(self) -> dict[str, Any]:
        # A task gets its source as its partition; the whole list would go to each of them.
        return {**vars(self), "_sources": []}

    def partitions(self) -> list[InputPartition]:
        """Return the work of each task."""
        return [CsvPartition(some) for some in pack(self._sources, self._cores)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one partition's sources."""
        if not isinstance(partition, CsvPartition):
            raise TypeError(f"{type(partition).__name__} is not a CsvPartition")
        try:
            for source in partition.sources:
                yield from read_chunk(source, self._table, self._columns, self._policy)
        except HoldfastError as error:
            raise SourceFailed(error.wire_text()) from error


class SourceFailed(Exception):
    """Carries a HoldfastError through the text of a worker's traceback. Never seen by callers."""
