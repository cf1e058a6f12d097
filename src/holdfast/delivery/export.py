"""Results as files in a directory of the user's choice.

    NAME.csv                      the header line, then the result's files in order
    NAME.parquet/part-00001.parquet, ...   the result's files in order

The bytes come from the manifests alone, so an export that was lost or damaged is made again, the
same to the byte. A reader sees an old export, a whole new one, or none. The checksum of one is the
SHA-256 of the CSV, or of what `sha256sum part-*` prints in the directory.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import (
    TEMPORARY_PREFIX,
    fsync_file,
    is_temporary,
    make_directories,
    os_errors,
    read_pieces,
    sha256_of,
    write_temporary,
)
from holdfast._base.ids import fresh_token
from holdfast._base.locks import directory_locked
from holdfast._base.part_files import part_name, part_names, replace_parts
from holdfast.errors import Damaged, StorageFailed
from holdfast.store.rows import File, SeriesResult


def header_line(columns: Sequence[str]) -> bytes:
    """Return the header of an exported file, quoted only where it must be."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(columns)
    return text.getvalue().encode()


def _intact(state: Path, series: str, file: File) -> Iterator[bytes]:
    """Yield a file's bytes; raises Damaged before if they are not what its manifest says."""
    path = state / file.path
    if not path.is_file():
        raise Damaged(path=str(path), what=f"a file of result {series} is missing")
    if sha256_of(read_pieces(path)) != file.checksum:
        raise Damaged(path=str(path), what=f"a file of result {series} was altered")
    yield from read_pieces(path)


def _csv_of(state: Path, result: SeriesResult) -> Iterator[bytes]:
    yield header_line(result.columns)
    for file in result.files:
        yield from _intact(state, result.series, file)


def _listing(parts: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    """Yield a line for each name and checksum, as `sha256sum` prints them."""
    for name, checksum in parts:
        yield f"{checksum}  {name}\n".encode()


def export_path(out: Path, series: str, format: str) -> Path:  # noqa: A002 - the word of results
    """Return where a result is exported: a file, or of Parquet a directory."""
    return out / f"{series}.{format}"


def export_series(state: Path, out: Path, result: SeriesResult) -> None:
    """Write one result to `out`.

    1. The bytes go to a temporary name in `out` and are made durable.
    2. It is renamed; `replace_parts` says how a directory is. Crash before: the old export, or
       none, and a temporary one that the next export removes. Crash after: the next export finds
       it right, or writes the same bytes again.
    3. The directory is made durable, before anyone calls the run DONE.
    """
    target = export_path(out, result.series, result.format)
    with os_errors(out):
        make_directories(out)
        make = _parts_of if result.format == "parquet" else _file_of
        with make(state, out, result) as temporary:
            crashpoint("delivery.export.written")
            if temporary.is_dir():
                replace_parts(temporary, target)
            else:
                os.replace(temporary, target)
                fsync_file(out)
        crashpoint("delivery.export.renamed")


@contextmanager
def _file_of(state: Path, out: Path, result: SeriesResult) -> Iterator[Path]:
    yield write_temporary(out, _csv_of(state, result))[0]


@contextmanager
def _parts_of(state: Path, out: Path, result: SeriesResult) -> Iterator[Path]:
    """Give a durable directory of parts with a fresh temporary name, ours while the block runs:
    whoever clears what others left would go on removing parts of it when it has its name.
    """
    temporary = out / f"{TEMPORARY_PREFIX}{fresh_token()}"
    make_directories(temporary)
    with directory_locked(temporary) as is_ours:
        try:
            if not is_ours:
                raise StorageFailed(path=str(temporary), error="somebody clears it right now")
            for ordinal, file in enumerate(result.files, start=1):
                part, _ = write_temporary(temporary, _intact(state, result.series, file))
                os.rename(part, temporary / part_name(ordinal))
            fsync_file(temporary)
            yield temporary
        except BaseException:  # whatever it was, it is raised again: only the copies must not stay
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def export_checksum(state: Path, result: SeriesResult) -> str:
    """Return the SHA-256 that the export of a result has."""
    if result.format == "parquet":
        parts = ((part_name(n), file.checksum) for n, file in enumerate(result.files, start=1))
        return sha256_of(_listing(parts))
    return sha256_of(_csv_of(state, result))


def is_exported(out: Path, result: SeriesResult, checksum: str) -> bool:
    """Tell whether the export of a finished run stands, unaltered."""
    path = export_path(out, result.series, result.format)
    if result.format == "csv":
        return path.is_file() and sha256_of(read_pieces(path)) == checksum
    parts = [path / name for name in part_names(path)]
    if not all(part.is_file() for part in parts):
        return False
    found = ((part.name, sha256_of(read_pieces(part))) for part in parts)
    return sha256_of(_listing(found)) == checksum


def clear_temporary(out: Path) -> None:
    """Remove what an interrupted export left under a temporary name."""
    with os_errors(out):
        for path in out.glob(f"{TEMPORARY_PREFIX}*") if out.is_dir() else ():
            if not is_temporary(path):
                continue
            if not path.is_dir():
                path.unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError), directory_locked(path) as is_left_behind:
                if is_left_behind:
                    shutil.rmtree(path)
