"""Chunks of a table as a frame, whatever their format, and how many rows were seen.

CSV comes in through our own source, which hashes the bytes it parses; JSON lines, Parquet and
binary files by Spark's own readers, whose bytes the engine hashes before it commits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JError
from pyarrow import compute as pc
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.engine.executor import Source
from holdfast.errors import BadRows, HeaderWrong, UsageInvalid
from holdfast.intake.tables import BadRowPolicy, TableSpec
from holdfast.spark.source import FILE, LINE, RAW, REASON, no_rows, read_csv, split_bad_rows

_BAD_JSON = "not a JSON object of the declared columns"


@dataclass(frozen=True, slots=True)
class TableFrame:
    """The rows of a table in one work.

    `bad` holds the rows that do not fit, where the reader gives them back; `good` and `bad` are
    then parts of `raw`, which is to be persisted so that it is read once.
    """

    good: DataFrame
    raw: DataFrame
    bad: DataFrame | None
    seen: Observation

    def rows(self) -> int:
        """Return how many rows the first action saw; 0 where the optimiser read none."""
        try:
            return int(self.seen.get.get("rows", 0))
        except (PySparkException, Py4JError):
            return 0


def quoted(name: str) -> Column:
    """Return a column by its whole name: `a.b` is a name, not a field of a."""
    return F.col("`" + name.replace("`", "``") + "`")


def schema_of(table: TableSpec) -> StructType | None:
    """Return the declared columns, or None where the files carry their own."""
    return parse_ddl(table.schema) if table.schema else None


def parse_ddl(schema: str) -> StructType:
    """Return the columns that a DDL string declares."""
    return cast(StructType, StructType.fromDDL(schema))


def empty_frame(spark: SparkSession, table: TableSpec) -> DataFrame:
    """Return a frame of a table's columns with no rows."""
    schema = schema_of(table)
    if schema is None and table.format == "binaryFile":
        schema = parse_ddl("path string, modificationTime timestamp, length bigint, content binary")
    if schema is None:
        what = f"table {table.name} has no file and no declared schema"
        raise UsageInvalid(what=what, remedy="Declare its schema, or hand in a file.")
    return no_rows(spark, schema)


def read_table(spark: SparkSession, table: TableSpec, sources: tuple[Source, ...]) -> TableFrame:
    """Return the rows of some chunks of a table. Nothing is read before an action."""
    if not sources:
        empty = empty_frame(spark, table)
        return TableFrame(empty, empty, None, Observation())
    by_format: dict[str, list[Source]] = {}
    for source in sources:
        by_format.setdefault(source.format, []).append(source)
    frames = [_read(spark, table, fmt, some) for fmt, some in by_format.items()]
    raw = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    seen = Observation()
    raw = raw.observe(seen, F.count(F.lit(1)).alias("rows"))
    if RAW not in raw.columns:
        return TableFrame(raw, raw, None, seen)
    good, bad = split_bad_rows(raw)
    return TableFrame(good, raw, bad, seen)


def _read(spark: SparkSession, table: TableSpec, fmt: str, sources: list[Source]) -> DataFrame:
    paths = [source.path for source in sources]
    if fmt == "csv":
        schema = schema_of(table)
        if schema is None:
            what = f"table {table.name} has CSV chunks and no schema"
            raise UsageInvalid(what=what, remedy="Declare its schema.")
        return read_csv(spark, schema, sources, table.on_bad_rows, table=table.name)
    if fmt == "json":
        return _read_json(spark, table, paths)
    if fmt == "binaryFile":
        return spark.read.format("binaryFile").load(paths)
    return _read_parquet(spark, table, paths)


def _read_json(spark: SparkSession, table: TableSpec, paths: list[str]) -> DataFrame:
    schema = parse_ddl(table.schema)
    wanted = StructType([*schema.fields, StructField(RAW, StringType())])
    frame = (
        spark.read.schema(wanted)
        .option("timeZone", "UTC")
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", RAW)
        .json(paths)
    )
    broken = F.when(F.col(RAW).isNotNull(), F.lit(_BAD_JSON))
    return _marked(frame, schema, F.coalesce(broken, *_nulls(schema)), raw=F.col(RAW))


