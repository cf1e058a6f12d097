from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from holdfast.engine.executor import Source
from holdfast.errors import BadRows, HeaderWrong, InputChanged, StorageFailed, UsageInvalid
from holdfast.intake.csv_rows import ends_in_quotes, row_spans
from holdfast.intake.tables import BadRowPolicy
from holdfast.spark import csv_parse
from holdfast.spark.chunk import FILE, LINE, RAW, REASON, read_chunk
from holdfast.spark.csv_parse import parse
from holdfast.spark.texts import possible
from holdfast.spark.types import Column, columns_of

KINDS: dict[str, t.DataType] = {
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "decimal(5,2)": t.DecimalType(5, 2),
    "decimal(38,10)": t.DecimalType(38, 10),
    "date": t.DateType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "timestamp": t.TimestampType(),
}


def columns(*declared: str) -> tuple[Column, ...]:
    """Columns from texts like `n int` or `n int not null`."""
    fields = []
    for text in declared:
        name, kind, *rest = text.split(" ", 2)
        fields.append(t.StructField(name, KINDS[kind], not rest))
    return columns_of(t.StructType(fields))


def source_of(path: Path, start: int = 0, stop: int | None = None) -> Source:
    data = path.read_bytes()
    stop = len(data) if stop is None else stop
    return Source(str(path), start, stop, hashlib.sha256(data[start:stop]).hexdigest())


def rows_of(
    path: Path,
    declared: tuple[Column, ...],
    policy: BadRowPolicy = BadRowPolicy.FAIL,
    source: Source | None = None,
) -> list[tuple[Any, ...]]:
    """The rows as tuples; the file of a bad row is checked here and left out."""
    batches = read_chunk(source or source_of(path), "t", declared, policy)
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if FILE in row:
            assert row.pop(FILE) == (str(path) if row[LINE] else None)
    return [tuple(row.values()) for row in rows]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "NA", "NA"),
        ("string", "null", "null"),
        ("string", " x ", " x "),
        ("string", '5" pipe', '5" pipe'),
        ("string", '"a ""b"" c"', 'a "b" c'),
        ("string", '"a"b"c', 'ab"c'),
        ("string", '"a,b"', "a,b"),
        ("string", '""', ""),
        ("string", "", None),
        ("int", '""', None),
        ("int", "", None),
        ("int", '"7"', 7),
        ("int", " 7\t", 7),
        ("int", "-2147483648", -2147483648),
        ("int", "0x1F", 31),
        ("boolean", "true", True),
        ("boolean", "0", False),
        ("double", "1e3", 1000.0),
        ("double", "-inf", float("-inf")),
        ("decimal(5,2)", "1.5", Decimal("1.50")),
        ("decimal(5,2)", "1.500", Decimal("1.50")),
        ("decimal(5,2)", "999.99", Decimal("999.99")),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("timestamp_ntz", "2024-01-01 02:30:00", datetime(2024, 1, 1, 2, 30)),
        ("timestamp_ntz", "2024-01-01T02:30:00.5", datetime(2024, 1, 1, 2, 30, 0, 500000)),
        ("timestamp_ntz", "2024-01-01", datetime(2024, 1, 1)),
        ("timestamp_ntz", '""', None),
        ("timestamp", "2024-01-01 02:30:00", datetime(2024, 1, 1, 2, 30, tzinfo=UTC)),
        ("timestamp", "2024-01-01T02:30:00Z", datetime(2024, 1, 1, 2, 30, tzinfo=UTC)),
        ("timestamp", "2024-01-01 02:30:00.25+02:00", datetime(2024, 1, 1, 0, 30, 0, 250000, UTC)),
        ("timestamp", "2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", '""', None),
        ("timestamp", "", None),
    ],
)
def test_a_text_becomes_this_value(file: Path, kind: str, text: str, value: object) -> None:
    file.write_text(f'c,d\n{text},x\n{text},"y""z"\n')
    found = rows_of(file, columns(f"c {kind}", "d string"))
    assert [row[0] for row in found] == [value, value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "abc"),
        ("int", "5.0"),
        ("int", "+5"),
        ("int", "2147483648"),
        ("int", "NA"),
        ("tinyint", "128"),
        ("boolean", "yes"),
        ("double", "1,5"),
        ("decimal(5,2)", "1.255"),
        ("decimal(5,2)", "1000"),
        ("decimal(5,2)", "12345.67"),
        ("date", "2024-02-30"),
        ("date", "01.02.2024"),
        ("timestamp_ntz", "2024-01-01 02:30:00Z"),
        ("timestamp_ntz", "2024-01-01 02:30:00.1234567"),
        ("timestamp_ntz", " 2024-01-01 02:30:00"),
        ("timestamp", "2024-01-01 25:30:00"),
        ("timestamp", "2024-01-01 02:30:00 Europe/Paris"),
    ],
)
def test_a_text_that_is_not_of_the_type_is_a_bad_row(file: Path, kind: str, text: str) -> None:
    declared = columns(f"c {kind}", "d string")
    file.write_text(f'c,d\n,good\n"{text}",bad\n,good\n')
    with pytest.raises(BadRows) as caught:
        rows_of(file, declared)
    sql_type = kind if "(" not in kind else kind.replace(", ", ",")
    assert f"column c: '{text}' is not a" in caught.value.reason
    assert caught.value.reason.endswith(sql_type)
    assert (caught.value.line, caught.value.count) == (3, 1)
    good = [row[:2] for row in rows_of(file, declared, BadRowPolicy.QUARANTINE) if not row[2]]
    assert good == [(None, "good"), (None, "good")]


