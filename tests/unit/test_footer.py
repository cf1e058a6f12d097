"""The footer of a Parquet document: what it says of size and columns, and what is no footer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.intake.footer import (
    NO_DOCUMENT,
    Fault,
    Footer,
    footer_fault,
    parse_footer,
    read_footer,
)


def write(path: Path, rows: int, *, groups: int = 1, columns: int = 3) -> Path:
    data = {f"c{number}": pa.array(["x" * 50] * rows) for number in range(columns)}
    table = pa.table(data | {"flag": pa.array([True] * rows)})
    pq.write_table(table, path, row_group_size=max(1, rows // groups), compression="zstd")
    return path


@pytest.mark.parametrize(("rows", "groups"), [(0, 1), (1, 1), (1000, 4), (50_000, 1)])
def test_sizes_are_those_that_a_parquet_library_reads(
    tmp_path: Path, rows: int, groups: int
) -> None:
    path = write(tmp_path / "a.parquet", rows, groups=groups)
    facts = pq.read_metadata(path)
    found = read_footer(path)
    assert isinstance(found, Footer)
    assert found.rows == facts.num_rows == rows
    wanted = sum(facts.row_group(n).total_byte_size for n in range(facts.num_row_groups))
    assert found.size == wanted


def test_columns_are_those_that_a_parquet_library_reads(tmp_path: Path) -> None:
    struct = pa.array([{"shop": [1, 2], "b": {"amount": 1.5}}])
    names = pa.array([[("shop", 1)]], pa.map_(pa.string(), pa.int32()))
    table = pa.table(
        {"s": struct, "stra\u00dfe": names, "": pa.array([1]), "a.b": pa.array([["x"]])}
    )
    pq.write_table(table, tmp_path / "c.parquet")
    found = read_footer(tmp_path / "c.parquet")
    assert isinstance(found, Footer)
    assert list(found.columns) == table.column_names == pq.read_schema(tmp_path / "c.parquet").names


def test_nested_columns_and_metadata_are_stepped_over(tmp_path: Path) -> None:
    struct = pa.array([{"a": [1, 2], "b": {"c": 1.5}}] * 10)
    schema_facts = {b"key": b"value" * 1000}
    table = pa.table({"s": struct, "d": pa.array([b"x"] * 10)}).replace_schema_metadata(
        schema_facts
    )
    pq.write_table(table, tmp_path / "n.parquet", write_page_index=True)
    found = read_footer(tmp_path / "n.parquet")
    assert isinstance(found, Footer)
    assert found.rows == 10


def test_a_small_document_that_unpacks_to_much_says_so(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array([0] * 5_000_000)})
    pq.write_table(table, tmp_path / "b.parquet", use_dictionary=False, compression="zstd")
    found = read_footer(tmp_path / "b.parquet")
    assert isinstance(found, Footer)
    assert found.size > 100 * (tmp_path / "b.parquet").stat().st_size


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1\x00\x00\x00\x00PAR1",
        b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1",
        b"a,b\n1,2\n",
        b"PAR1" + b"\xff" * 64 + b"\x40\x00\x00\x00PAR1",
    ],
)
def test_what_is_no_parquet_document_is_told_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert read_footer(tmp_path / "x") == NO_DOCUMENT


def test_a_footer_cut_or_altered_anywhere_is_none_or_a_footer_and_never_hangs(
    tmp_path: Path,
) -> None:
    """Every prefix, and every byte replaced by values that make counts and depths large."""
    data = write(tmp_path / "a.parquet", 10).read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert isinstance(parse_footer(footer), Footer)
    assert all(parse_footer(footer[:cut]) == NO_DOCUMENT for cut in range(1, length - 1))
    for place in range(length):
        for value in (0x00, 0x0C, 0x1C, 0x7F, 0xF9, 0xFF):
            parse_footer(footer[:place] + bytes([value]) + footer[place + 1 :])


SMALLEST = bytes.fromhex(
    "29 2c"  # schema: a list of two structures
    "48 01 72 15 02 00"  # name "r", one child
    "48 01 63 00"  # name "c"
    "16 06"  # rows: 3
    "19 1c"  # row groups: a list of one structure
    "19 1c 3c 66 0e 00 00"  # columns: a list of one, its facts: 7 bytes unpacked
    "16 10 16 06 00"  # bytes: 8, rows: 3
    "00"
)
"""All that is looked at, and nothing else."""


def test_a_small_footer_with_any_byte_altered_to_any_other_is_none_or_a_footer() -> None:
    assert parse_footer(SMALLEST) == Footer(8, 3, ("c",), "'c' group")
    for place in range(len(SMALLEST)):
        for value in range(256):
            altered = SMALLEST[:place] + bytes([value]) + SMALLEST[place + 1 :]
            assert isinstance(parse_footer(altered), Footer | Fault)


@pytest.mark.parametrize(
    "footer",
    [
        "49 1c 15 0a 00 00",  # columns of a row group: a number
        "49 1c 18 01 61 00 00",  # a text
        "49 1c 19 15 02 00 00",  # a list of numbers
        "46 02 00",  # row groups: a number
        "49 15 02 00",  # a list of numbers
        "26 02 00",  # schema: a number
        "29 15 02 00",  # a list of numbers
    ],
)
def test_a_footer_whose_fields_are_of_another_kind_is_none(footer: str) -> None:
    assert parse_footer(bytes.fromhex(footer)) == NO_DOCUMENT


def test_a_footer_that_nests_without_end_is_none() -> None:
    assert parse_footer(b"\x1c" * 100_000) == NO_DOCUMENT
    assert parse_footer(b"\x19\xf9" + b"\xff\xff\xff\xff\x0f" * 10) == NO_DOCUMENT


def test_a_footer_of_too_many_values_is_refused_whatever_they_are() -> None:
    """Booleans have no bytes of their own: four million fit into the largest footer."""
    assert isinstance(parse_footer(b"\xf1" * 150_000 + b"\0"), Footer)
    for footer in (
        b"\xf1" * 250_000 + b"\0",
        b"\x19\xf3\x90\xa1\x0f" + b"\x01" * 250_000 + b"\0",
    ):
        found = parse_footer(footer)
        assert isinstance(found, Fault)
        assert found.what == "its footer is too large: more than 200000 values"


def test_a_footer_of_too_many_bytes_says_so_and_is_not_read(tmp_path: Path) -> None:
    length = (4 << 20) + 1
    with (tmp_path / "x").open("wb") as file:
        file.write(b"PAR1")
        file.seek(4 + length)
        file.write(length.to_bytes(4, "little") + b"PAR1")
    found = read_footer(tmp_path / "x")
    assert isinstance(found, Fault)
    assert found.what == f"its footer is too large: {length} bytes, 4194304 are allowed"
    assert footer_fault(found, ["c"]) == found


def test_columns_are_looked_for_in_a_time_that_grows_with_their_number() -> None:
    """A footer may name 100,000, and a table may declare as many: minutes, if each is a scan."""
    names = [f"c{number}" for number in range(100_000)]
    assert footer_fault(Footer(1, 1, tuple(names), ""), names) is None
