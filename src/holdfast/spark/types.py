"""The one table of types: what a declared column is in a CSV file, in Arrow and in Spark.

docs/internals/csv.md shows the same table with the texts each type accepts. Spark refuses a record
batch whose Arrow type differs in anything from the one it expects, time zones included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark_types

from holdfast.errors import UsageInvalid

INSTANT = pa.timestamp("us", tz="UTC")
"""`timestamp`: read as text first, because Arrow takes zone offsets everywhere or nowhere."""

_ARROW_TYPES: dict[type[spark_types.DataType], Any] = {
    spark_types.StringType: pa.string(),
    spark_types.BinaryType: pa.binary(),
    spark_types.BooleanType: pa.bool_(),
    spark_types.ByteType: pa.int8(),
    spark_types.ShortType: pa.int16(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.DateType: pa.date32(),
    spark_types.TimestampNTZType: pa.timestamp("us"),
    spark_types.TimestampType: INSTANT,
}
"""Exact classes, not subclasses: `char(3)` is a kind of string to Python and not to SQL."""


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column: its name, its type for Spark's users and for Arrow, and NOT NULL."""

    name: str
    sql_type: str
    arrow_type: Any
    required: bool

    @property
    def is_text(self) -> bool:
        """Tell whether an empty quoted field is a value here, not a null."""
        return bool(pa.types.is_string(self.arrow_type) or pa.types.is_binary(self.arrow_type))


def columns_of(schema: spark_types.StructType) -> tuple[Column, ...]:
    """Return the columns of a declared CSV schema.

    Raises:
        UsageInvalid: a type that no CSV field can hold, or a name that occurs twice.
    """
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageInvalid(
            what=f"column {twice[0]} is declared twice", remedy="Give each column its own name."
        )
    return tuple(
        Column(field.name, field.dataType.simpleString(), _arrow_type(field), not field.nullable)
        for field in schema.fields
    )


def _arrow_type(field: spark_types.StructField) -> Any:
    if isinstance(field.dataType, spark_types.DecimalType):
        return pa.decimal128(field.dataType.precision, field.dataType.scale)
    found = _ARROW_TYPES.get(type(field.dataType))
    if found is None:
        raise UsageInvalid(
            what=f"column {field.name}: type {field.dataType.simpleString()} cannot be read"
            " from CSV",
            remedy="Declare it as string and convert it in a stage.",
        )
    return found


def arrow_schema(columns: Iterable[Column]) -> Any:
    """Return the exact schema of the record batches that Spark is given.

    Everything is nullable, as in every file source of Spark.
    """
    return pa.schema([(column.name, column.arrow_type) for column in columns])
