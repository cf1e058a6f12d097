"""Runs as the sweeper sees them: what happened last, for how long nothing has, what is left.

Of runs that ended only those are looked at for which something is due: most stay as they are for
ever. Their marks are written by the move that ends them (`holdfast.store.sqlite.moves`).

Time is accumulated: whoever holds the lease adds what its own monotonic clock says, and the sum is
kept here. Wall clocks are compared nowhere, and time in which nobody watched does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast._base.ids import RunId
from holdfast.store.result_rows import Watched
from holdfast.store.rows import CLOSED_STATES, Fence, RunState
from holdfast.store.sqlite.base import (
    RUN_COLUMNS,
    Part,
    hold_fence,
    lock_run,
    require_state,
    row_of,
    rows_of,
    run_from,
)
from holdfast.store.sqlite.moves import move
from holdfast.store.sqlite.topics import drop_topic
from holdfast.store.states import STOPS

_ENDED = ", ".join(f"'{state}'" for state in CLOSED_STATES)
_MARK = f"""
CASE WHEN run.state IN ({_ENDED}) THEN run.state ELSE run.state
|| '/' || (SELECT COALESCE(SUM(received_count), 0) FROM sender WHERE sender.run_id = run.run_id)
|| '/' || (SELECT COUNT(announced) FROM sender WHERE sender.run_id = run.run_id)
|| '/' || (SELECT COUNT(committed_attempt) FROM work WHERE work.run_id = run.run_id)
|| '/' || (SELECT COUNT(series) FROM external WHERE external.run_id = run.run_id)
|| '/' || (SELECT COUNT(*) FROM external_total WHERE external_total.run_id = run.run_id)
|| '/' || (SELECT COALESCE(SUM(received_count), 0) FROM external_total
    WHERE external_total.run_id = run.run_id)
