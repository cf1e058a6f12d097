"""Reads one CSV chunk: the bytes once, their checksum, the rows, and under quarantine the bad ones.

Knows nothing of sessions or tasks, and has no effect: it may be done any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast._base.files import os_errors, read_pieces
from holdfast.engine.executor import Source
from holdfast.errors import BadRows, InputChanged
from holdfast.intake.csv_rows import count_line_ends, header_of, line_ends_in
from holdfast.intake.header import check_header
from holdfast.intake.tables import BadRowPolicy
from holdfast.spark.bad_rows import BadRow, part_rows
from holdfast.spark.csv_parse import parse
from holdfast.spark.types import Column, arrow_schema

FILE, LINE, RAW, REASON = "_hf_file", "_hf_line", "_hf_raw", "_hf_reason"
"""The columns of a bad row: its file, its line in it, its text, and what is wrong with it."""

_ASIDE = {FILE: pa.string(), LINE: pa.int64(), RAW: pa.string(), REASON: pa.string()}


def read_chunk(
    source: Source, table: str, columns: Sequence[Column], policy: BadRowPolicy
) -> Iterator[Any]:
    """Return the record batches of a chunk.

    Under QUARANTINE they have four more columns, which are null in good rows; in bad rows all
    others are null.

    Raises:
        InputChanged: the file is gone, or its bytes are not those that were bound.
        HeaderWrong: the chunk begins with a header that is not that of the table.
        BadRows: under FAIL, with the first bad row's line in the file and the number of them.
        StorageFailed: the operating system refused to read.
    """
    data = _checked_bytes(source)
    begin = 0
    if source.start == 0 and data:
        header, begin = header_of(data)
        names = [column.name for column in columns]
        check_header(header, names, path=source.path, table=table)
    bad: list[BadRow] = []
    try:
        # All before the first is given: after an error the rows are parsed anew, and whoever asked
        # must not have seen some of them already.
        batches = list(parse(data, columns, begin=begin))
    except pa.ArrowInvalid:
        good, bad = part_rows(data, columns, begin=begin)
        batches = list(parse(good, columns, one_block=True))
    if policy is BadRowPolicy.FAIL:
        if bad:
            line = _lines_of(bad[:1], data, source)[0]
            raise BadRows(path=source.path, line=line, reason=bad[0].reason, count=len(bad))
        return iter(batches)
    paths, lines = [source.path] * len(bad), _lines_of(bad, data, source)
    found: list[list[Any]] = [paths, lines, [row.raw for row in bad], [row.reason for row in bad]]
    return _with_bad_rows(batches, found, columns)


def _checked_bytes(source: Source) -> bytes:
    with os_errors(source.path):
        try:
            file = open(source.path, "rb")  # noqa: SIM115 - closed two lines below
        except FileNotFoundError as error:
            raise InputChanged(path=source.path, what="has vanished") from error
        with file:
            file.seek(source.start)
            data = file.read(source.stop - source.start)
    if hashlib.sha256(data).hexdigest() != source.checksum:
        what = f"has other bytes between {source.start} and {source.stop}"
        raise InputChanged(path=source.path, what=what)
    return data


def _lines_of(bad: Sequence[BadRow], data: bytes, source: Source) -> list[int]:
    """Return the line of the whole file in which each row begins. The first line is 1."""
    if not bad:
        return []
    lines = []
    line = 1 + line_ends_in(read_pieces(Path(source.path), 0, source.start))
    counted = 0
    for row in bad:
        line += count_line_ends(data, counted, row.offset)
        counted = row.offset
        lines.append(line)
    return lines


def _with_bad_rows(
    batches: Sequence[Any], found: Sequence[list[Any]], columns: Sequence[Column]
) -> Iterator[Any]:
    schema = arrow_schema(columns)
    for name, kind in _ASIDE.items():
        schema = schema.append(pa.field(name, kind))
    for batch in batches:
        nulls = [pa.nulls(batch.num_rows, kind) for kind in _ASIDE.values()]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)
    if found[0]:
        aside = [
            pa.array(values, kind) for values, kind in zip(found, _ASIDE.values(), strict=True)
        ]
        nulls = [pa.nulls(len(found[0]), column.arrow_type) for column in columns]
        yield pa.RecordBatch.from_arrays([*nulls, *aside], schema=schema)
