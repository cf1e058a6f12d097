"""Finds the rows of a chunk that do not fit its schema. Runs only after the parser has given up.

`pyarrow.csv` aborts at the first bad value, and its handler sees only wrong numbers of fields, so
this is a second, slow, serial pass: rows are told apart by `csv_rows`, fields by the parser, as
bytes. Its verdict on a value is the parser's own: what `parse` accepts is never called bad. The
good rows are then parsed as if the bad ones had never been there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from holdfast._base.invariant import invariant
from holdfast.intake.csv_rows import ends_in_quotes, row_spans, shown
from holdfast.spark.csv_parse import parse
from holdfast.spark.texts import possible
from holdfast.spark.types import Column

_SHOWN_CHARACTERS = 100
"""Of a bad value in its reason. The whole row is kept aside with it."""

_TO_ASCII = bytes(range(128)) + b"?" * 128


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit: where it begins in the data, its text, and what is wrong."""

    offset: int
    raw: str
    reason: str


def part_rows(data: bytes, columns: Sequence[Column], *, begin: int) -> tuple[bytes, list[BadRow]]:
    """Return the text of the rows that fit, and those that do not, in the order of the data."""
    rows = list(row_spans(data, begin))
    reasons: dict[int, str] = {}
    if rows and ends_in_quotes(data, begin):
        reasons[len(rows) - 1] = "a quote is never closed"
    for find in (_wrong_counts, _wrong_values):
        live = [number for number in range(len(rows)) if number not in reasons]
        text = _text(data, (rows[number] for number in live))
        for position, reason in find(text, columns, len(live)).items():
            reasons[live[position]] = reason
    bad = [
        BadRow(start, data[start:stop].decode(errors="backslashreplace"), reasons[number])
        for number, (start, stop) in enumerate(rows)
        if number in reasons
    ]
    return _text(data, (row for n, row in enumerate(rows) if n not in reasons)), bad


def _text(data: bytes, rows: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(data[start:stop] + b"\n" for start, stop in rows)


def _wrong_counts(text: bytes, columns: Sequence[Column], rows: int) -> dict[int, str]:
    """Return position -> reason of rows with too few or too many fields."""
    found: dict[int, str] = {}

    def note(row: Any) -> str:
        found[row.number - 1] = f"{row.actual_columns} fields, {row.expected_columns} wanted"
        return "skip"

    if text:
        # The parser decodes a bad row for its handler and fails if it cannot; which bytes beyond
        # ASCII a field has does not matter for their number.
        _fields(text.translate(_TO_ASCII), columns, note)
    invariant(all(position < rows for position in found), "the parser and csv_rows count alike")
    return found


def _wrong_values(text: bytes, columns: Sequence[Column], rows: int) -> dict[int, str]:
    """Return position -> reason of rows with a value that is not of its column's type."""
    if not text:
        return {}
    table = _fields(text, columns)
    invariant(table.num_rows == rows, "the parser and csv_rows find the same rows")
    found: dict[int, str] = {}
    for column in columns:
        for position, reason in _wrong_in_column(table.column(column.name), column).items():
            found.setdefault(position, reason)
    return found


def _fields(text: bytes, columns: Sequence[Column], note: Any = None) -> Any:
    """Return the fields as bytes. An unquoted empty one is null."""
    names = [column.name for column in columns]
    return csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _wrong_in_column(values: Any, column: Column) -> dict[int, str]:
    encoded = pc.dictionary_encode(values).combine_chunks()
    distinct: list[bytes] = encoded.dictionary.to_pylist()
    asked = [value for value in distinct if value or column.is_text]
    may_be = possible(column)
    refused = {value for value in asked if not may_be(value)}
    refused.update(_refused([value for value in asked if value not in refused], column))
    wrong = {}
    for position, index in enumerate(encoded.indices.to_pylist()):
        value = None if index is None else distinct[index]
        if value in refused:
            wrong[position] = _reason(value, column)
        elif column.required and (value is None or not (value or column.is_text)):
            wrong[position] = f"column {column.name}: null, declared NOT NULL"
    return wrong


def _refused(values: list[bytes], column: Column) -> list[bytes]:
    """Return the values that the parser refuses, by halving: few are expected here."""
    text = b"".join(b'"' + value.replace(b'"', b'""') + b'"\n' for value in values)
    try:
        list(parse(text, [replace(column, required=False)], one_block=True))
    except pa.ArrowInvalid:
        if len(values) == 1:
            return values
        middle = len(values) // 2
        return _refused(values[:middle], column) + _refused(values[middle:], column)
    return []


def _reason(value: bytes, column: Column) -> str:
    text = shown(value, _SHOWN_CHARACTERS)
    if pa.types.is_string(column.arrow_type):
        return f"column {column.name}: '{text}' is not UTF-8 text"
    article = "an" if column.sql_type[0] in "aeiou" else "a"
    return f"column {column.name}: '{text}' is not {article} {column.sql_type}"
