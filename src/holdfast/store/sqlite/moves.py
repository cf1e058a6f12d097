"""Moves of runs between states, each with all that must be true together with it.

A run that comes to an end tells its client so: the notice is inserted in the transaction that makes
the end durable, so there is no end without its notice, and no notice of an end that never was.
A run of the command line has no client, and tells nobody.
"""

from __future__ import annotations

import apsw

from holdfast._base.ids import RunId, digest
from holdfast.log.contract import Record
from holdfast.store.contract import notice_topic
from holdfast.store.reasons import without_places
from holdfast.store.result_rows import NOTICE_OF, NoticeKind, ResultSeries
from holdfast.store.rows import CLOSED_STATES, Run, RunState
from holdfast.store.sqlite.base import canonical, lock_run, row_of
from holdfast.store.sqlite.results import results_of
from holdfast.store.sqlite.topics import append, make_topic
from holdfast.store.states import RUN_MOVES

_END = """
INSERT INTO watch (run_id, mark, since_ms)
VALUES (?, ?, COALESCE((SELECT ms FROM elapsed WHERE name = 'delivery'), 0))
ON CONFLICT DO UPDATE SET mark = excluded.mark, since_ms = excluded.since_ms
"""


def move(
    connection: apsw.Connection,
    run_id: RunId,
    *,
    expected: str,
    to: str,
    now_ms: int,
    error: str | None = None,
) -> bool:
    """Move a run from `expected` to `to`. False: it was not there, and stays.

    A move to DONE, FAILED, CANCELLED or ABANDONED makes the notice of it. From each of these, and
    from SWEPT, the time of the run's clean-up counts.
    """
    RUN_MOVES.require(RunState(expected), RunState(to), what=f"run {run_id}")
    connection.execute(
        "UPDATE run SET state = ?, error = ?, updated_ms = ? WHERE run_id = ? AND state = ?",
        (to, error, now_ms, run_id, expected),
    )
    if connection.changes() != 1:
        return False
    if to in CLOSED_STATES:
        connection.execute(_END, (run_id, to))
    kind = NOTICE_OF.get(RunState(to))
    if kind is not None:
        run = lock_run(connection, run_id)
        if run.client:
            _notify(connection, run, kind, now_ms=now_ms)
    return True


def notice_id_of(run_id: RunId, kind: NoticeKind) -> str:
    """Return the name of a notice: told again, it has the same."""
    return digest("notice", run_id, kind)


def _notify(connection: apsw.Connection, run: Run, kind: NoticeKind, *, now_ms: int) -> None:
    """Put a notice on the client's topic, and into the outbox if the client has a webhook."""
    name = notice_id_of(run.run_id, kind)
    opened = row_of(connection, "SELECT key FROM opening WHERE run_id = ?", run.run_id)
    body = canonical(
        {
            "id": name,
            "type": kind,
            "run": run.run_id,
            "key": opened[0] if opened else "",
            "client": run.client,
            "pipeline": run.pipeline,
            "state": run.state,
            "error": without_places(run.error),
            "series": [_reference(run, one) for one in results_of(connection, run)],
        }
    )
    topic = notice_topic(run.client)
    make_topic(connection, topic, 1)
    append(connection, topic, 0, [Record(body.encode(), record_id=name)])
    row = row_of(connection, "SELECT url FROM webhook WHERE client = ?", run.client)
    if row is not None:
        connection.execute(
            """INSERT INTO notice (notice_id, run_id, kind, url, body, state, due_ms, created_ms)
               VALUES (?, ?, ?, ?, ?, 'waiting', 0, ?)""",
            (name, run.run_id, kind, row[0], body, now_ms),
        )


def _reference(run: Run, series: ResultSeries) -> dict[str, object]:
    """Return a series as a notice lists it: references to its pieces in order, no data."""
    return {
        "series": series.series,
        "columns": list(series.columns),
        "pieces": [
            {
                "ordinal": piece.ordinal,
                "size": piece.size,
                "checksum": piece.checksum,
                "rows": piece.rows,
                "format": piece.format,
                "url": f"/v1/runs/{run.run_id}/results/{series.series}/{piece.ordinal}",
            }
            for piece in series.pieces
        ],
    }