HARD = (
    b'id,n,name\n1,1,a\n2,x,b\n\n"3\n3",3,c\n4,4\n5,5,caf\xe9\n6,6,"d\n\nd",7\n7,99999999999,"e\ne"\n'
    b"8,8,\xc3\xa9\n\xff\n"
)
HARD_BAD = [
    (3, "2,x,b", "column n: 'x' is not an int"),
    (7, "4,4", "2 fields, 3 wanted"),
    (8, "5,5,caf\\xe9", "column name: 'caf\\xe9' is not UTF-8 text"),
    (9, '6,6,"d\n\nd",7', "4 fields, 3 wanted"),
    (12, '7,99999999999,"e\ne"', "column n: '99999999999' is not an int"),
    (15, "\\xff", "1 fields, 3 wanted"),
]
HARD_GOOD = [("1", 1, "a"), ("3\n3", 3, "c"), ("8", 8, "\u00e9")]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_bad_rows_are_found_with_their_lines_whatever_ends_a_line(
    file: Path, line_end: bytes
) -> None:
    file.write_bytes(HARD.replace(b"\n", line_end))
    declared = columns("id string", "n int", "name string")
    with pytest.raises(BadRows) as caught:
        rows_of(file, declared)
    error = caught.value
    assert (error.path, error.line, error.reason, error.count) == (
        str(file),
        3,
        "column n: 'x' is not an int",
        6,
    )
    found = rows_of(file, declared, BadRowPolicy.QUARANTINE)
    good = [row[:3] for row in found if row[3] is None]
    end = line_end.decode()
    assert good == [(i.replace("\n", end), n, name) for i, n, name in HARD_GOOD]
    assert [row[3:] for row in found if row[3] is not None] == [
        (line, raw.replace("\n", end), reason) for line, raw, reason in HARD_BAD
    ]
    assert all(row[:3] == (None, None, None) for row in found if row[3] is not None)


def test_lines_are_those_of_the_file_in_any_of_its_ranges(file: Path) -> None:
    file.write_bytes(HARD)
    declared = columns("id string", "n int", "name string")
    found = []
    cuts = [0, HARD.index(b"4,4"), HARD.index(b"7,999"), len(HARD)]
    for start, stop in pairwise(cuts):
        source = source_of(file, start, stop)
        found += rows_of(file, declared, BadRowPolicy.QUARANTINE, source)
    assert [row[3:] for row in found if row[3] is not None] == HARD_BAD
    assert [row[:3] for row in found if row[3] is None] == HARD_GOOD
    with pytest.raises(BadRows) as caught:
        rows_of(file, declared, source=source_of(file, cuts[2], cuts[3]))
    assert (caught.value.line, caught.value.count) == (12, 2)


