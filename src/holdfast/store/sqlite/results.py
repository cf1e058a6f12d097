"""What can be seen of a run's results: pieces of Spark runs and of external ones alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast._base.ids import BatchId, Ordinal, RunId
from holdfast.store.result_rows import (
    PlaceKind,
    ResultPiece,
    ResultSeries,
    SeriesDecl,
    file_piece,
)
from holdfast.store.rows import VOID_STATES, Run, RunKind, RunState
from holdfast.store.sqlite.base import FILE_COLUMNS, file_from, files_of, row_of, rows_of

_PIECES = f"""
SELECT series, ordinal, {FILE_COLUMNS} FROM piece JOIN file USING (work_id, position)
WHERE run_id = ? ORDER BY series, ordinal
"""  # noqa: S608 - constants only


_PIECE = f"""
SELECT {FILE_COLUMNS} FROM piece JOIN file USING (work_id, position)
WHERE run_id = ? AND series = ? AND ordinal = ?
"""  # noqa: S608 - constants only
_ORDERED_FILE = f"""
SELECT {FILE_COLUMNS} FROM file WHERE position = ? AND work_id = (
    SELECT work_id FROM work
    WHERE run_id = ? AND kind = 'series' AND name = ? AND committed_attempt IS NOT NULL)
"""  # noqa: S608 - constants only
_EXTERNAL = "SELECT ordinal, blob, size, checksum, rows FROM external_piece"


def results_of(connection: apsw.Connection, run: Run) -> list[ResultSeries]:
    """Return a run's series, by name. A void or swept run has none."""
    if run.state in VOID_STATES:
        return []
    if run.kind is RunKind.EXTERNAL:
        return _external(connection, run)
    return _computed(connection, run)


def piece_of(
    connection: apsw.Connection, run: Run, series: str, ordinal: Ordinal
) -> ResultPiece | None:
    """Return one of the pieces that `results_of` lists."""
    if run.state in VOID_STATES:
        return None
    if run.kind is RunKind.EXTERNAL:
        header = header_of(connection, run.run_id) or ()
        declared = next((one for one in header if one.series == series), None)
        sql = f"{_EXTERNAL} WHERE run_id = ? AND series = ? AND ordinal = ?"
        row = row_of(connection, sql, run.run_id, series, ordinal)
        return _external_piece(declared, row) if declared and row else None
    row = row_of(connection, _PIECE, run.run_id, series, ordinal)
    return file_piece(ordinal, file_from(row)) if row else None


def ordered_file_of(
    connection: apsw.Connection, run: Run, series: str, ordinal: Ordinal
) -> ResultPiece | None:
    """Return one of the ordered files that `results_of` lists."""
    if run.state in VOID_STATES:
        return None
    if run.kind is RunKind.EXTERNAL:
        found = piece_of(connection, run, series, ordinal)
        return found if run.state == RunState.DONE and found and found.format == "csv" else None
    row = row_of(connection, _ORDERED_FILE, ordinal, run.run_id, series)
    return file_piece(ordinal, file_from(row)) if row else None


def _computed(connection: apsw.Connection, run: Run) -> list[ResultSeries]:
    """Return the series of a run on Spark: streamed pieces at once, others when committed."""
    works = rows_of(
        connection,
        """SELECT name, series_columns, work_id FROM work
           WHERE run_id = ? AND kind = 'series' AND committed_attempt IS NOT NULL""",
        run.run_id,
    )
    computed: dict[str, tuple[tuple[str, ...], BatchId]] = {
        name: (tuple(json.loads(columns)), work_id) for name, columns, work_id in works
    }
    pieces: dict[str, list[ResultPiece]] = {name: [] for name in computed}
    for series, ordinal, *file in rows_of(connection, _PIECES, run.run_id):
        pieces.setdefault(series, []).append(file_piece(ordinal, file_from(file)))
    found = []
    for series in sorted(pieces):
        columns: tuple[str, ...] = ()
        ordered: tuple[ResultPiece, ...] | None = None
        if series in computed:
            columns, work_id = computed[series]
            files = files_of(connection, work_id)
            ordered = tuple(file_piece(place, file) for place, file in enumerate(files, start=1))
        is_provisional = run.state != RunState.DONE
        found.append(ResultSeries(series, columns, is_provisional, tuple(pieces[series]), ordered))
    return found


def _external(connection: apsw.Connection, run: Run) -> list[ResultSeries]:
    """Return the series of an external run: what its producer announced, and what has come."""
    is_done = run.state == RunState.DONE
    found = []
    for declared in sorted(header_of(connection, run.run_id) or (), key=lambda one: one.series):
        sql = f"{_EXTERNAL} WHERE run_id = ? AND series = ? ORDER BY ordinal"
        rows = rows_of(connection, sql, run.run_id, declared.series)
        pieces = tuple(_external_piece(declared, row) for row in rows)
        ordered = pieces if is_done and declared.format == "csv" else None
        found.append(ResultSeries(declared.series, declared.columns, not is_done, pieces, ordered))
    return found


def _external_piece(declared: SeriesDecl, row: Sequence[Any]) -> ResultPiece:
    """Return a piece in a row. What was counted as it came are rows of CSV: it came without its
    format.
    """
    ordinal, blob, size, checksum, rows = row
    counted = rows if declared.format == "csv" else None
    return ResultPiece(
        Ordinal(ordinal), size, checksum, counted, declared.format, PlaceKind.BLOB, blob
    )


def header_of(connection: apsw.Connection, run_id: RunId) -> tuple[SeriesDecl, ...] | None:
    """Return the series that an external run's producer announced; None: it has not yet."""
    row = row_of(connection, "SELECT series FROM external WHERE run_id = ?", run_id)
    if row is None or row[0] is None:
        return None
    return tuple(
        SeriesDecl(name, tuple(columns), kind) for name, columns, kind in json.loads(row[0])
    )
