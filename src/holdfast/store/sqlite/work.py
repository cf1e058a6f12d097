"""Plans, attempts and commits.

Exactly-once rests on two primary keys: a chunk is in one plan (`planned`), and is applied once
(`applied`). The fence comes before them, so that a former owner stops with a name for it.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast._base.ids import BatchId, Offset, Ordinal, RunId, digest
from holdfast._base.invariant import invariant
from holdfast.errors import InvariantViolated
from holdfast.store.contract import ENGINE_GROUP, BarrierRule, ingress_topic
from holdfast.store.references import reference_to
from holdfast.store.rows import (
    Chunk,
    ChunkKind,
    Commit,
    Fence,
    File,
    Plan,
    ReadyRun,
    Run,
    RunState,
    Work,
    WorkKind,
)
from holdfast.store.sqlite.barrier import look_at_barrier
from holdfast.store.sqlite.base import (
    CHUNK_COLUMNS,
    FILE_COLUMNS,
    Part,
    canonical,
    chunk_from,
    file_from,
    files_of,
    hold_fence,
    insert_chunks,
    lock_run,
    require_state,
    row_of,
    rows_of,
)
from holdfast.store.sqlite.moves import move
from holdfast.store.sqlite.topics import append, set_offset

_WORKS = """
SELECT work_id, run_id, kind, segment, name, number, topic_offset, committed_attempt IS NOT NULL,
    pieces,
    (SELECT COUNT(*) FROM attempt WHERE attempt.work_id = work.work_id),
    (SELECT COUNT(*) FROM attempt WHERE attempt.work_id = work.work_id AND outcome = 'failed'),
    (SELECT COUNT(*) FROM attempt WHERE attempt.work_id = work.work_id AND lost),
    (SELECT error FROM attempt WHERE attempt.work_id = work.work_id AND outcome = 'failed'
     ORDER BY attempt DESC LIMIT 1)
FROM work
"""
_ONE_WORK = f"{_WORKS} WHERE work_id = ?"
_RUN_WORKS = f"{_WORKS} WHERE run_id = ? ORDER BY kind = 'series', segment, number"
_PLANNED = f"""
SELECT {CHUNK_COLUMNS} FROM planned JOIN chunk USING (run_id, tbl, sender, ordinal)
WHERE work_id = ? ORDER BY position
"""  # noqa: S608 - constants only
_MANIFEST = f"""
SELECT {FILE_COLUMNS} FROM work JOIN file USING (work_id)
WHERE run_id = ? AND output = ? AND kind = 'batch' ORDER BY segment, number, position
"""  # noqa: S608 - constants only
_READY = """
SELECT run_id, run.client, COALESCE(weight, 1), CASE state WHEN 'OPEN' THEN 0 ELSE (
    SELECT COALESCE(SUM(stored_bytes), 0) FROM sender WHERE sender.run_id = run.run_id) END
FROM run LEFT JOIN client ON client.client = run.client
WHERE state IN ('OPEN', 'FORWARDING', 'RECEIVING') AND run.client <> ''
AND NOT EXISTS (SELECT 1 FROM external WHERE external.run_id = run.run_id)
AND (state <> 'OPEN'
    OR EXISTS (
        SELECT 1 FROM work WHERE work.run_id = run.run_id AND committed_attempt IS NULL)
    OR EXISTS (
        SELECT 1 FROM topic JOIN shard USING (topic_id)
        LEFT JOIN group_offset ON group_offset.shard_id = shard.shard_id AND grp = ?
        WHERE topic.name > 'run/' || run_id || '/segment-'
        AND topic.name < 'run/' || run_id || '/segment-:'
        AND shard.next_offset > COALESCE(group_offset.next_offset, 0)))
