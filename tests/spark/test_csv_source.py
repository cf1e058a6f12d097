from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.engine.executor import Source
from holdfast.errors import BadRows, HoldfastError, InputChanged, UsageInvalid, from_text
from holdfast.intake.split import split_file
from holdfast.intake.tables import BadRowPolicy, TableSpec
from holdfast.spark.source import (
    FILE,
    LINE,
    RAW,
    REASON,
    CsvReader,
    cores_of,
    pack,
    read_csv,
    split_bad_rows,
)

Reader = Callable[..., DataFrame]
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Reader:
    """Write bytes to t.csv, cut them as intake does, return the frame of the pieces."""

    def reader(
        ddl: str,
        data: bytes,
        policy: BadRowPolicy = BadRowPolicy.FAIL,
        chunk_bytes: int = 1 << 20,
    ) -> DataFrame:
        path = tmp_path / "t.csv"
        path.write_bytes(data)
        schema = ddl_schema(ddl)
        table = TableSpec(name="t", format="csv", schema=ddl, segment=1)
        pieces = split_file(path, table, schema.fieldNames(), chunk_bytes)
        sources = [
            Source(str(path), piece.start, piece.stop, piece.checksum, header=piece.header)
            for piece in pieces
        ]
        return read_csv(spark, schema, sources, policy, table="t")

    return reader


