from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import csv

from holdfast.errors import BadRows, HeaderWrong, InputChanged, StorageFailed
from holdfast.intake import csv_rows, split
from holdfast.intake.csv_rows import header_of, last_row_end, line_ends_in, row_spans
from holdfast.intake.split import Piece, split_file
from holdfast.intake.tables import TableSpec

BOM = b"\xef\xbb\xbf"
NAMES = ["a", "b", "c"]


def table(fmt: str = "csv") -> TableSpec:
    return TableSpec(name="t", format=fmt, schema="", segment=1)


def cut(path: Path, data: bytes, chunk_bytes: int, names: list[str] | None = None) -> list[bytes]:
    """Split a file with that content, check every promise that needs no parser, return the bytes
    of its pieces."""
    path.write_bytes(data)
    pieces = split_file(path, table(), names or NAMES, chunk_bytes)
    facts = path.stat()
    stops = [0, *(piece.stop for piece in pieces)]
    assert [piece.start for piece in pieces] == stops[:-1]
    assert not pieces or stops[-1] == len(data)
    for piece in pieces:
        assert piece.stop > piece.start
        assert hashlib.sha256(data[piece.start : piece.stop]).hexdigest() == piece.checksum
        assert (piece.file_size, piece.mtime_ns) == (facts.st_size, facts.st_mtime_ns)
        assert piece.header == pieces[0].header
    return [data[piece.start : piece.stop] for piece in pieces]


def parsed(data: bytes, names: list[str]) -> list[dict[str, Any]]:
    if not data:
        return []
    return csv.read_csv(  # type: ignore[no-any-return]
        pa.BufferReader(data),
        csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).to_pylist()


def rows_of_pieces(pieces: list[bytes], names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for number, piece in enumerate(pieces):
        rows += parsed(piece[header_of(piece)[1] :] if number == 0 else piece, names)
    return rows


def rows_of_file(data: bytes, names: list[str]) -> list[dict[str, Any]]:
    """What pyarrow makes of the whole file, its header included."""
    first = [dict(zip(names, names, strict=True))]
    rows = parsed(data.removeprefix(BOM), names)
    assert rows[:1] == first
    return rows[1:]


PLAIN = st.text(st.sampled_from('ab5" '), max_size=5).filter(lambda text: not text.startswith('"'))
INSIDE = st.text(st.sampled_from('ab",\n\r '), max_size=7)
QUOTED = st.builds(lambda inside, rest: '"' + inside.replace('"', '""') + '"' + rest, INSIDE, PLAIN)
FIELDS = st.one_of(
    PLAIN, QUOTED, st.sampled_from(["", '5" pipe', '"a"b"c', '""', '""""', '""""""'])
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[str], bytes]:
    names = NAMES[: draw(st.integers(1, 3))]
    field = FIELDS if len(names) > 1 else FIELDS.filter(bool)
    rows = [",".join(draw(field) for _ in names) for _ in range(draw(st.integers(0, 12)))]
    line_end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    blanks = draw(st.integers(0, 2))
    text = line_end.join([",".join(names), *rows, *[""] * blanks])
    return names, draw(st.sampled_from([b"", BOM])) + text.encode()


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(document=documents(), chunk_bytes=st.integers(1, 70), tail=st.integers(1, 40))
@example(document=(["a"], b'a\n5" pipe\n"x\ny"\n5" pipe\n'), chunk_bytes=12, tail=40)
@example(document=(["a"], b'a\n"x""\n""y"\nz'), chunk_bytes=7, tail=2)
def test_pieces_parsed_one_by_one_are_the_rows_of_the_whole_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    document: tuple[list[str], bytes],
    chunk_bytes: int,
    tail: int,
) -> None:
    names, data = document
    # The last row is looked for near the end of a window first: here windows are tiny.
    monkeypatch.setattr(csv_rows, "_TAIL_BYTES", tail)
    pieces = cut(tmp_path / "t.csv", data, chunk_bytes, names)
    wanted = rows_of_file(data, names)
    assert rows_of_pieces(pieces, names) == wanted
    if not pieces:
        assert wanted == []
    assert len(list(row_spans(data, header_of(data)[1]))) == len(wanted)


@settings(deadline=None)
@given(document=documents())
def test_a_row_end_is_never_found_inside_quotes_whatever_the_window(
    document: tuple[list[str], bytes],
) -> None:
    data = document[1].removeprefix(BOM)
    ends = {0}
    for _, stop in row_spans(data):
        ends.add(stop + 1 if data[stop : stop + 2] != b"\r\n" else stop + 2)
        ends |= {at + 1 for at in range(stop, len(data)) if not data[stop : at + 1].strip(b"\r\n")}
    for size in range(len(data) + 1):
        assert last_row_end(data, size) in ends


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([b"a\r", b"\nb\r", b"c\n"], 3),
        ([b"\r", b"\r", b"\n"], 2),
        ([b"a\r\nb", b"\n\r"], 3),
        ([], 0),
    ],
)
def test_a_line_end_across_two_pieces_counts_once(pieces: list[bytes], count: int) -> None:
    assert line_ends_in(pieces) == count


def test_a_file_of_at_most_the_chunk_size_is_one_piece(tmp_path: Path) -> None:
    data = b'a,b,c\n1,2,3\n"4\n",5,6\n'
    assert cut(tmp_path / "t.csv", data, len(data)) == [data]
    assert len(cut(tmp_path / "t.csv", data, len(data) - 1)) == 2


