"""Results that a producer outside sends in: the header, and pieces by (run, series, ordinal).

A piece's row alone binds its blob to the run. The transaction that makes the set of pieces complete
moves the run on: two last pieces cannot both be the last one.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast._base.ids import Ordinal, RunId
from holdfast._base.intervals import Intervals
from holdfast.store.result_rows import (
    CompleteRule,
    ExternalFacts,
    ExternalPiece,
    ExternalRun,
    HeaderRule,
    PieceRule,
    SeriesDecl,
    SeriesProgress,
)
from holdfast.store.rows import Fence, Run, RunState
from holdfast.store.sqlite.barrier import without_gap
from holdfast.store.sqlite.base import (
    Part,
    canonical,
    hold_fence,
    lock_run,
    require_state,
    row_of,
    rows_of,
)
from holdfast.store.sqlite.moves import move
from holdfast.store.sqlite.results import header_of

_RECEIVED = """
SELECT MIN(ordinal), MAX(ordinal) FROM (
    SELECT ordinal, ordinal - ROW_NUMBER() OVER (ORDER BY ordinal) AS island
    FROM external_piece WHERE run_id = ? AND series = ?)
GROUP BY island ORDER BY 1
"""
_HIGHEST = "SELECT MAX(ordinal) FROM external_piece WHERE run_id = ? AND series = ?"
_TOTALS = """
SELECT series, total, received_count FROM external_total WHERE run_id = ? ORDER BY series
"""
_UNEVEN = "SELECT 1 FROM external_total WHERE run_id = ? AND total <> received_count LIMIT 1"
_PIECE = """
SELECT series, ordinal, total, blob, size, checksum, rows
FROM external_piece JOIN external_total USING (run_id, series) WHERE run_id = ?
"""
_PIECES = f"{_PIECE} ORDER BY series, ordinal"
_ONE_PIECE = f"{_PIECE} AND series = ? AND ordinal = ?"


def _facts(
    connection: apsw.Connection,
    run: Run,
    piece: ExternalPiece | None = None,
    *,
    by_rows: bool = False,
) -> ExternalFacts:
    """Return what has come of an external run, and the stored twin of `piece`.

    `by_rows`: the sets are made of the rows, also where the count says that there is no gap.
    """
    totals = {
        name: (total, count) for name, total, count in rows_of(connection, _TOTALS, run.run_id)
    }

    def ordinals(name: str) -> Intervals:
        _, count = totals.get(name, (None, 0))
        key = run.run_id, name
        if not by_rows and without_gap(connection, count, _HIGHEST, *key):
            return Intervals.first(count)
        return Intervals(tuple(tuple(row) for row in rows_of(connection, _RECEIVED, *key)))

    header = header_of(connection, run.run_id)
    names = [*totals, *(one.series for one in header or () if one.series not in totals)]
    progress = [
        SeriesProgress(name, totals.get(name, (None, 0))[0], ordinals(name)) for name in names
    ]
    stored = None
    if piece is not None:
        row = row_of(connection, _ONE_PIECE, run.run_id, piece.series, piece.ordinal)
        stored = _piece_from(row) if row else None
    return ExternalFacts(run.run_id, run.state, header, tuple(progress), stored)


def _piece_from(row: tuple[Any, ...]) -> ExternalPiece:
    series, ordinal, *rest = row
    return ExternalPiece(series, Ordinal(ordinal), *rest)


class ExternalPart(Part):
    """Fills `holdfast.store.contract.ExternalStore`."""

    def read_external(
        self, run_id: RunId, piece: ExternalPiece | None = None
    ) -> ExternalRun | None:
        """Return an external run, and in its facts the stored twin of `piece`; None: there is no
        such run, or it is of another kind.
        """
        with self._database.reading() as connection:
            row = row_of(connection, "SELECT producer FROM external WHERE run_id = ?", run_id)
            if row is None:
                return None
            return ExternalRun(
                run_id, row[0], _facts(connection, lock_run(connection, run_id), piece)
            )

    def list_external_pieces(self, run_id: RunId) -> list[ExternalPiece]:
        """Return the pieces that were bound, by series and ordinal."""
        with self._database.reading() as connection:
            return [_piece_from(row) for row in rows_of(connection, _PIECES, run_id)]

    def record_header(
        self,
        fence: Fence,
        run_id: RunId,
        header: tuple[SeriesDecl, ...],
        rule: HeaderRule,
        complete: CompleteRule,
    ) -> bool:
        """Record which series a run will have, if `rule` says so; look whether all is there."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            run = lock_run(connection, run_id)
            if not rule(header, _facts(connection, run)):
                return False
            require_state(run, RunState.RECEIVING)
            named = [(one.series, one.columns, one.format) for one in header]
            connection.execute(
                "UPDATE external SET series = ? WHERE run_id = ? AND series IS NULL",
                (canonical(named), run_id),
            )
            self._look(connection, run, complete)
        return True

    def bind_piece(
        self,
        fence: Fence,
        run_id: RunId,
        piece: ExternalPiece,
        rule: PieceRule,
        complete: CompleteRule,
    ) -> bool:
        """Bind one piece to its blob, if `rule` says so; look whether all is there."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            run = lock_run(connection, run_id)
            if not rule(piece, _facts(connection, run, piece)):
                return False
            require_state(run, RunState.RECEIVING)
            connection.execute(
                """INSERT INTO external_total (run_id, series, total) VALUES (?, ?, ?)
                   ON CONFLICT DO NOTHING""",
                (run_id, piece.series, piece.total),
            )
            if piece.ordinal:
                connection.execute(
                    "INSERT INTO external_piece VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        run_id,
                        piece.series,
                        piece.ordinal,
                        piece.blob,
                        piece.size,
                        piece.checksum,
                        piece.rows,
                    ),
                )
            self._look(connection, run, complete)
        return True

    def _look(self, connection: apsw.Connection, run: Run, complete: CompleteRule) -> None:
        # Before the numbers are equal no set can be: only then are all rows looked at.
        if rows_of(connection, _UNEVEN, run.run_id):
            return
        if complete(_facts(connection, run, by_rows=True)):
            move(
                connection,
                run.run_id,
                expected=RunState.RECEIVING,
                to=RunState.COMPLETING,
                now_ms=self._clock.wall_ms(),
            )