def ddl_schema(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def raised_by(frame: DataFrame) -> HoldfastError | None:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return from_text(str(caught.value))


ALL_TYPES = (
    "s string, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f4 float, f8 double,"
    " d decimal(12,3), day date, ntz timestamp_ntz, at timestamp, raw binary"
)
ALL_NAMES = b"s,b,i1,i2,i4,i8,f4,f8,d,day,ntz,at,raw"


def test_every_type_arrives_as_spark_declares_it_with_nulls_and_microseconds(read: Reader) -> None:
    frame = read(
        ALL_TYPES,
        ALL_NAMES + b"\nx,true,-128,32767,7,9223372036854775807,0.5,1e-3,123456789.125,2024-02-29,"
        b"2024-03-10 02:30:00.000001,2024-03-10 02:30:00,\xff\n" + b"," * 12 + b"\n",
    )
    assert frame.schema == ddl_schema(ALL_TYPES)
    shown = frame.selectExpr("* except (ntz, at)", "string(ntz)", "string(at)", "unix_micros(at)")
    assert rows_of(shown) == [
        (
            *("x", True, -128, 32767, 7, 9223372036854775807, 0.5, 0.001),
            *(Decimal("123456789.125"), date(2024, 2, 29), bytearray(b"\xff")),
            *("2024-03-10 02:30:00.000001", "2024-03-10 02:30:00", 1710037800000000),
        ),
        (None,) * 14,
    ]


def test_a_timestamp_without_zone_keeps_its_hour_and_one_with_zone_its_moment(
    read: Reader,
) -> None:
    # New York has no 02:30 on that day: a session in its zone would say 03:30.
    frame = read(
        "ntz timestamp_ntz, at timestamp",
        b"ntz,at\n2024-03-10 02:30:00,2024-03-10T02:30:00-05:00\n",
    )
    hours = frame.selectExpr("date_format(ntz, 'HH:mm')", "date_format(at, 'HH:mm')")
    assert rows_of(hours) == [("02:30", "07:30")]
    assert rows_of(frame.select("ntz")) == [(datetime(2024, 3, 10, 2, 30),)]


def test_decimals_are_exact_in_sums(read: Reader) -> None:
    frame = read("d decimal(9,3)", b"d\n" + b"0.005\n0.1\n" * 1000, chunk_bytes=500)
    assert rows_of(frame.selectExpr("sum(d)")) == [(Decimal("105.000"),)]


HARD = (
    b'id,name\r\n1,plain\r\n2,"a, b"\r\n3,"two\r\nlines"\r\n4,5" pipe\r\n5,"say ""hi"""\r\n'
    b'6,\r\n7,""\r\n8,NA\r\n\r\n9,caf\xc3\xa9\r\n'
)
HARD_ROWS = [
    (1, "plain"),
    (2, "a, b"),
    (3, "two\r\nlines"),
    (4, '5" pipe'),
    (5, 'say "hi"'),
    (6, None),
    (7, ""),
    (8, "NA"),
    (9, "caf\u00e9"),
]


def test_ranges_of_a_file_are_the_rows_of_the_whole_file(read: Reader) -> None:
    """Method: BOM, CRLF, quoted commas and newlines, no final newline; cut small and not at all."""
    data = BOM + HARD.rstrip(b"\r\n")
    whole = read("id int, name string", data)
    assert rows_of(whole) == HARD_ROWS
    cut = read("id int, name string", data, chunk_bytes=30)
    assert len(json.loads(_option(cut, "sources"))) > 3
    assert rows_of(cut) == HARD_ROWS


def _option(frame: DataFrame, name: str) -> str:
    """What the scan of a frame was told, out of its plan."""
    plan = frame._jdf.queryExecution().analyzed()
    return str(plan.options().get(name))


def test_two_files_and_the_same_range_twice_count_as_often_as_they_are_named(
    spark: SparkSession, read: Reader, tmp_path: Path
) -> None:
    read("n int", b"n\n1\n2\n")
    table = TableSpec(name="t", format="csv", schema="n int", segment=1)
    (piece,) = split_file(tmp_path / "t.csv", table, ["n"], 100)
    source = Source(str(tmp_path / "t.csv"), piece.start, piece.stop, piece.checksum)
    frame = read_csv(spark, ddl_schema("n int"), [source, source], BadRowPolicy.FAIL)
    assert sorted(rows_of(frame)) == [(1,), (1,), (2,), (2,)]


def test_bytes_that_changed_after_they_were_bound_are_a_named_error(
    read: Reader, tmp_path: Path
) -> None:
    frame = read("n int", b"n\n1\n2\n")
    (tmp_path / "t.csv").write_bytes(b"n\n1\n3\n")
    error = raised_by(frame)
    assert isinstance(error, InputChanged)
    assert error.path == str(tmp_path / "t.csv")


BAD = b"id,n\n" + b"1,1\n" * 20 + b"2,x\n3\n\xff,4\n" + b"5,5\n" * 5


def test_bad_rows_fail_the_job_with_file_line_reason_and_count(
    read: Reader, tmp_path: Path
) -> None:
    error = raised_by(read("id string, n int", BAD, chunk_bytes=64))
    assert isinstance(error, BadRows)
    assert error.facts() == {
        "path": str(tmp_path / "t.csv"),
        "line": 22,
        "reason": "column n: 'x' is not an int",
        "count": 3,
    }


def test_bad_rows_are_kept_aside_and_the_others_are_all_there(read: Reader) -> None:
    frame = read("id string, n int", BAD, BadRowPolicy.QUARANTINE, chunk_bytes=64).persist()
    good, bad = split_bad_rows(frame)
    assert good.columns == ["id", "n"]
    assert rows_of(good) == [("1", 1)] * 20 + [("5", 5)] * 5
    assert bad.columns == [FILE, LINE, RAW, REASON]
    assert rows_of(bad.drop(FILE)) == [
        (22, "2,x", "column n: 'x' is not an int"),
        (23, "3", "1 fields, 2 wanted"),
        (24, "\\xff,4", "column id: '\\xff' is not UTF-8 text"),
    ]
    frame.unpersist()


def test_a_file_without_bad_rows_has_none_aside(read: Reader) -> None:
    good, bad = split_bad_rows(read("n int", b"n\n1\n", BadRowPolicy.QUARANTINE))
    assert (rows_of(good), rows_of(bad)) == ([(1,)], [])


@pytest.mark.parametrize("policy", list(BadRowPolicy))
def test_no_sources_are_an_empty_frame_and_no_job(
    spark: SparkSession, policy: BadRowPolicy
) -> None:
    spark.sparkContext.setJobGroup(f"empty-{policy}", "")
    frame = read_csv(spark, ddl_schema("n int, s string"), [], policy)
    aside = [FILE, LINE, RAW, REASON] if policy is BadRowPolicy.QUARANTINE else []
    assert frame.columns == ["n", "s", *aside]
    assert rows_of(frame) == []
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(f"empty-{policy}")


def test_what_is_declared_wrongly_is_refused_before_anything_is_read(spark: SparkSession) -> None:
    for ddl in ("c array<int>", "_hf_line bigint"):
        with pytest.raises(UsageInvalid):
            read_csv(spark, ddl_schema(ddl), [], BadRowPolicy.FAIL)


def test_columns_declared_not_null_are_checked_and_given_as_nullable(read: Reader) -> None:
    frame = read("n int not null", b"n\n1\n")
    assert frame.schema == ddl_schema("n int")
    assert rows_of(frame) == [(1,)]
    error = raised_by(read("n int not null, s string", b"n,s\n1,a\n,b\n"))
    assert isinstance(error, BadRows)
    assert (error.line, error.reason) == (3, "column n: null, declared NOT NULL")


def test_a_task_is_not_sent_the_sources_of_the_others() -> None:
    sources = [Source(f"/{n}", 0, 1, "x") for n in range(3)]
    reader = CsvReader(sources, "t", (), BadRowPolicy.FAIL, 2)
    assert len(reader.partitions()) == 3
    assert reader.__getstate__()["_sources"] == []


def _sized(*sizes: int) -> list[Source]:
    return [Source(f"/{n}", 0, size, "") for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "cores", "lengths"),
    [
        ((), 2, []),
        ((5, 5, 5, 5, 5, 5, 5, 5), 2, [2, 2, 2, 2]),
        ((5, 5, 5, 5), 2, [1, 1, 1, 1]),
        ((100, 1, 1, 1, 1), 2, [1, 4]),
        ((1, 1, 100, 1, 1), 1, [2, 1, 2]),
        ((5, 5, 5, 5, 5, 5, 5, 5), 0, [1] * 8),
        ((0, 0), 4, [2]),
    ],
)
def test_small_sources_share_a_task_in_order(
    sizes: tuple[int, ...], cores: int, lengths: list[int]
) -> None:
    """Every source is read once and in order, and about two tasks per core remain."""
    packed = pack(_sized(*sizes), cores)
    assert [len(some) for some in packed] == lengths
    assert [source for some in packed for source in some] == _sized(*sizes)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", 0),
        ("spark://host:7077", 0),
        ("", 0),
    ],
)
def test_cores_are_known_of_a_local_master_only(master: str, cores: int) -> None:
    assert cores_of(master) == cores
