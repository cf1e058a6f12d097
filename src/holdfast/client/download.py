"""A series of a finished run as a file, or a directory of part files, fetched piece by piece.

The bytes are those that `holdfast run --out` writes: of CSV a header line, then the pieces in
order; of Parquet each piece as a part. What was fetched is under a temporary name that depends on
run, series and checksums alone, so a later process finds it and goes on. Nothing is believed that
does not have its piece's checksum.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import (
    FILE_MODE,
    TEMPORARY_PREFIX,
    fsync_file,
    make_directories,
    os_errors,
)
from holdfast._base.ids import digest
from holdfast._base.part_files import part_name, part_names, replace_parts
from holdfast.client.answers import PieceInfo, SeriesInfo
from holdfast.client.door import Door
from holdfast.errors import Damaged, UsageInvalid

_TRIES_MAX = 3
"""How often a piece is fetched whose bytes are wrong: once more may help, always is in vain."""
_READ_BYTES = 1 << 20
_PARTIAL = 206
_SERIES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be fetched: its name, what it begins with, and the pieces that follow."""

    name: str
    columns: tuple[str, ...]
    pieces: tuple[PieceInfo, ...]
    path: str
    """Where the pieces are, each under its ordinal."""
    in_parts: bool = False
    """It is a directory, and each piece a file in it."""


def wanted_of(series: SeriesInfo, path: str) -> list[Wanted]:
    """Return a series as a file of CSV, or as a directory of Parquet; nothing if a producer sent no
    Parquet at all, of which no columns are known. Pure.

    Raises:
        Damaged: the server lists pieces that are not 1, 2, 3 and so on.
    """
    name = _plain(series.series)
    where = f"{path}/{quote(series.series, safe='')}"
    if series.files is None:
        pieces = series.pieces
    else:
        pieces, where = series.files, f"{where}/files"
    if [one.ordinal for one in pieces] != list(range(1, len(pieces) + 1)):
        what = "the server does not list its pieces as 1, 2, 3 and so on"
        raise Damaged(path=series.series, what=what)
    if series.files is not None and all(piece.format == "csv" for piece in pieces):
        return [Wanted(f"{name}.csv", series.columns, pieces, where)]
    return [Wanted(f"{name}.parquet", (), pieces, where, in_parts=True)] if pieces else []


def fetch_series(door: Door, run: str, series: Wanted, out: Path) -> Path:
    """Write a series to `out`; returns the path of its file or directory."""
    return (_fetch_parts if series.in_parts else fetch_file)(door, run, series, out)