END
"""  # noqa: S608 - constants only
"""What happened to a run so far, as text: it changes whenever something does."""
_RUN_MARK = f"SELECT {_MARK} FROM run WHERE run_id = ?"  # noqa: S608 - constants only
_OPEN = ", ".join(f"'{state}'" for state in RunState if state not in CLOSED_STATES)
_IS_OPEN = f"state IN ({_OPEN}) AND state <> 'SWEPT'"
"""The second half says which index may be taken."""
_SEE = f"""
INSERT INTO watch (run_id, mark, since_ms) SELECT run_id, {_MARK}, ?1 FROM run WHERE {_IS_OPEN}
ON CONFLICT DO UPDATE SET mark = excluded.mark, since_ms = excluded.since_ms
WHERE mark <> excluded.mark
"""  # noqa: S608 - constants only
_WATCHED = f"""
SELECT mark, ?1 - since_ms, has_queues, {RUN_COLUMNS} FROM watch JOIN run USING (run_id)
WHERE is_cleared = 0
"""  # noqa: S608 - constants only
_STOPPED = ", ".join(f"'{state}'" for state in sorted(STOPS))
_UNCLEARED = """
SELECT run_id FROM watch WHERE is_cleared = 0 AND mark = 'SWEPT'
UNION SELECT run_id FROM watch WHERE is_cleared = 0 AND mark = 'DONE' AND has_queues = 1
"""
_DUE = f"""
SELECT run_id FROM run WHERE {_IS_OPEN}
UNION {_UNCLEARED}
UNION SELECT run_id FROM watch WHERE is_cleared = 0 AND mark IN ({_STOPPED})
AND has_queues IN (0, 1) AND since_ms <= ?1 - ?2
UNION SELECT run_id FROM watch WHERE is_cleared = 0 AND mark = 'DONE'
AND has_queues = 0 AND since_ms <= ?1 - ?3
"""  # noqa: S608 - constants only
_IDLE = f"""
SELECT run_id, ? - since_ms FROM run JOIN watch USING (run_id) WHERE {_IS_OPEN}
"""  # noqa: S608 - constants only
_IDLE_OF = f"""
SELECT ?1 - since_ms FROM run JOIN watch USING (run_id)
WHERE run_id = ?2 AND {_IS_OPEN} AND mark = {_MARK}
"""  # noqa: S608 - constants only

_ROWS = (
    ("planned", "run_id = ?"),
    ("applied", "run_id = ?"),
    ("piece", "run_id = ?"),
    ("file", "work_id IN (SELECT work_id FROM work WHERE run_id = ?)"),
    ("export", "run_id = ?"),
    ("chunk", "run_id = ?"),
    ("owed_end", "run_id = ?"),
    ("run_shards", "run_id = ?"),
    ("external_piece", "run_id = ?"),
    ("external_total", "run_id = ?"),
    ("sender", "run_id = ?"),
)
"""What goes with a swept run, children before parents. The run, its works and its notices stay:
they are few, and whoever comes late is told that it is gone. Of notices that were sent, the bodies
go: these are as long as the run has pieces."""
_FORGET_DECLARATION = """
UPDATE opening SET declaration = json_object('kind', declaration ->> 'kind') WHERE run_id = ?
"""
_FORGET_BODIES = "UPDATE notice SET body = '{}' WHERE run_id = ? AND state = 'sent'"
"""One that waits or was given up is still to be sent."""


def _elapsed(connection: apsw.Connection) -> int:
    row = row_of(connection, "SELECT ms FROM elapsed WHERE name = 'delivery'")
    return row[0] if row else 0


class WatchPart(Part):
    """Fills `holdfast.store.watch_contract.WatchStore`."""

    def add_elapsed(self, fence: Fence, ms: int) -> int:
        """Add to the accumulated time; returns the sum."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            connection.execute(
                """INSERT INTO elapsed VALUES ('delivery', ?1)
                   ON CONFLICT DO UPDATE SET ms = ms + ?1""",
                (ms,),
            )
            return _elapsed(connection)

    def read_elapsed(self) -> int:
        """Return the accumulated time in milliseconds."""
        with self._database.reading() as connection:
            return _elapsed(connection)

    def watch_runs(
        self, fence: Fence, *, sweep_ms: int = 0, expire_ms: int | None = 0
    ) -> list[Watched]:
        """Look at every run that is not over, and remember since when it is as it is; and at those
        that are over and for which something is due.
        """
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            now_ms = _elapsed(connection)
            connection.execute(_SEE, (now_ms,))
            sql = f"{_WATCHED} AND run_id IN ({_DUE}) ORDER BY number"
            return _watched(connection, sql, now_ms, sweep_ms, expire_ms)

    def list_watched(self) -> list[Watched]:
        """Return every run that is not cleared, as it was last seen. Changes nothing."""
        with self._database.reading() as connection:
            return _watched(connection, f"{_WATCHED} ORDER BY number", _elapsed(connection))

    def read_idle(self) -> dict[RunId, int]:
        """Return for how many milliseconds nothing happened to each run that is not over."""
        with self._database.reading() as connection:
            return dict(rows_of(connection, _IDLE, _elapsed(connection)))

    def read_idle_of(self, run_id: RunId) -> int:
        """Return for how many milliseconds nothing happened to a run that is as it was seen."""
        with self._database.reading() as connection:
            row = row_of(connection, _IDLE_OF, _elapsed(connection), run_id)
        return row[0] if row else 0

    def count_uncleared(self) -> int:
        """Return of how many runs that are over something is to go now."""
        with self._database.reading() as connection:
            [(count,)] = rows_of(connection, f"SELECT COUNT(*) FROM ({_UNCLEARED})")  # noqa: S608 - constants only
            return int(count)

    def excuse_runs(self, fence: Fence, run_ids: Sequence[RunId]) -> None:
        """Let these runs count as if something happened to them now, if they are not over."""
        sql = f"""UPDATE watch SET since_ms = ? WHERE run_id = ?
                  AND run_id NOT IN (SELECT run_id FROM run WHERE state IN ({_ENDED}))"""  # noqa: S608 - constants only
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            now_ms = _elapsed(connection)
            connection.executemany(sql, ((now_ms, run_id) for run_id in run_ids))

    def abandon_run(self, fence: Fence, run_id: RunId, *, mark: str, error: str) -> bool:
        """Move a run to ABANDONED if it still is as `mark` says. False: something happened."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            run = lock_run(connection, run_id)
            if rows_of(connection, _RUN_MARK, run_id) != [(mark,)]:
                return False
            return move(
                connection,
                run_id,
                expected=run.state,
                to=RunState.ABANDONED,
                now_ms=self._clock.wall_ms(),
                error=error,
            )

    def forget_queues(self, fence: Fence, run_id: RunId, topics: tuple[str, ...] = ()) -> None:
        """Record that a run's queues are gone, and drop these topics of the embedded log."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            for topic in topics:
                drop_topic(connection, topic)
            connection.execute("UPDATE watch SET has_queues = 0 WHERE run_id = ?", (run_id,))

    def clear_run(self, fence: Fence, run_id: RunId, *, uploads: str) -> None:
        """Delete the rows of a SWEPT run whose bytes are gone; the run itself stays."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            require_state(lock_run(connection, run_id), RunState.SWEPT)
            for table, condition in _ROWS:
                sql = f"DELETE FROM {table} WHERE {condition}"  # noqa: S608 - constants only
                connection.execute(sql, (run_id,))
            connection.execute(_FORGET_DECLARATION, (run_id,))
            connection.execute(_FORGET_BODIES, (run_id,))
            connection.execute("DELETE FROM condemned WHERE blob GLOB ? || '*'", (uploads,))
            connection.execute("UPDATE watch SET is_cleared = 1 WHERE run_id = ?", (run_id,))


def _watched(connection: apsw.Connection, sql: str, *values: int | None) -> list[Watched]:
    return [
        Watched(run_from(tuple(run)), mark, idle_ms, bool(has_queues))
        for mark, idle_ms, has_queues, *run in rows_of(connection, sql, *values)
    ]
