"""Results as CSV files in a directory of the user's choice.

The bytes come from the manifests alone, so an export that was lost or damaged is made again, the
same to the byte. A reader of the directory sees an old file, a whole new one, or none.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
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
from holdfast.errors import Damaged
from holdfast.store.rows import SeriesResult


def header_line(columns: Sequence[str]) -> bytes:
    """Return the header of an exported file, quoted only where it must be."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(columns)
    return text.getvalue().encode()


def _bytes_of(state: Path, result: SeriesResult) -> Iterator[bytes]:
    """Yield an export's bytes; raises Damaged where a file is not what its manifest says."""
    yield header_line(result.columns)
    for file in result.files:
        path = state / file.path
        if not path.is_file():
            raise Damaged(path=str(path), what=f"a file of result {result.series} is missing")
        if sha256_of(read_pieces(path)) != file.checksum:
            raise Damaged(path=str(path), what=f"a file of result {result.series} was altered")
        yield from read_pieces(path)


def export_path(out: Path, series: str) -> Path:
    """Return where a result is exported."""
    return out / f"{series}.csv"


def export_series(state: Path, out: Path, result: SeriesResult) -> str:
    """Write one result to `out`; returns the SHA-256 of the file.

    1. The bytes go to a temporary name in `out` and are made durable.
    2. It is renamed. Crash before: the old file, or none, and a temporary one that the next
       export removes. Crash after: the next export writes the same bytes again.
    3. The directory is made durable, before anyone calls the run DONE.
    """
    with os_errors(out):
        make_directories(out)
        temporary, checksum = write_temporary(out, _bytes_of(state, result))
        crashpoint("delivery.export.written")
        os.replace(temporary, export_path(out, result.series))
        fsync_file(out)
        crashpoint("delivery.export.renamed")
    return checksum


def export_checksum(state: Path, result: SeriesResult) -> str:
    """Return the SHA-256 that the export of a result has."""
    return sha256_of(_bytes_of(state, result))


def is_exported(out: Path, series: str, checksum: str) -> bool:
    """Tell whether the exported file of a finished run stands, unaltered."""
    path = export_path(out, series)
    return path.is_file() and sha256_of(read_pieces(path)) == checksum


def clear_temporary(out: Path) -> None:
    """Remove what an interrupted export left under a temporary name."""
    if out.is_dir():
        for path in out.glob(f"{TEMPORARY_PREFIX}*"):
            if is_temporary(path):
                path.unlink(missing_ok=True)