def test_good_rows_under_quarantine_have_null_in_the_columns_of_bad_ones(file: Path) -> None:
    file.write_text("n\n1\n")
    batches = list(read_chunk(source_of(file), "t", columns("n int"), BadRowPolicy.QUARANTINE))
    assert batches[0].to_pylist() == [{"n": 1, FILE: None, LINE: None, RAW: None, REASON: None}]


def test_a_quote_that_is_never_closed_is_a_bad_row_and_not_a_long_value(file: Path) -> None:
    # Arrow alone reads this as one row whose name is 'x\n3,y\n'.
    file.write_bytes(b'id,name\n1,a\n2,"x\n3,y\n')
    declared = columns("id int", "name string")
    with pytest.raises(BadRows) as caught:
        rows_of(file, declared)
    assert (caught.value.line, caught.value.reason) == (3, "a quote is never closed")
    found = rows_of(file, declared, BadRowPolicy.QUARANTINE)
    assert found == [
        (1, "a", None, None, None),
        (None, None, 3, '2,"x\n3,y\n', "a quote is never closed"),
    ]


def test_a_null_in_a_column_declared_not_null_is_a_bad_row(file: Path) -> None:
    file.write_bytes(b'n,s\n1,a\n,b\n"",c\n2,""\n3,\n')
    declared = columns("n int not null", "s string not null")
    found = rows_of(file, declared, BadRowPolicy.QUARANTINE)
    assert [row[:2] for row in found if row[2] is None] == [(1, "a"), (2, "")]
    assert [(row[2], row[4]) for row in found if row[2] is not None] == [
        (3, "column n: null, declared NOT NULL"),
        (4, "column n: null, declared NOT NULL"),
        (6, "column s: null, declared NOT NULL"),
    ]


def test_a_row_longer_than_a_block_is_read_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_parse, "_BLOCK_BYTES", 64)
    long = "x" * 1000
    file.write_text("n,s\n" + "1,a\n" * 50 + f"2,{long}\n" + "3,b\n" * 50)
    found = rows_of(file, columns("n int", "s string"))
    assert found == [(1, "a")] * 50 + [(2, long)] + [(3, "b")] * 50


def test_blocks_with_quoted_fields_keep_rows_whole_and_text_and_numbers_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(csv_parse, "_BLOCK_BYTES", 64)
    lines = [f'"{n}","","a{n}\n"' if n % 3 else f'{n},"{n}",""' for n in range(200)]
    # By `parse` itself: the second pass would repair whatever it gets wrong.
    batches = list(parse("\n".join(lines).encode(), columns("k int", "n int", "s string")))
    assert len(batches) > 10
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [
        (n, None, f"a{n}\n") if n % 3 else (n, n, "") for n in range(200)
    ]


def test_other_bytes_than_those_that_were_bound_are_refused(file: Path) -> None:
    file.write_bytes(b"n\n1\n2\n")
    declared = columns("n int")
    bound = source_of(file)
    file.write_bytes(b"n\n1\n3\n")
    with pytest.raises(InputChanged):
        rows_of(file, declared, source=bound)
    file.write_bytes(b"n\n1\n")
    with pytest.raises(InputChanged):
        rows_of(file, declared, source=bound)
    file.unlink()
    with pytest.raises(InputChanged) as caught:
        rows_of(file, declared, source=bound)
    assert caught.value.what == "has vanished"


def test_a_directory_in_place_of_a_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        rows_of(tmp_path, columns("n int"), source=Source(str(tmp_path), 0, 5, "x"))


def test_a_chunk_with_another_header_is_refused_before_its_rows_are_read(file: Path) -> None:
    file.write_bytes(b"b,a\n1,2\n")
    with pytest.raises(HeaderWrong) as caught:
        rows_of(file, columns("a int", "b int"))
    assert (caught.value.table, caught.value.wanted) == ("t", "a,b")


