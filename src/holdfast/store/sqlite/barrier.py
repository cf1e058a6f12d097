"""Progress of senders, and the barrier: the moment the inputs of a segment are complete.

Used inside a transaction, on facts read in it. The sets of ordinals are made by SQL as ranges:
never as a Python set of all of them.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast._base.ids import RunId
from holdfast._base.intervals import Intervals
from holdfast._base.invariant import invariant
from holdfast.store.contract import BarrierRule
from holdfast.store.rows import Run, RunState, SenderProgress
from holdfast.store.sqlite.base import rows_of
from holdfast.store.sqlite.moves import move

# Gaps and islands: within an unbroken run of ordinals, ordinal minus row number stays the same.
_RECEIVED = """
SELECT MIN(ordinal), MAX(ordinal) FROM (
    SELECT ordinal, ordinal - ROW_NUMBER() OVER (ORDER BY ordinal) AS island
    FROM chunk WHERE run_id = ? AND tbl = ? AND sender = ?)
GROUP BY island ORDER BY 1
"""
_APPLIED = """
SELECT MIN(ordinal), MAX(ordinal) FROM (
    SELECT ordinal, ordinal - ROW_NUMBER() OVER (ORDER BY ordinal) AS island
    FROM applied WHERE run_id = ? AND tbl = ? AND sender = ? AND segment = ?)
GROUP BY island ORDER BY 1
"""


def _intervals(rows: list[tuple[Any, ...]]) -> Intervals:
    return Intervals(tuple((low, high) for low, high in rows))


def received_ordinals(
    connection: apsw.Connection, run_id: RunId, *, table: str, sender: str
) -> Intervals:
    """Return the ordinals of the chunks that are bound."""
    return _intervals(rows_of(connection, _RECEIVED, run_id, table, sender))


def progress_of(
    connection: apsw.Connection, run_id: RunId, segment: int | None = None
) -> list[SenderProgress]:
    """Return how far each sender is, of one segment or of all, in the order of declaration."""
    senders = rows_of(
        connection,
        """SELECT tbl, sender, segment, whole, announced, produced FROM sender
           WHERE run_id = ?1 AND (?2 IS NULL OR segment = ?2) ORDER BY position""",
        run_id,
        segment,
    )
    return [
        SenderProgress(
            table=table,
            sender=sender,
            segment=its_segment,
            whole=bool(whole),
            announced=announced,
            received=received_ordinals(connection, run_id, table=table, sender=sender),
            applied=_intervals(rows_of(connection, _APPLIED, run_id, table, sender, its_segment)),
            produced=bool(produced),
        )
        for table, sender, its_segment, whole, announced, produced in senders
    ]


def barriers_of(connection: apsw.Connection, run_id: RunId) -> list[int]:
    """Return the segments whose barrier has been passed, in order."""
    sql = "SELECT segment FROM barrier WHERE run_id = ? ORDER BY segment"
    return [segment for (segment,) in rows_of(connection, sql, run_id)]


def look_at_barrier(
    connection: apsw.Connection, run: Run, segment: int, rule: BarrierRule, *, now_ms: int
) -> None:
    """Pass the barrier of `segment`, and of those behind it, as far as `rule` holds.

    Barriers are passed in the order of segments: a segment is complete only if the one that
    produces its input is. The last one moves the run from OPEN to FORWARDING.
    """
    passed = len(barriers_of(connection, run.run_id))
    if segment != passed + 1:
        return
    while segment <= run.segments and rule(progress_of(connection, run.run_id, segment)):
        connection.execute("INSERT INTO barrier VALUES (?, ?)", (run.run_id, segment))
        connection.execute(
            """UPDATE sender SET announced = (
                   SELECT COUNT(*) FROM work
                   WHERE run_id = ?1 AND segment = ?2 AND committed_attempt IS NOT NULL)
               WHERE run_id = ?1 AND segment = ?2 + 1 AND produced""",
            (run.run_id, segment),
        )
        segment += 1
    if segment > run.segments:
        moved = move(
            connection,
            run.run_id,
            expected=RunState.OPEN,
            to=RunState.FORWARDING,
            now_ms=now_ms,
        )
        invariant(moved, f"run {run.run_id} passed its last barrier while it was {run.state}")
