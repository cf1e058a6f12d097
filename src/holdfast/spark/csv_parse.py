"""Parses the bytes of CSV rows into record batches, by `pyarrow.csv`, typed as declared.

The rules, which docs/internals/csv.md explains: an empty field is null; an empty quoted field is
an empty string in a text column and null in any other; `NA` and its like are plain text; a
timestamp with no zone is UTC. A row that does not fit raises `pyarrow.ArrowInvalid`: finding it is
the work of `bad_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from holdfast.intake.csv_rows import ends_in_quotes
from holdfast.spark.types import INSTANT, Column, arrow_schema

_BLOCK_BYTES = 2 << 20
"""Text parsed at a time. Smaller: more batches, each with a cost of its own in Spark. Larger:
the parsed copy of a range is alive at once, and Spark waits longer for its first rows."""

_ZONED = r":\d\d(\.\d*)?(Z|[+-]\d\d(:?\d\d)?)$"


def parse(
    data: bytes, columns: Sequence[Column], *, begin: int = 0, one_block: bool = False
) -> Iterator[Any]:
    """Yield the rows in `data` from byte `begin` on, behind any header line, as record batches.

    Memory is that of `data` plus one block. A row longer than a block raises ArrowInvalid too;
    `one_block` takes any row and needs memory for all rows at once.
    """
    view = pa.py_buffer(data).slice(begin)
    if view.size == 0:
        return
    block_bytes = view.size + 1 if one_block else _BLOCK_BYTES
    quoted = b'"' in data
    if quoted and ends_in_quotes(data, begin):
        # Arrow would take everything behind the last quote as one value, newlines and all.
        raise pa.ArrowInvalid("a quote is never closed")
    # Arrow has one rule for all columns on whether a quoted empty field is null. Where such fields
    # may occur, text columns and the others are parsed apart: the same blocks, the same rows.
    groups = [[column for column in columns if column.is_text is text] for text in (True, False)]
    readers = [
        _open(view, columns, group, block_bytes=block_bytes, quoted=quoted)
        for group in (groups if quoted and b'""' in data else [list(columns)])
        if group
    ]
    schema = arrow_schema(columns)
    for parts in zip(*readers, strict=True):
        arrays = {name: part.column(name) for part in parts for name in part.schema.names}
        for column in columns:
            if column.required and arrays[column.name].null_count:
                raise pa.ArrowInvalid(f"column {column.name} has nulls")
        yield pa.RecordBatch.from_arrays(
            [_delivered(arrays[column.name], column) for column in columns], schema=schema
        )


def _open(
    view: Any, columns: Sequence[Column], group: list[Column], *, block_bytes: int, quoted: bool
) -> Any:
    return csv.open_csv(
        pa.BufferReader(view),
        # Spark runs one task per core: threads in here would only fight over the same cores.
        csv.ReadOptions(
            use_threads=False,
            block_size=block_bytes,
            column_names=[column.name for column in columns],
        ),
        # Looking for newlines inside quotes costs a pass, so only where there are quotes.
        csv.ParseOptions(newlines_in_values=quoted),
        csv.ConvertOptions(
            column_types={column.name: _read_type(column) for column in columns},
            include_columns=[column.name for column in group],
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=not all(column.is_text for column in group),
        ),
    )


def _read_type(column: Column) -> Any:
    return pa.string() if column.arrow_type == INSTANT else column.arrow_type


def _delivered(array: Any, column: Column) -> Any:
    if column.arrow_type == INSTANT:
        return _instants(array)
    if pa.types.is_decimal(column.arrow_type):
        # The parser takes 1000 for a decimal(5,2), because it counts digits before it adds the
        # scale's; Spark would make of it what it likes.
        array.validate(full=True)
    return array


def _instants(texts: Any) -> Any:
    """Convert texts of which some may have a zone offset; the others are UTC."""
    zoned = pc.match_substring_regex(texts, _ZONED)
    plain = pc.if_else(zoned, None, texts).cast(pa.timestamp("us")).cast(INSTANT)
    if not pc.any(zoned).as_py():
        return plain
    return pc.coalesce(plain, pc.if_else(zoned, texts, None).cast(INSTANT))