ORDER BY number
"""
"""The topics of a run are a range of names (`ingress_topic`): a colon comes after all digits."""


def _work_from(connection: apsw.Connection, row: tuple[Any, ...]) -> Work:
    work_id, run_id, kind, segment, name, number, offset, committed, pieces, *tried = row
    attempts, failed, lost, error = tried
    chunks = tuple(chunk_from(chunk) for chunk in rows_of(connection, _PLANNED, work_id))
    plan = Plan(work_id, run_id, WorkKind(kind), segment, name, chunks, Offset(offset))
    return Work(plan, number, bool(committed), attempts, failed, error, pieces, lost)


def _find_work(connection: apsw.Connection, work_id: BatchId) -> Work | None:
    row = row_of(connection, _ONE_WORK, work_id)
    return _work_from(connection, row) if row else None


def _get_work(connection: apsw.Connection, work_id: BatchId) -> Work:
    work = _find_work(connection, work_id)
    if work is None:
        raise InvariantViolated(what=f"work {work_id} was never planned")
    return work


def _require_workable(run: Run, kind: WorkKind) -> None:
    if kind is WorkKind.BATCH:
        require_state(run, RunState.OPEN)
    else:
        require_state(run, RunState.FORWARDING, RunState.RECEIVING)


def _insert_plan(connection: apsw.Connection, plan: Plan) -> None:
    connection.execute(
        """INSERT INTO work (work_id, run_id, kind, segment, name, number, topic_offset)
           SELECT ?1, ?2, ?3, ?4, ?5, COALESCE(MAX(number), 0) + 1, ?6
           FROM work WHERE run_id = ?2 AND segment = ?4""",
        (plan.work_id, plan.run_id, plan.kind, plan.segment, plan.name, plan.offset),
    )
    for position, chunk in enumerate(plan.chunks, start=1):
        connection.execute(
            """INSERT INTO planned SELECT run_id, segment, tbl, sender, ordinal, ?, ?
               FROM chunk JOIN sender USING (run_id, tbl, sender)
               WHERE run_id = ? AND segment = ? AND NOT whole
               AND tbl = ? AND sender = ? AND ordinal = ?""",
            (
                plan.work_id,
                position,
                plan.run_id,
                plan.segment,
                chunk.table,
                chunk.sender,
                chunk.ordinal,
            ),
        )
        what = f"chunk {chunk.ordinal} of table {chunk.table} is not bound to {plan.segment}"
        invariant(connection.changes() == 1, what)


def _record_files(connection: apsw.Connection, commit: Commit) -> None:
    connection.executemany(
        "INSERT INTO file VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (commit.work_id, position, file.output, file.path, file.size, file.checksum, file.rows)
            for position, file in enumerate(commit.files, start=1)
        ),
    )


def _pass_on(connection: apsw.Connection, run: Run, work: Work, commit: Commit) -> None:
    """Make each durable output one chunk of the next segment, and append its reference."""
    for table in commit.durable_tables:
        files = [file for file in commit.files if file.output == table]
        chunk = Chunk(
            table=table,
            sender="",
            ordinal=Ordinal(work.number),
            kind=ChunkKind.FILES,
            location=commit.work_id,
            size=sum(file.size for file in files),
            checksum=digest(*(part for file in files for part in (file.path, file.checksum))),
            format="parquet",
        )
        insert_chunks(connection, run.run_id, [chunk])
        topic = ingress_topic(run.run_id, work.plan.segment + 1)
        append(connection, topic, 0, [reference_to(run.run_id, chunk)])


def _append_pieces(connection: apsw.Connection, work: Work, commit: Commit) -> None:
    """Give each file of a result the next ordinal of its series; provisional until DONE."""
    connection.executemany(
        """INSERT INTO piece SELECT ?1, ?2, COALESCE(MAX(ordinal), 0) + 1, ?3, ?4, 0
           FROM piece WHERE run_id = ?1 AND series = ?2""",
        (
            (work.plan.run_id, file.output, commit.work_id, position)
            for position, file in enumerate(commit.files, start=1)
            if file.output in commit.piece_outputs
        ),
    )


def _mark_committed(connection: apsw.Connection, commit: Commit) -> None:
    connection.execute(
        """UPDATE attempt SET outcome = 'committed'
           WHERE work_id = ? AND attempt = ? AND outcome = 'started'""",
        (commit.work_id, commit.attempt),
    )
    what = f"attempt {commit.attempt} of work {commit.work_id} is not under way"
    invariant(connection.changes() == 1, what)
    connection.execute(
        """UPDATE work SET committed_attempt = ?, series_columns = ?, pieces = ?,
                          rows_read = ?, bad_rows = ?
           WHERE work_id = ? AND committed_attempt IS NULL""",
        (
            commit.attempt,
            canonical(list(commit.columns)),
            sum(file.output in commit.piece_outputs for file in commit.files),
            commit.rows_read,
            commit.bad_rows,
            commit.work_id,
        ),
    )
    invariant(connection.changes() == 1, f"work {commit.work_id} is committed already")


def _advance_results(connection: apsw.Connection, run: Run, *, now_ms: int) -> None:
    """Move the run on after a committed series: the first, and the one that leaves none open."""
    move(
        connection,
        run.run_id,
        expected=RunState.FORWARDING,
        to=RunState.RECEIVING,
        now_ms=now_ms,
    )
    open_series = row_of(
        connection,
        """SELECT 1 FROM work
           WHERE run_id = ? AND kind = 'series' AND committed_attempt IS NULL""",
        run.run_id,
    )
    if open_series is None:
        move(
            connection,
            run.run_id,
            expected=RunState.RECEIVING,
            to=RunState.COMPLETING,
            now_ms=now_ms,
        )


class WorkPart(Part):
    """Fills `holdfast.store.contract.WorkStore`."""

    def persist_plan(self, fence: Fence, plan: Plan) -> Work:
        """Persist a plan, and move the topic's offset to `plan.offset`, as one."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            run = lock_run(connection, plan.run_id)
            stored = _find_work(connection, plan.work_id)
            if stored is not None:
                return stored
            _require_workable(run, plan.kind)
            is_batch = plan.kind is WorkKind.BATCH
            # Without this, a work without chunks could be open when its segment's barrier passes.
            invariant(
                is_batch == bool(plan.chunks), f"a {plan.kind} with {len(plan.chunks)} chunks"
            )
            _insert_plan(connection, plan)
            if is_batch:
                topic = ingress_topic(plan.run_id, plan.segment)
                set_offset(connection, topic, 0, ENGINE_GROUP, plan.offset)
            return _get_work(connection, plan.work_id)

    def start_attempt(self, fence: Fence, work_id: BatchId) -> int:
        """Count an attempt before it begins; returns its number, from 1."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            work = _get_work(connection, work_id)
            _require_workable(lock_run(connection, work.plan.run_id), work.plan.kind)
            invariant(not work.committed, f"work {work_id} is committed already")
            attempt = work.attempts + 1
            connection.execute(
                "INSERT INTO attempt (work_id, attempt, outcome) VALUES (?, ?, 'started')",
                (work_id, attempt),
            )
        return attempt

    def fail_attempt(
        self, fence: Fence, work_id: BatchId, attempt: int, error: str, *, lost: bool = False
    ) -> Work:
        """Record that an attempt failed; returns the work, with how many of its attempts failed."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            connection.execute(
                """UPDATE attempt SET outcome = 'failed', error = ?, lost = ?
                   WHERE work_id = ? AND attempt = ? AND outcome <> 'committed'""",
                (error, int(lost), work_id, attempt),
            )
            what = f"attempt {attempt} of work {work_id} is committed, or never began"
            invariant(connection.changes() == 1, what)
            return _get_work(connection, work_id)

    def commit_work(self, fence: Fence, commit: Commit, barrier: BarrierRule) -> None:
        """Make an attempt's outcome visible, as one transaction; steps as in the contract."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            work = _get_work(connection, commit.work_id)
            run = lock_run(connection, work.plan.run_id)
            invariant(not work.committed, f"work {commit.work_id} is committed already")
            _require_workable(run, work.plan.kind)
            _mark_committed(connection, commit)
            connection.execute(
                """INSERT INTO applied SELECT run_id, segment, tbl, sender, ordinal, work_id
                   FROM planned WHERE work_id = ?""",
                (commit.work_id,),
            )
            _record_files(connection, commit)
            _pass_on(connection, run, work, commit)
            _append_pieces(connection, work, commit)
            now_ms = self._clock.wall_ms()
            if work.plan.kind is WorkKind.BATCH:
                look_at_barrier(connection, run, work.plan.segment, barrier, now_ms=now_ms)
            else:
                _advance_results(connection, run, now_ms=now_ms)

    def list_ready(self) -> list[ReadyRun]:
        """Return the runs on Spark of all clients that have something to be done, oldest first."""
        with self._database.reading() as connection:
            return [ReadyRun(*row) for row in rows_of(connection, _READY, ENGINE_GROUP)]

    def list_work(self, run_id: RunId, *, committed: bool | None = None) -> list[Work]:
        """Return a run's works in the order (segment, number), series last, with their chunks."""
        with self._database.reading() as connection:
            return [
                _work_from(connection, row)
                for row in rows_of(connection, _RUN_WORKS, run_id)
                if committed is None or bool(row[7]) is committed
            ]

    def read_manifest(self, run_id: RunId, output: str) -> list[File]:
        """Return the files of one output of all committed batches, in (segment, number) order."""
        with self._database.reading() as connection:
            return [file_from(row) for row in rows_of(connection, _MANIFEST, run_id, output)]

    def read_work_files(self, work_id: BatchId) -> list[File]:
        """Return the manifest of one committed work, in the order of the commit."""
        with self._database.reading() as connection:
            return files_of(connection, work_id)
