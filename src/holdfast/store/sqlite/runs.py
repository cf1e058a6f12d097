"""States, progress and results of runs."""

from __future__ import annotations

import json
from typing import Any

import apsw

from holdfast._base.ids import Ordinal, RunId
from holdfast.store.contract import PipelineRule
from holdfast.store.result_rows import ResultPiece, ResultSeries
from holdfast.store.rows import (
    VOID_STATES,
    Chunk,
    Fence,
    KeptPipeline,
    Piece,
    Run,
    RunState,
    SenderProgress,
    SeriesResult,
)
from holdfast.store.sqlite.barrier import barriers_of, progress_of
from holdfast.store.sqlite.base import (
    CHUNK_COLUMNS,
    FILE_COLUMNS,
    RUN_COLUMNS,
    Part,
    canonical,
    chunk_from,
    file_from,
    files_of,
    hold_fence,
    lock_run,
    require_state,
    row_of,
    rows_of,
    run_from,
)
from holdfast.store.sqlite.moves import move
from holdfast.store.sqlite.results import ordered_file_of, piece_of, results_of

_ONE_RUN = f"SELECT {RUN_COLUMNS} FROM run WHERE run_id = ?"  # noqa: S608 - constants only
_ALL_RUNS = f"SELECT {RUN_COLUMNS} FROM run ORDER BY number"  # noqa: S608 - constants only
_SOME_RUNS = f"SELECT {RUN_COLUMNS} FROM run WHERE state IN"  # noqa: S608 - constants only
_CHUNKS = f"""
SELECT {CHUNK_COLUMNS} FROM sender JOIN chunk USING (run_id, tbl, sender)
WHERE run_id = ?1 AND (?2 IS NULL OR tbl = ?2) ORDER BY sender.position, ordinal
"""  # noqa: S608 - constants only
_PIECES = f"""
SELECT ordinal, final, {FILE_COLUMNS} FROM piece JOIN file USING (work_id, position)
WHERE run_id = ? AND series = ? ORDER BY ordinal
"""  # noqa: S608 - constants only
_BACKLOG = """
SELECT COALESCE(SUM(backlog_bytes), 0) FROM run JOIN sender USING (run_id)
WHERE run.state = 'OPEN' AND (?1 IS NULL OR client = ?1) AND NOT produced
"""


def _kept(connection: apsw.Connection) -> KeptPipeline | None:
    row = row_of(connection, "SELECT value FROM meta WHERE name = 'pipeline'")
    return KeptPipeline(*json.loads(row[0])) if row else None


def _series_from(connection: apsw.Connection, row: tuple[Any, ...]) -> SeriesResult:
    name, columns, work_id = row
    return SeriesResult(name, tuple(json.loads(columns)), tuple(files_of(connection, work_id)))


