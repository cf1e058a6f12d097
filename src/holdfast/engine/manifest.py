"""From what an attempt wrote to the list of files that a commit will show.

Spark fsyncs nothing, so everything below the attempt's directory is made durable here, before
the commit that lets readers see it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from holdfast._base.files import fsync_tree, make_directories, os_errors, read_pieces, sha256_of
from holdfast.engine.executor import Source
from holdfast.errors import InputChanged
from holdfast.store.rows import File

_NUMBERS = re.compile(r"([0-9]+)")


def _is_data(below: Path) -> bool:
    """Tell data files from Spark's markers (_SUCCESS), checksums (.x.crc) and what a task that
    outlived its job left below _temporary. The first part is the output's name, ours to choose.
    """
    return not any(part.startswith(("_", ".")) for part in below.parts[1:])


def _in_order(below: Path) -> list[list[str | int]]:
    """Sort numbers in names as numbers: Spark pads them, but to three digits only, and the rows
    of a result are in the order of its files.
    """
    return [
        [int(part) if part.isdecimal() else part for part in _NUMBERS.split(name)]
        for name in below.parts
    ]


def seal(root: Path, attempt: Path) -> tuple[File, ...]:
    """Make what an attempt wrote durable; return its data files, in order of output and name.

    `root` is the state directory; paths in a manifest are relative to it.
    """
    with os_errors(attempt):
        make_directories(attempt)
        files = [path for path in fsync_tree(attempt) if _is_data(path.relative_to(attempt))]
        files.sort(key=lambda path: _in_order(path.relative_to(attempt)))
        return tuple(_describe(root, attempt, path) for path in files)


def _describe(root: Path, attempt: Path, path: Path) -> File:
    state = hashlib.sha256()
    lines = 0
    for piece in read_pieces(path):
        state.update(piece)
        lines += piece.count(b"\n")
    rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else lines
    return File(
        output=path.relative_to(attempt).parts[0],
        path=str(path.relative_to(root)),
        size=path.stat().st_size,
        checksum=state.hexdigest(),
        rows=rows,
    )


def verify_sources(sources: Iterable[Source]) -> None:
    """Check the bytes of inputs that Spark's own readers parsed, after they were read.

    CSV is not among them: its reader hashes the very bytes it parses.
    """
    for source in sources:
        if source.format == "csv":
            continue
        path = Path(source.path)
        if not path.is_file():
            raise InputChanged(path=source.path, what="has vanished")
        if sha256_of(read_pieces(path, source.start, source.stop)) != source.checksum:
            raise InputChanged(path=source.path, what="was rewritten")