def _fetch_parts(door: Door, run: str, series: Wanted, out: Path) -> Path:
    """Write a directory of parts to `out`.

    1. Each part is fetched into a temporary directory, as a file is into `out`. Crash: the next
       call keeps whole parts, and goes on within one.
    2. The directory gets its name (`replace_parts`).
    """
    target = out / series.name
    parts = [Wanted(part_name(one.ordinal), (), (one,), series.path) for one in series.pieces]
    with os_errors(out):
        are_named = part_names(target) == [part.name for part in parts]
        if are_named and all(_stands(target / part.name, part) for part in parts):
            return target
        temporary = out / f"{TEMPORARY_PREFIX}{_name(run, series)}"
        make_directories(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            _alone(descriptor, target)
            for part in parts:
                fetch_file(door, run, part, temporary)
            replace_parts(temporary, target)
        finally:
            os.close(descriptor)
    return target


def fetch_file(door: Door, run: str, series: Wanted, out: Path) -> Path:
    """Write one file to `out`; returns its path.

    1. Each piece that is not there yet is appended to the temporary file, and its checksum
       verified. Crash: the next call keeps the whole pieces, and goes on within a part of one.
    2. The file is made durable and renamed. Crash before: a temporary file that is complete.
    3. The directory is made durable.
    """
    target = out / series.name
    with os_errors(out):
        make_directories(out)
        if _stands(target, series):
            return target
        temporary = out / f"{TEMPORARY_PREFIX}{_name(run, series)}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, FILE_MODE)
        with open(descriptor, "r+b") as file:
            _alone(file, target)
            place, whole = keep(file, series)
            for piece in series.pieces[whole:]:
                _fetch_piece(door, f"{series.path}/{piece.ordinal}", piece, file, place, target)
                place += piece.size
                crashpoint("client.piece.after")
            os.fsync(descriptor)
            crashpoint("client.result.written")
            os.replace(temporary, target)
        fsync_file(out)
        crashpoint("client.result.renamed")
    return target


def header_line(columns: Sequence[str]) -> bytes:
    """Return the header of a result file, quoted only where it must be; none without columns."""
    if not columns:
        return b""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(columns)
    return text.getvalue().encode()


def keep(file: BinaryIO, series: Wanted) -> tuple[int, int]:
    """Return where the whole pieces of a file end, and how many it has.

    Behind them may stand a part of the next one. What has a wrong checksum is cut off.
    """
    header = header_line(series.columns)
    file.seek(0)
    if file.read(len(header)) != header:
        _cut(file, 0)
        file.write(header)
        file.flush()
    place, size = len(header), file.seek(0, os.SEEK_END)
    for number, piece in enumerate(series.pieces):
        if place + piece.size > size:
            return place, number
        if _checksum(file, place, piece.size) != piece.checksum:
            _cut(file, place)
            return place, number
        place += piece.size
    _cut(file, place)
    return place, len(series.pieces)


def _fetch_piece(
    door: Door, path: str, piece: PieceInfo, file: BinaryIO, place: int, target: Path
) -> None:
    """Make the file hold one piece from `place` on, where a part of it may be already."""
    for _ in range(_TRIES_MAX):
        door.try_again(
            lambda: _append(door, path, piece, file, place),
            progress=lambda: file.seek(0, os.SEEK_END),
        )
        file.flush()
        if _checksum(file, place, piece.size) == piece.checksum:
            return
        _cut(file, place)
    what = f"piece {piece.ordinal} came {_TRIES_MAX} times with bytes that are not its checksum's"
    raise Damaged(path=str(target), what=what)


def _append(door: Door, path: str, piece: PieceInfo, file: BinaryIO, place: int) -> None:
    """Ask for what is missing of a piece, once."""
    have = file.seek(0, os.SEEK_END) - place
    if have >= piece.size:
        _cut(file, place + piece.size)
        return
    with door.stream(path, {"Range": f"bytes={have}-"} if have else {}) as response:
        if have and response.status_code != _PARTIAL:
            _cut(file, place)
            have = 0
        for data in response.iter_bytes():
            have += len(data)
            if have > piece.size:
                _cut(file, place)
                return
            file.write(data)


def _cut(file: BinaryIO, place: int) -> None:
    file.seek(place)
    file.truncate()


def _checksum(file: BinaryIO, place: int, size: int) -> str:
    state = hashlib.sha256()
    file.seek(place)
    while size and (data := file.read(min(size, _READ_BYTES))):
        state.update(data)
        size -= len(data)
    return state.hexdigest()


def _stands(target: Path, series: Wanted) -> bool:
    """Tell whether the whole file is there, as it should be. Nothing is changed."""
    if not target.is_file():
        return False
    header = header_line(series.columns)
    with target.open("rb") as file:
        if file.read(len(header)) != header:
            return False
        place = len(header)
        for piece in series.pieces:
            if _checksum(file, place, piece.size) != piece.checksum:
                return False
            place += piece.size
        return file.seek(0, os.SEEK_END) == place


def _alone(file: BinaryIO | int, target: Path) -> None:
    """Refuse a second process that would append to the same file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        what = f"another process is writing {target}"
        raise UsageInvalid(what=what, remedy="Wait for it, or give another directory.") from error


def _name(run: str, series: Wanted) -> str:
    checksums = [piece.checksum for piece in series.pieces]
    return digest("download", run, series.name, *series.columns, *checksums)


def _plain(series: str) -> str:
    """Return a name that is a file's name and nothing else: it comes from another machine."""
    if not _SERIES.fullmatch(series):
        what = f"the server names a result {series!r}, which is no name for a file"
        raise UsageInvalid(what=what, remedy="Look at the server.")
    return series
