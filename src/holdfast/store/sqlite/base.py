"""What the parts of the SQLite store share: the database, the clock, and the shapes of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import apsw

from holdfast._base.clock import Clock
from holdfast._base.ids import BatchId, Ordinal, RunId
from holdfast.config import DEFAULT, Config
from holdfast.errors import Fenced, InvariantViolated, RunGone
from holdfast.store.rows import (
    CLOSED_STATES,
    Chunk,
    ChunkKind,
    Fence,
    File,
    Run,
    RunKind,
    RunState,
)
from holdfast.store.sqlite.connection import Database


class Part:
    """One part of the store's contract. `SqliteStore` is all of them on one database."""

    def __init__(self, database: Database, clock: Clock, config: Config = DEFAULT) -> None:
        self._database = database
        self._clock = clock
        self._config = config


def rows_of(connection: apsw.Connection, sql: str, *values: object) -> list[Any]:
    """Return all rows of a query, as tuples."""
    return connection.execute(sql, cast("Any", values)).fetchall()


def row_of(connection: apsw.Connection, sql: str, *values: object) -> tuple[Any, ...] | None:
    """Return the first row of a query, or None."""
    return cast("tuple[Any, ...] | None", connection.execute(sql, cast("Any", values)).fetchone())


def canonical(value: object) -> str:
    """Return `value` as JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hold_fence(connection: apsw.Connection, fence: Fence) -> None:
    """Lock the lease and prove that `fence` is its newest grant, first of all in a transaction.

    Raises:
        Fenced: it was granted to somebody else since.
    """
    connection.execute(
        "UPDATE lease SET beat = beat + 1 WHERE resource = ? AND epoch = ?",
        (fence.resource, fence.epoch),
    )
    if connection.changes() != 1:
        raise Fenced(resource=fence.resource, epoch=fence.epoch)


RUN_COLUMNS = (
    "run_id, client, pipeline, fingerprint, segments, state, error, created_ms, updated_ms,"
    " EXISTS (SELECT 1 FROM external WHERE external.run_id = run.run_id)"
)


def run_from(row: tuple[Any, ...]) -> Run:
    """Return the run in a row of `RUN_COLUMNS`."""
    run_id, client, pipeline, fingerprint, segments, state, error, *times, external = row
    created_ms, updated_ms = times
    return Run(
        run_id=run_id,
        client=client,
        pipeline=pipeline,
        fingerprint=json.loads(fingerprint),
        segments=segments,
        state=state,
        error=error,
        created_ms=created_ms,
        updated_ms=updated_ms,
        kind=RunKind.EXTERNAL if external else RunKind.SPARK,
    )


def lock_run(connection: apsw.Connection, run_id: RunId) -> Run:
    """Return a run as this transaction finds it. `BEGIN IMMEDIATE` has locked its row.

    Raises:
        RunGone: there is no such run.
    """
    sql = f"SELECT {RUN_COLUMNS} FROM run WHERE run_id = ?"  # noqa: S608 - constants only
    row = row_of(connection, sql, run_id)
    if row is None:
        raise RunGone(run=run_id, state="unknown")
    return run_from(row)


def require_state(run: Run, *allowed: RunState) -> None:
    """Refuse to act on a run that is not in one of the `allowed` states.

    Raises:
        RunGone: it is closed, by somebody else's right: cancelled, failed, finished.
        InvariantViolated: it is anywhere else, where our own code must not act on it.
    """
    if run.state in allowed:
        return
    if run.state in CLOSED_STATES:
        raise RunGone(run=run.run_id, state=run.state)
    what = f"run {run.run_id} is {run.state}, not {' or '.join(allowed)}"
    raise InvariantViolated(what=what)


CHUNK_COLUMNS = (
    "tbl, sender, ordinal, kind, location, size, checksum, format, start, stop, header,"
    " file_size, mtime_ns"
)


def chunk_from(row: tuple[Any, ...]) -> Chunk:
    """Return the chunk in a row of `CHUNK_COLUMNS`."""
    table, sender, ordinal, kind, *rest = row
    return Chunk(table, sender, Ordinal(ordinal), ChunkKind(kind), *rest)


def insert_chunks(connection: apsw.Connection, run_id: RunId, chunks: Iterable[Chunk]) -> None:
    """Bind chunks. The identity of a chunk is the primary key: it is bound once."""
    connection.executemany(
        "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                run_id,
                chunk.table,
                chunk.sender,
                chunk.ordinal,
                chunk.kind,
                chunk.location,
                chunk.size,
                chunk.checksum,
                chunk.format,
                chunk.start,
                chunk.stop,
                chunk.header,
                chunk.file_size,
                chunk.mtime_ns,
            )
            for chunk in chunks
        ),
    )


FILE_COLUMNS = "output, path, size, checksum, rows"


def file_from(row: Iterable[Any]) -> File:
    """Return the file in a row of `FILE_COLUMNS`."""
    return File(*row)


_FILES = f"SELECT {FILE_COLUMNS} FROM file WHERE work_id = ? ORDER BY position"  # noqa: S608 - constants only


def files_of(connection: apsw.Connection, work_id: BatchId) -> list[File]:
    """Return the manifest of one committed work, in the order of the commit."""
    return [file_from(row) for row in rows_of(connection, _FILES, work_id)]
