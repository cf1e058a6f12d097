"""Cuts an input file into chunks in the one pass that takes their checksums.

Nothing is copied: a piece is a byte range of the file, bound in place. Rules:

- the pieces follow each other without a gap, from byte 0 to the end of the file;
- a CSV file is cut behind the newline of a row, by the rule of `csv_rows`, so that each piece can
  be parsed alone; a piece is at most `chunk_bytes` long unless it has a row that is longer;
- the header line is in the first piece, and is named by all of them;
- other formats are one piece: a Parquet file cannot be cut by bytes, JSON is read natively; JSON
  lines that are to be uploaded are cut behind a newline, which no value of theirs can hold;
- a file that changes while it is read is refused; whether it changes later is seen by whoever
  reads a piece, because the checksum is that of exactly its bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from holdfast._base.files import os_errors, read_pieces
from holdfast.config import MIB
from holdfast.errors import BadRows, InputChanged
from holdfast.intake.compressed import refuse_compressed
from holdfast.intake.csv_rows import BOM, header_of, last_row_end, line_ends_in
from holdfast.intake.header import check_header
from holdfast.intake.tables import TableSpec

_ROW_BYTES_MAX = 1 << 30
"""A row must fit into memory, several times over. Without a limit a single quote that is never
closed would make one row of the rest of any file."""

Cut = Callable[[bytes | bytearray, int], int]
"""Where the last whole row within the first so many bytes ends; 0 if none does."""

_HEAD_BYTES = 1 << 16
"""What `check_head` reads first. A header is shorter; one that is not makes the window grow."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a file: the bytes [start, stop), their SHA-256, and the facts of the file."""

    start: int
    stop: int
    checksum: str
    header: str
    """The header line of a CSV file, without byte order mark and line end."""
    file_size: int
    mtime_ns: int


def split_file(
    path: Path,
    table: TableSpec,
    columns: Sequence[str] | None,
    chunk_bytes: int,
    *,
    documents: bool = False,
) -> list[Piece]:
    """Return the pieces of a file. A CSV or JSON file without rows has none.

    No rows means: zero bytes, or a CSV header with nothing behind it. The header of a CSV file is
    checked against `columns`, names and order; None: whoever takes the pieces in does that.

    `documents`: each piece is to travel alone. The checksum of a CSV piece is then that of the
    document that `head_of` begins, and JSON lines are cut too, behind a newline.

    Raises:
        UsageInvalid: the file is compressed.
        HeaderWrong: the header is not the declared columns, or not UTF-8.
        BadRows: a row has no end within a length that no row has.
        InputChanged: the file changed while it was read.
        StorageFailed: the operating system refused to read.
    """
    with os_errors(path), FileIO(path) as file:
        before = os.fstat(file.fileno())
        if table.format == "csv":
            pieces = _csv_pieces(
                *(file, before, columns, chunk_bytes),
                path=path,
                table=table.name,
                documents=documents,
            )
        else:
            limit = chunk_bytes if documents and table.format == "json" else None
            pieces = _plain_pieces(file, before, limit, path=path, table=table)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _changed(path)
    return pieces


def head_of(piece: Piece) -> bytes:
    """Return what makes a piece of a CSV file a document of its own: the header, if it lacks it."""
    return f"{piece.header}\n".encode() if piece.start and piece.header else b""


def check_head(path: Path, table: TableSpec, columns: Sequence[str]) -> None:
    """Look at the beginning of a file alone, so that a wrong one is known at once.

    Raises:
        UsageInvalid, HeaderWrong, BadRows, InputChanged, StorageFailed: as `split_file` does.
    """
    is_csv = table.format == "csv"
    with os_errors(path), FileIO(path) as file:
        size = os.fstat(file.fileno()).st_size
        cut = last_row_end if is_csv else None
        for window in _windows(file, size, _HEAD_BYTES, path, cut):
            _refuse_compressed(window, path, table)
            if is_csv:
                _rows_begin(window, size, columns, path=path, table=table.name)
            return


def _refuse_compressed(window: memoryview, path: Path, table: TableSpec) -> None:
    # A binary file is what it is: it is handed on, not read.
    if table.format != "binaryFile":
        refuse_compressed(path, window)