@pytest.mark.parametrize("data", [b"", b"n", b"n\n", b"n\r\n\r\n\n"])
def test_no_rows_give_no_rows(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert rows_of(file, columns("n int")) == []
    assert rows_of(file, columns("n int"), BadRowPolicy.QUARANTINE) == []


def test_a_type_that_csv_cannot_hold_is_refused_by_column_and_type() -> None:
    for kind in (t.ArrayType(t.IntegerType()), t.VarcharType(3), t.DayTimeIntervalType()):
        with pytest.raises(UsageInvalid) as caught:
            columns_of(t.StructType([t.StructField("c", kind)]))
        assert f"column c: type {kind.simpleString()} " in caught.value.what
    with pytest.raises(UsageInvalid, match="declared twice"):
        columns("c int", "c string")


FIELD = st.one_of(
    st.sampled_from(["1", "2.5", "abc", "", '""', '"3"', '"a\nb"', '5" pipe', "x,y", "caf\xe9"]),
    st.text(st.sampled_from('1a",\n'), max_size=4),
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.lists(FIELD, min_size=1, max_size=4), max_size=10), latin=st.booleans())
def test_rows_are_parted_into_those_the_parser_takes_alone_and_the_others(
    tmp_path: Path, rows: list[list[str]], latin: bool
) -> None:
    """Goal: good rows are exactly those that parse by themselves. Method: ask for each row."""
    declared = columns("n int", "s string", "x double")
    file = tmp_path / "t.csv"
    text = "\n".join(",".join(row) for row in rows)
    file.write_bytes(b"n,s,x\n" + text.encode("latin-1" if latin else "utf-8"))
    found = rows_of(file, declared, BadRowPolicy.QUARANTINE)
    data = file.read_bytes()
    wanted = []
    bad = 0
    for begin, stop in row_spans(data, 6):
        try:
            assert not ends_in_quotes(data[begin:stop])
            batches = list(parse(data[begin:stop], declared, one_block=True))
            wanted += [tuple(row.values()) for row in batches[0].to_pylist()]
        except (pa.ArrowInvalid, AssertionError):
            bad += 1
    assert [row[:3] for row in found if row[3] is None] == wanted
    assert sum(row[3] is not None for row in found) == bad


NUMBERS = st.from_regex(
    rb"[ \t]?[+-]?(0x)?[0-9]{0,5}\.?[0-9]{0,4}([eE][+-]?[0-9]{0,4})?[ \t]?", fullmatch=True
)
MOMENTS = st.builds(
    lambda at, cut, zone, spoilt, letter: (
        (at.isoformat(" " if cut % 2 else "T")[:cut] + zone)[:spoilt]
        + letter
        + (at.isoformat(" ")[:cut] + zone)[spoilt:]
    ).encode(),
    st.datetimes(),
    st.sampled_from([10, 13, 16, 19, 21, 26]),
    st.sampled_from(["", "", "Z", "+02", "-0330", "+02:00"]),
    st.integers(0, 30),
    st.sampled_from(["", "", "", " ", "0", "Z"]),
)
WORDS = st.sampled_from(
    [
        *(b"true", b"TRUE", b"False", b"1", b"nan", b"+NaN", b"nan(x)", b"-Infinity", b"inf"),
        *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"0e5", b"1e-10", b"1e1000"),
        *(b"0." + b"0" * 50, b"1" + b"0" * 120, b"0" * 200 + b"1", b"9" * 38),
    ]
)


@settings(max_examples=600, deadline=None)
@given(
    text=st.one_of(NUMBERS, MOMENTS, MOMENTS, WORDS, st.binary(min_size=1, max_size=5)),
    kind=st.sampled_from(list(KINDS)),
)
def test_no_text_that_the_parser_takes_is_called_impossible(text: bytes, kind: str) -> None:
    (column,) = columns(f"c {kind}")
    if not text or possible(column)(text):
        return
    quoted = b'"' + text.replace(b'"', b'""') + b'"\n'
    with pytest.raises(pa.ArrowInvalid):
        list(parse(quoted, [column], one_block=True))