def test_without_quotes_the_cut_is_at_the_last_newline_that_fits(tmp_path: Path) -> None:
    data = b"a,b,c\n1,2,3\n4,5,6\n7,8,9"
    assert cut(tmp_path / "t.csv", data, 13) == [b"a,b,c\n1,2,3\n", b"4,5,6\n7,8,9"]


def test_a_quoted_field_across_the_end_of_a_window_is_not_cut(tmp_path: Path) -> None:
    data = b'a,b,c\n1,2,3\n4,"5\n5\n5",6\n7,8,9\n'
    assert cut(tmp_path / "t.csv", data, 18) == [
        b"a,b,c\n1,2,3\n",
        b'4,"5\n5\n5",6\n7,8,9\n',
    ]


def test_a_row_longer_than_a_window_is_one_piece_and_the_next_are_short_again(
    tmp_path: Path,
) -> None:
    long = b"x" * 100 + b",2,3\n"
    pieces = cut(tmp_path / "t.csv", b"a,b,c\n" + long + b"7,8,9\n" * 10, 20)
    assert pieces[0] == b"a,b,c\n"
    assert pieces[1].startswith(long)
    assert all(len(piece) <= 20 for piece in pieces[2:])


def test_a_file_with_lone_carriage_returns_is_one_piece(tmp_path: Path) -> None:
    data = b"a,b,c\r1,2,3\r4,5,6\r"
    pieces = cut(tmp_path / "t.csv", data, 8)
    assert pieces == [data]
    assert rows_of_pieces(pieces, NAMES) == rows_of_file(data, NAMES)


def test_a_row_that_never_ends_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_ROW_BYTES_MAX", 64)
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b,c\n1,2,3\n4,"5,6\n' + b"7,8,9\n" * 100)
    with pytest.raises(BadRows) as caught:
        split_file(path, table(), NAMES, 16)
    assert (caught.value.line, caught.value.path) == (3, str(path))


@pytest.mark.parametrize("data", [b"", BOM, b"a,b,c", b"a,b,c\n", BOM + b"a,b,c\r\n"])
def test_a_csv_file_without_rows_has_no_pieces(tmp_path: Path, data: bytes) -> None:
    assert cut(tmp_path / "t.csv", data, 1000) == []


@pytest.mark.parametrize("header", [b"a,b,c", b'"a","b",c', BOM + b'a,"b","c"'])
def test_the_header_is_known_to_every_piece_without_its_mark(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(header + b"\r\n1,2,3\r\n4,5,6\r\n")
    pieces = split_file(path, table(), NAMES, 8)
    assert len(pieces) > 1
    assert {piece.header for piece in pieces} == {header.removeprefix(BOM).decode()}


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"a,c,b", "in another order: c, b"),
        (b"a,b", "missing: c"),
        (b"a,b,c,d", "extra: d"),
        (b"a,x,c", "missing: b; extra: x"),
        (b"a,b,c,c", "twice: c"),
        (b"A,b,c", "missing: a; extra: A"),
        (b"a, b,c", "missing: b; extra:  b"),
        (b"caf\xe9,b,c", "not UTF-8"),
        (b'a,b,"c', "never closed"),
        (b"", "missing: a, b, c"),
    ],
)
def test_a_header_that_is_not_the_declared_columns_is_refused(
    tmp_path: Path, header: bytes, found: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(header + b"\n1,2,3\n")
    with pytest.raises(HeaderWrong) as caught:
        split_file(path, table(), NAMES, 1000)
    error = caught.value
    assert found in error.found
    assert (error.path, error.table, error.wanted) == (str(path), "t", "a,b,c")


@pytest.mark.parametrize("fmt", ["json", "parquet", "binaryFile"])
def test_other_formats_are_one_piece_of_any_size(tmp_path: Path, fmt: str) -> None:
    path = tmp_path / "t.x"
    data = os.urandom((1 << 20) + 17)
    path.write_bytes(data)
    facts = path.stat()
    assert split_file(path, table(fmt), [], 1000) == [
        Piece(0, len(data), hashlib.sha256(data).hexdigest(), "", len(data), facts.st_mtime_ns)
    ]


@pytest.mark.parametrize(("fmt", "count"), [("json", 0), ("parquet", 1), ("binaryFile", 1)])
def test_an_empty_file_has_no_rows_in_json_but_stays_a_piece_elsewhere(
    tmp_path: Path, fmt: str, count: int
) -> None:
    path = tmp_path / "t.x"
    path.write_bytes(b"")
    assert len(split_file(path, table(fmt), [], 1000)) == count


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b,c\n" + b"1,2,3\n" * 20)
    real = last_row_end

    def alter(window: bytes, size: int) -> int:
        if change == "longer":
            with path.open("ab") as file:
                file.write(b"4,5,6\n")
        elif change == "shorter":
            os.truncate(path, 6 * 10)
        else:
            os.utime(path, ns=(1, 1))
        return real(window, size)

    monkeypatch.setattr(split, "last_row_end", alter)
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(InputChanged) as caught:
        split_file(path, table(), NAMES, 50)
    assert caught.value.path == str(path)
    assert os.listdir("/proc/self/fd") == opened


def test_a_file_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        split_file(tmp_path / "none.csv", table(), NAMES, 50)
