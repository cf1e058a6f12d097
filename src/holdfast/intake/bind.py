"""Input files bound in place: nothing is copied, and a file that changes afterwards is an error.

The whole listing becomes chunks in one transaction, before anything is planned. A resume compares
path, size and modification time with what was bound, and hashes again only what differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import os_errors, read_pieces, refuse_pattern, sha256_of
from holdfast._base.ids import Ordinal, RunId
from holdfast.config import Config
from holdfast.errors import InputChanged
from holdfast.intake.ddl import column_names
from holdfast.intake.parquet import check_alike, check_columns
from holdfast.intake.split import Piece, check_head, split_file
from holdfast.intake.tables import TableSpec
from holdfast.store.contract import BarrierRule, IntakeStore
from holdfast.store.rows import Chunk, ChunkKind, End, Fence


def bind_files(
    store: IntakeStore,
    fence: Fence,
    run_id: RunId,
    *,
    files: Mapping[str, Sequence[Path]],
    tables: Sequence[TableSpec],
    config: Config,
    barrier: BarrierRule,
) -> None:
    """Bind every file of a run's inputs, and say END for every sender.

    1. Each file is read once: its checksums, and where its rows can be cut.
    2. One transaction: all chunks, their references, all ENDs. Crash before: nothing is bound,
       and the listing is made again. Crash after: a resume finds them bound.
    """
    chunks = list(list_chunks(files, tables, config))
    ends = _ends(chunks, tables)
    crashpoint("intake.bind.before")
    store.bind_inputs(fence, run_id, chunks, ends, barrier)
    crashpoint("intake.bind.after")


def check_heads(files: Mapping[str, Sequence[Path]], tables: Sequence[TableSpec]) -> None:
    """Look at the beginning of every file: a wrong header is told before Spark is started."""
    for table in tables:
        columns = column_names(table.schema) if table.schema else []
        for path in files.get(table.name, ()):
            check_head(path, table, columns)


def list_chunks(
    files: Mapping[str, Sequence[Path]], tables: Sequence[TableSpec], config: Config
) -> Iterator[Chunk]:
    """Yield the chunks of input files, numbered per table in the order of the files."""
    listed = [(table, path) for table in tables for path in files.get(table.name, ())]
    for table in tables:
        if table.format == "parquet" and not table.schema:
            check_alike(files.get(table.name, ()), table.name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cut = pool.map(lambda pair: _split(pair[0], pair[1], config), listed)
        ordinals: dict[str, int] = {}
        for (table, path), pieces in zip(listed, cut, strict=True):
            for piece in pieces:
                ordinals[table.name] = ordinals.get(table.name, 0) + 1
                yield _chunk(table, path, piece, Ordinal(ordinals[table.name]))


def _split(table: TableSpec, path: Path, config: Config) -> list[Piece]:
    columns = column_names(table.schema) if table.schema else []
    if table.format != "csv":
        refuse_pattern(path)
    with os_errors(path):
        pieces = split_file(path, table, columns, config.chunk_bytes)
        if table.format == "parquet":
            check_columns(path, table.name, columns)
        return pieces


def _chunk(table: TableSpec, path: Path, piece: Piece, ordinal: Ordinal) -> Chunk:
    """All of a table's files come from its first sender; the others announce nothing."""
    return Chunk(
        table=table.name,
        sender=table.senders[0],
        ordinal=ordinal,
        kind=ChunkKind.RANGE,
        location=str(path),
        size=piece.stop - piece.start,
        checksum=piece.checksum,
        format=table.format,
        start=piece.start,
        stop=piece.stop,
        header=piece.header,
        file_size=piece.file_size,
        mtime_ns=piece.mtime_ns,
    )


def _ends(chunks: Sequence[Chunk], tables: Sequence[TableSpec]) -> list[End]:
    counts: dict[tuple[str, str], int] = {}
    for chunk in chunks:
        counts[chunk.table, chunk.sender] = counts.get((chunk.table, chunk.sender), 0) + 1
    return [
        End(table.name, sender, counts.get((table.name, sender), 0))
        for table in tables
        if not table.produced
        for sender in table.senders
    ]


def check_unchanged(
    bound: Sequence[Chunk],
    files: Mapping[str, Sequence[Path]],
    tables: Sequence[TableSpec],
    config: Config,
    *,
    finished: bool = False,
) -> None:
    """Compare what was bound with what is there now.

    The inputs of a finished run may be gone: nobody needs them any more.

    Raises:
        InputChanged: a file was rewritten, has vanished, or is new.
    """
    of_path: dict[str, list[Chunk]] = {}
    for chunk in bound:
        if chunk.kind is ChunkKind.RANGE:
            of_path.setdefault(chunk.location, []).append(chunk)
    for location, chunks in of_path.items():
        if not finished or Path(location).exists():
            _check_file(Path(location), chunks)
    for table in tables:
        for path in files.get(table.name, ()):
            if str(path) not in of_path and _split(table, path, config):
                raise InputChanged(path=str(path), what="has appeared")


def _check_file(path: Path, chunks: Sequence[Chunk]) -> None:
    try:
        facts = path.stat()
    except FileNotFoundError as error:
        raise InputChanged(path=str(path), what="has vanished") from error
    if facts.st_size != chunks[0].file_size:
        raise InputChanged(path=str(path), what="has another size")
    if facts.st_mtime_ns == chunks[0].mtime_ns:
        return
    for chunk in chunks:
        if sha256_of(read_pieces(path, chunk.start, chunk.stop)) != chunk.checksum:
            raise InputChanged(path=str(path), what="was rewritten")