class RunPart(Part):
    """Fills `holdfast.store.contract.RunStore`."""

    def read_run(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""
        with self._database.reading() as connection:
            row = row_of(connection, _ONE_RUN, run_id)
        return run_from(row) if row else None

    def list_runs(self) -> list[Run]:
        """Return all runs, oldest first."""
        with self._database.reading() as connection:
            return [run_from(row) for row in rows_of(connection, _ALL_RUNS)]

    def list_runs_in(self, *states: str) -> list[Run]:
        """Return the runs in one of these states, oldest first."""
        marks = ", ".join("?" for _ in states)
        # The index of states is one of runs that are not swept, and taken only where that is said.
        unswept = "" if RunState.SWEPT in states else "AND state <> 'SWEPT'"
        sql = f"{_SOME_RUNS} ({marks}) {unswept} ORDER BY number"
        with self._database.reading() as connection:
            return [run_from(row) for row in rows_of(connection, sql, *states)]

    def read_progress(self, run_id: RunId) -> list[SenderProgress]:
        """Return how far each declared sender is, in the order of declaration."""
        with self._database.reading() as connection:
            return progress_of(connection, run_id)

    def read_barriers(self, run_id: RunId) -> list[int]:
        """Return the segments whose barrier has been passed."""
        with self._database.reading() as connection:
            return barriers_of(connection, run_id)

    def list_chunks(self, run_id: RunId, table: str | None = None) -> list[Chunk]:
        """Return the bound chunks in the order (declaration of the sender, ordinal)."""
        with self._database.reading() as connection:
            return [chunk_from(row) for row in rows_of(connection, _CHUNKS, run_id, table)]

    def read_counts(self, run_id: RunId) -> tuple[int, int]:
        """Return rows read and bad rows over all committed batches."""
        with self._database.reading() as connection:
            [(rows_read, bad_rows)] = rows_of(
                connection,
                """SELECT COALESCE(SUM(rows_read), 0), COALESCE(SUM(bad_rows), 0) FROM work
                   WHERE run_id = ? AND kind = 'batch' AND committed_attempt IS NOT NULL""",
                run_id,
            )
        return rows_read, bad_rows

    def keep_pipeline(self, pipeline: KeptPipeline, rule: PipelineRule) -> None:
        """Keep which pipeline this store belongs to, if `rule` lets it; it may be kept already."""
        with self._database.transaction() as connection:
            rule(_kept(connection), [run_from(row) for row in rows_of(connection, _ALL_RUNS)])
            connection.execute(
                """INSERT INTO meta VALUES ('pipeline', ?1)
                   ON CONFLICT (name) DO UPDATE SET value = ?1""",
                (canonical([pipeline.name, pipeline.fingerprint]),),
            )

    def read_pipeline(self) -> KeptPipeline | None:
        """Return the pipeline this store belongs to; None: nobody said so."""
        with self._database.reading() as connection:
            return _kept(connection)

    def read_backlog(self, client: str | None = None) -> int:
        """Return the bytes of chunks received and not applied, of one client or of all."""
        with self._database.reading() as connection:
            [(size,)] = rows_of(connection, _BACKLOG, client)
        return int(size)

    def move_run(
        self, fence: Fence, run_id: RunId, *, expected: str, to: str, error: str | None = None
    ) -> bool:
        """Move a run from state `expected` to `to`. False: it was not in `expected`."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            now_ms = self._clock.wall_ms()
            return move(
                connection, run_id, expected=expected, to=RunState(to), now_ms=now_ms, error=error
            )

    def finish_run(self, fence: Fence, run_id: RunId, exports: dict[str, str]) -> None:
        """Move COMPLETING -> DONE, make its pieces final, and keep the exports' checksums."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            require_state(lock_run(connection, run_id), RunState.COMPLETING)
            connection.execute("UPDATE piece SET final = 1 WHERE run_id = ?", (run_id,))
            move(
                connection,
                run_id,
                expected=RunState.COMPLETING,
                to=RunState.DONE,
                now_ms=self._clock.wall_ms(),
            )
            connection.executemany(
                "INSERT INTO export VALUES (?, ?, ?)",
                ((run_id, series, checksum) for series, checksum in exports.items()),
            )

    def read_exports(self, run_id: RunId) -> dict[str, str]:
        """Return series -> SHA-256 of the exported file, as kept by `finish_run`."""
        with self._database.reading() as connection:
            sql = "SELECT series, checksum FROM export WHERE run_id = ? ORDER BY series"
            return dict(rows_of(connection, sql, run_id))

    def list_pieces(self, run_id: RunId, series: str) -> list[Piece]:
        """Return the pieces of a result in order. Of a FAILED or CANCELLED run: none, all void."""
        with self._database.reading() as connection:
            if lock_run(connection, run_id).state in VOID_STATES:
                return []
            return [
                Piece(series, Ordinal(ordinal), file_from(file), bool(final))
                for ordinal, final, *file in rows_of(connection, _PIECES, run_id, series)
            ]

    def read_series(self, run_id: RunId) -> list[SeriesResult]:
        """Return the committed series, by name."""
        with self._database.reading() as connection:
            rows = rows_of(
                connection,
                """SELECT name, series_columns, work_id FROM work
                   WHERE run_id = ? AND kind = 'series' AND committed_attempt IS NOT NULL
                   ORDER BY name""",
                run_id,
            )
            return [_series_from(connection, row) for row in rows]

    def read_results(self, run_id: RunId) -> list[ResultSeries]:
        """Return what can be seen of a run's results now, by name of the series."""
        with self._database.reading() as connection:
            return results_of(connection, lock_run(connection, run_id))

    def read_result_piece(
        self, run_id: RunId, series: str, ordinal: Ordinal, *, ordered: bool = False
    ) -> ResultPiece | None:
        """Return one piece, or ordered file, of a series that can be seen; None: there is none."""
        find = ordered_file_of if ordered else piece_of
        with self._database.reading() as connection:
            return find(connection, lock_run(connection, run_id), series, ordinal)