def _rows_begin(
    window: memoryview, size: int, columns: Sequence[str] | None, *, path: Path, table: str
) -> tuple[str, int]:
    """Return the checked header, and where rows begin; a byte order mark alone has no header."""
    line, begin = header_of(window)
    if begin == len(BOM) == size:
        return "", begin
    return check_header(line, columns, path=str(path), table=table), begin


def _plain_pieces(
    file: FileIO, facts: os.stat_result, limit: int | None, *, path: Path, table: TableSpec
) -> list[Piece]:
    """Return one piece, or several that end behind a newline if there is a limit."""
    # Without bytes a JSON file has no rows, but a Parquet file is damaged and a binary file is a
    # row: those stay a piece, so that whoever reads it says so.
    if facts.st_size == 0 and table.format == "json":
        return []
    cut = None if limit is None else _last_line_end
    ends: list[tuple[int, str]] = []
    state, stop = hashlib.sha256(), 0
    for window in _windows(file, facts.st_size, limit or MIB, path, cut):
        if stop == 0:
            _refuse_compressed(window, path, table)
        state.update(window)
        stop += len(window)
        if cut is not None:
            ends.append((stop, state.hexdigest()))
            state = hashlib.sha256()
    ends = ends or [(stop, state.hexdigest())]
    starts = [0, *(end for end, _ in ends)]
    return [
        Piece(start, end, checksum, "", facts.st_size, facts.st_mtime_ns)
        for start, (end, checksum) in zip(starts, ends, strict=False)
    ]


def _last_line_end(window: bytes | bytearray, size: int) -> int:
    return window.rfind(b"\n", 0, size) + 1


def _csv_pieces(
    file: FileIO,
    facts: os.stat_result,
    columns: Sequence[str] | None,
    chunk_bytes: int,
    *,
    path: Path,
    table: str,
    documents: bool,
) -> list[Piece]:
    pieces: list[Piece] = []
    header = ""
    start = 0
    for window in _windows(file, facts.st_size, chunk_bytes, path, last_row_end):
        if not pieces:
            refuse_compressed(path, window)
            header, begin = _rows_begin(window, facts.st_size, columns, path=path, table=table)
            if begin == facts.st_size:
                return []
        stop = start + len(window)
        piece = Piece(start, stop, "", header, facts.st_size, facts.st_mtime_ns)
        state = hashlib.sha256(head_of(piece) if documents else b"")
        state.update(window)
        pieces.append(replace(piece, checksum=state.hexdigest()))
        start = stop
    return pieces


def _windows(
    file: FileIO, size: int, limit: int, path: Path, cut: Cut | None
) -> Iterator[memoryview]:
    """Yield the first `size` bytes of a file in windows of at most `limit` bytes.

    With `cut` each but the last ends with a whole row; one row longer than `limit` makes the
    window grow. A window is valid until the next one is asked for.
    """
    buffer = bytearray(min(size, limit))
    start = filled = 0
    grown = limit
    while start < size:
        length = min(size - start, grown)
        if length > len(buffer):
            buffer.extend(bytes(length - len(buffer)))
        filled += _fill(file, memoryview(buffer)[filled:length], path)
        end = length
        if cut is not None and start + length < size:
            end = cut(buffer, length)
        if end == 0:
            grown *= 2
            if grown > _ROW_BYTES_MAX:
                raise _endless(path, start)
            continue
        with memoryview(buffer)[:end] as window:
            yield window
        # What is left of the window is the beginning of the next one.
        buffer[: filled - end] = buffer[end:filled]
        start += end
        filled -= end
        grown = limit


def _fill(file: FileIO, target: memoryview, path: Path) -> int:
    filled = 0
    while filled < len(target):
        count = file.readinto(target[filled:])
        if not count:
            raise _changed(path)
        filled += count
    return filled


def _changed(path: Path) -> InputChanged:
    return InputChanged(path=str(path), what="changed while it was read")


def _endless(path: Path, start: int) -> BadRows:
    line = 1 + line_ends_in(read_pieces(path, 0, start))
    reason = f"no row end within {_ROW_BYTES_MAX} bytes; is a quote never closed?"
    return BadRows(path=str(path), line=line, reason=reason, count=1)
