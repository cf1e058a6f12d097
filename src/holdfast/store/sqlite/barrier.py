"""Progress of senders, and the barrier: the moment the inputs of a segment are complete.

Used inside a transaction, on facts read in it. The sets of ordinals are made by SQL as ranges:
never as a Python set of all of them. The barrier's are made of the rows; but first of all the
counts kept with each sender say whether it can hold now, because a look at all rows by every chunk
would make others wait.
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
_HIGHEST_RECEIVED = "SELECT MAX(ordinal) FROM chunk WHERE run_id = ? AND tbl = ? AND sender = ?"
_HIGHEST_APPLIED = """
SELECT MAX(ordinal) FROM applied WHERE run_id = ? AND tbl = ? AND sender = ? AND segment = ?
"""
_UNEVEN = """
SELECT 1 FROM sender WHERE run_id = ? AND segment = ? AND announced IS NOT applied_count LIMIT 1
"""


def _intervals(rows: list[tuple[Any, ...]]) -> Intervals:
    return Intervals(tuple((low, high) for low, high in rows))


def highest_ordinal(connection: apsw.Connection, run_id: RunId, *, table: str, sender: str) -> int:
    """Return the highest ordinal of the chunks that are bound, or 0."""
    [(highest,)] = rows_of(connection, _HIGHEST_RECEIVED, run_id, table, sender)
    return highest or 0


def without_gap(connection: apsw.Connection, count: int, highest: str, *key: object) -> bool:
    """Tell whether `count` rows, whose ordinals are positive and differ, are 1..count.

    `highest` is the question for the highest ordinal among them.
    """
    [(found,)] = rows_of(connection, highest, *key)
    return count == (found or 0)


def progress_of(connection: apsw.Connection, run_id: RunId) -> list[SenderProgress]:
    """Return how far each sender is, in the order of declaration. Ranges without a gap are cheap:
    what was counted is compared with the highest ordinal.
    """
    return _progress(connection, run_id, None, by_rows=False)


def _progress(
    connection: apsw.Connection, run_id: RunId, segment: int | None, *, by_rows: bool
) -> list[SenderProgress]:
    senders = rows_of(
        connection,
        """SELECT tbl, sender, segment, whole, announced, produced, received_count, applied_count
           FROM sender
           WHERE run_id = ?1 AND (?2 IS NULL OR segment = ?2) ORDER BY position""",
        run_id,
        segment,
    )

    def ordinals(count: int, highest: str, ranges: str, *key: object) -> Intervals:
        if not by_rows and without_gap(connection, count, highest, *key):
            return Intervals.first(count)
        return _intervals(rows_of(connection, ranges, *key))

    return [
        SenderProgress(
            table=table,
            sender=sender,
            segment=its_segment,
            whole=bool(whole),
            announced=announced,
            received=ordinals(received, _HIGHEST_RECEIVED, _RECEIVED, run_id, table, sender),
            applied=ordinals(
                applied, _HIGHEST_APPLIED, _APPLIED, run_id, table, sender, its_segment
            ),
            produced=bool(produced),
        )
        for table, sender, its_segment, whole, announced, produced, received, applied in senders
    ]


def barriers_of(connection: apsw.Connection, run_id: RunId) -> list[int]:
    """Return the segments whose barrier has been passed, in order."""
    sql = "SELECT segment FROM barrier WHERE run_id = ? ORDER BY segment"
    return [segment for (segment,) in rows_of(connection, sql, run_id)]


def _holds(connection: apsw.Connection, run_id: RunId, segment: int, rule: BarrierRule) -> bool:
    """Ask `rule`, once every sender's count is what it announced: before, no set can be equal."""
    if rows_of(connection, _UNEVEN, run_id, segment):
        return False
    return rule(_progress(connection, run_id, segment, by_rows=True))


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
    while segment <= run.segments and _holds(connection, run.run_id, segment, rule):
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
