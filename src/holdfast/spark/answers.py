"""Answers as text and back: what a paid step's `returns` may declare, and how it is recorded.

An answer is recorded as a JSON array with one value per declared column, so that the ledger can
be read by anyone. Decimals, dates and timestamps are texts, binary values base64; timestamps
without a zone are taken as UTC.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.errors import UsageInvalid

_To = Callable[[Any], Any]

_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with options makes an encoder for each call."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """How a value of one type becomes JSON and comes back."""

    to_json: _To
    from_json: _To


def _exactly(*kinds: type) -> _To:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"{value!r} is no {kinds[0].__name__}, as `returns` declares")
        return value

    return check


def _integer(bits: int) -> _To:
    def check(value: Any) -> int:
        number = int(_exactly(int)(value))
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise TypeError(f"{number} does not fit into {bits} bits")
        return number

    return check


def _same(value: Any) -> Any:
    return value


def _instant(value: Any) -> str:
    moment: datetime.datetime = _exactly(datetime.datetime)(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.astimezone(datetime.UTC).isoformat()


_PLAIN: dict[type[spark_types.DataType], _Codec] = {
    spark_types.StringType: _Codec(_exactly(str), _same),
    spark_types.BooleanType: _Codec(_exactly(bool), _same),
    spark_types.ByteType: _Codec(_integer(8), _same),
    spark_types.ShortType: _Codec(_integer(16), _same),
    spark_types.IntegerType: _Codec(_integer(32), _same),
    spark_types.LongType: _Codec(_integer(64), _same),
    spark_types.FloatType: _Codec(_exactly(float, int), float),
    spark_types.DoubleType: _Codec(_exactly(float, int), float),
    spark_types.DecimalType: _Codec(lambda value: str(_exactly(Decimal, int)(value)), Decimal),
    spark_types.BinaryType: _Codec(
        lambda value: base64.b64encode(_exactly(bytes, bytearray)(value)).decode(),
        base64.b64decode,
    ),
    spark_types.DateType: _Codec(
        lambda value: _exactly(datetime.date)(value).isoformat(), datetime.date.fromisoformat
    ),
    spark_types.TimestampType: _Codec(_instant, datetime.datetime.fromisoformat),
    spark_types.TimestampNTZType: _Codec(
        lambda value: _exactly(datetime.datetime)(value).isoformat(),
        datetime.datetime.fromisoformat,
    ),
}


def _codec(declared: spark_types.DataType) -> _Codec:
    if isinstance(declared, spark_types.ArrayType):
        inner = _nullable(_codec(declared.elementType))
        return _Codec(
            lambda value: [inner.to_json(item) for item in _exactly(list, tuple)(value)],
            lambda value: [inner.from_json(item) for item in value],
        )
    if isinstance(declared, spark_types.MapType):
        keys, values = _codec(declared.keyType), _nullable(_codec(declared.valueType))
        return _Codec(
            lambda value: [[keys.to_json(k), values.to_json(v)] for k, v in value.items()],
            lambda value: [(keys.from_json(k), values.from_json(v)) for k, v in value],
        )
    if isinstance(declared, spark_types.StructType):
        fields = Fields(declared)
        names = declared.names
        return _Codec(
            fields.values_of, lambda value: dict(zip(names, fields.back(value), strict=True))
        )
    found = _PLAIN.get(type(declared))
    if found is None:
        raise UsageInvalid(
            what=f"an answer of type {declared.simpleString()} cannot be recorded",
            remedy="Declare it as string and convert it after the paid step.",
        )
    return found


def _nullable(codec: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else codec.to_json(value),
        lambda value: None if value is None else codec.from_json(value),
    )


class Fields:
    """The declared columns of an answer."""

    def __init__(self, schema: spark_types.StructType) -> None:
        """Read the declaration.

        Raises:
            UsageInvalid: a type that cannot be recorded.
        """
        self.names = tuple(schema.names)
        self._codecs = [_nullable(_codec(field.dataType)) for field in schema.fields]

    def values_of(self, answer: Any) -> list[Any]:
        """Return an answer's values as JSON has them, in the order of the columns.

        Raises:
            TypeError: the answer has other columns or types than were declared.
        """
        values = self._plain(answer)
        if len(values) != len(self.names):
            raise TypeError(f"{len(values)} values for the columns {', '.join(self.names)}")
        return [codec.to_json(value) for codec, value in zip(self._codecs, values, strict=True)]

    def _plain(self, answer: Any) -> Sequence[Any]:
        if hasattr(answer, "asDict"):
            answer = answer.asDict()
        if isinstance(answer, Mapping):
            unknown = sorted(set(map(str, answer)) - set(self.names))
            if unknown:
                raise TypeError(f"the answer has {unknown[0]!r}, which `returns` does not declare")
            return [answer.get(name) for name in self.names]
        if len(self.names) == 1:
            one = isinstance(answer, tuple) and len(answer) == 1
            return [answer[0] if one else answer]
        if isinstance(answer, (list, tuple)):
            return answer
        if answer is not None and all(hasattr(answer, name) for name in self.names):
            return [getattr(answer, name) for name in self.names]
        raise TypeError(f"{answer!r} has not the columns {', '.join(self.names)}")

    def back(self, values: Sequence[Any]) -> list[Any]:
        """Return the Python values of what `values_of` made."""
        return [codec.from_json(value) for codec, value in zip(self._codecs, values, strict=True)]


class AnswerCodec:
    """Answers to bytes for the ledger, and to Arrow columns for Spark."""

    def __init__(self, schema: spark_types.StructType) -> None:
        self._fields = Fields(schema)
        self._types = [to_arrow_type(field.dataType) for field in schema.fields]
        self.names = self._fields.names

    def encode(self, answer: Any) -> bytes:
        """Return an answer as it is recorded."""
        return _TO_JSON(self._fields.values_of(answer)).encode()

    def columns(self, answers: Sequence[bytes | None]) -> list[pa.Array]:
        """Return recorded answers as columns; nulls for rows that have none."""
        none = [None] * len(self.names)
        rows = [none if a is None else self._fields.back(json.loads(a)) for a in answers]
        return [
            pa.array([row[number] for row in rows], type=kind)
            for number, kind in enumerate(self._types)
        ]