def _read_parquet(spark: SparkSession, table: TableSpec, paths: list[str]) -> DataFrame:
    frame = spark.read.parquet(*paths)
    schema = schema_of(table)
    if schema is None:
        return frame
    if missing := [name for name in schema.fieldNames() if name not in frame.columns]:
        raise HeaderWrong(
            path=paths[0],
            table=table.name,
            found=", ".join(frame.columns),
            wanted=f"also {', '.join(missing)}",
        )
    columns = [quoted(f.name).cast(f.dataType).alias(f.name) for f in schema.fields]
    nulls = _nulls(schema)
    if not nulls:
        return frame.select(columns)
    typed = frame.select(*columns, F.col("_metadata"))
    return _marked(typed, schema, F.coalesce(*nulls)).drop("_metadata")


def _nulls(schema: StructType) -> list[Column]:
    """Return, for each column that may have no null, its reason where there is one."""
    return [
        F.when(quoted(f.name).isNull(), F.lit(_null_reason(f.name)))
        for f in schema.fields
        if not f.nullable
    ]


def _null_reason(name: str) -> str:
    return f"column {name}: null, declared NOT NULL"


def _marked(
    frame: DataFrame, schema: StructType, reason: Column, *, raw: Column | None = None
) -> DataFrame:
    """Add the columns of bad rows. Without `raw` the text of a bad one is what was read of it."""
    is_bad = reason.isNotNull()
    text = F.when(is_bad, F.to_json(F.struct(*[quoted(name) for name in schema.fieldNames()])))
    return frame.withColumns(
        {
            FILE: F.when(is_bad, F.col("_metadata.file_path")),
            # Spark's readers do not know lines; 0 says so, and marks the row as bad.
            LINE: F.when(is_bad, F.lit(0).cast("bigint")),
            RAW: text if raw is None else F.coalesce(raw, text),
            REASON: reason,
        }
    )


_WRITTEN_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark keeps a frame's columns in the footer of each Parquet file that it writes."""


def read_written(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files that Spark wrote for one output.

    Their columns are read off the first file here: Spark would run a job to do the same.
    """
    footer = parquet.read_schema(paths[0]).metadata or {}
    if _WRITTEN_SCHEMA not in footer:
        return spark.read.parquet(*paths)
    schema = StructType.fromJson(json.loads(footer[_WRITTEN_SCHEMA]))
    return spark.read.schema(schema).parquet(*paths)


def refuse_bad_rows(table: TableSpec, frame: TableFrame, sources: tuple[Source, ...]) -> None:
    """Raise BadRows if rows do not fit and may not be kept aside; finds where the first is.

    The CSV source has done so itself.
    """
    if table.on_bad_rows is not BadRowPolicy.FAIL or frame.bad is None:
        return
    first = frame.bad.select(RAW, REASON).first()
    if first is None:
        return
    count, text, reason = frame.bad.count(), str(first[0]), str(first[1])
    columns = parse_ddl(table.schema).fieldNames()
    column = next((name for name in columns if _null_reason(name) == reason), None)
    for source in sources:
        if line := _line_of(source, text, column):
            raise BadRows(path=source.path, line=line, reason=reason, count=count)
    raise BadRows(path=sources[0].path, line=1, reason=reason, count=count)


def _line_of(source: Source, text: str, column: str | None) -> int | None:
    """Return the first line that reads `text`, or has no value in `column`, if it is that.

    A second pass over a bad chunk. Of Parquet it is the row, counted from 1.
    """
    if source.format == "parquet" and column is not None:
        nulls = parquet.read_table(source.path, columns=[column]).column(0).is_null()
        place = pc.index(nulls, True).as_py()
        return place + 1 if place >= 0 else None
    if source.format != "json":
        return None
    with Path(source.path).open(encoding="utf-8", errors="replace") as file:
        lines = ((number, line.rstrip("\r\n")) for number, line in enumerate(file, 1))
        if column is None:
            return next((number for number, line in lines if line == text), None)
        return next((number for number, line in lines if _lacks(line, column)), None)


def _lacks(line: str, column: str) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get(column) is None
