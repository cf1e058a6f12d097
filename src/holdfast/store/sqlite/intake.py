"""Runs, chunks and ENDs coming in; blobs condemned.

A chunk's row alone binds its bytes to the run. Its reference is appended in the same transaction,
so a chunk is bound and announced, or neither. What its client may have is compared there too, with
what was counted as rows came: before, any number of uploads may have seen the same room. Tables
that a segment produces take nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import apsw

from holdfast._base.ids import RunId
from holdfast._base.invariant import invariant
from holdfast.config import Config
from holdfast.errors import InvariantViolated
from holdfast.log.contract import Record
from holdfast.store.client_rows import Quotas
from holdfast.store.contract import (
    ENGINE_GROUP,
    BarrierRule,
    ChunkRule,
    EndRule,
    ingress_topic,
)
from holdfast.store.references import reference_to
from holdfast.store.rows import (
    Chunk,
    ChunkFacts,
    ChunkKind,
    End,
    EndFacts,
    Fence,
    NewRun,
    Run,
    RunState,
    SenderDecl,
    Taken,
)
from holdfast.store.sqlite.barrier import highest_ordinal, look_at_barrier
from holdfast.store.sqlite.base import (
    CHUNK_COLUMNS,
    Part,
    canonical,
    chunk_from,
    hold_fence,
    insert_chunks,
    lock_run,
    require_state,
    row_of,
    rows_of,
)
from holdfast.store.sqlite.forwards import owe
from holdfast.store.sqlite.topics import append, know_group, make_topic

_ONE_CHUNK = f"""
SELECT {CHUNK_COLUMNS} FROM chunk WHERE run_id = ? AND tbl = ? AND sender = ? AND ordinal = ?
"""  # noqa: S608 - constants only
_UNBOUND = """
SELECT value FROM json_each(?) WHERE NOT EXISTS (
    SELECT 1 FROM chunk WHERE location = value AND kind = 'blob') ORDER BY key
"""
_ONE_HEADER = "SELECT header FROM chunk WHERE run_id = ? AND tbl = ? LIMIT 1"


def sender_of(
    connection: apsw.Connection, run_id: RunId, *, table: str, sender: str
) -> tuple[SenderDecl, int | None] | None:
    """Return the declaration that lets a client send to a table, and the count announced."""
    row = row_of(
        connection,
        """SELECT segment, whole, announced FROM sender
           WHERE run_id = ? AND tbl = ? AND sender = ? AND NOT produced""",
        run_id,
        table,
        sender,
    )
    if row is None:
        return None
    segment, whole, announced = row
    return SenderDecl(table, sender, segment, whole=bool(whole)), announced


def _declared(known: tuple[SenderDecl, int | None] | None, table: str) -> SenderDecl:
    if known is None:
        raise InvariantViolated(what=f"a sender of table {table} that no run declares was accepted")
    return known[0]


def _stored_chunk(connection: apsw.Connection, run_id: RunId, chunk: Chunk) -> Chunk | None:
    row = row_of(connection, _ONE_CHUNK, run_id, chunk.table, chunk.sender, chunk.ordinal)
    return chunk_from(row) if row else None


def _is_condemned(connection: apsw.Connection, chunk: Chunk) -> bool:
    if chunk.kind is not ChunkKind.BLOB:
        return False
    sql = "SELECT 1 FROM condemned WHERE blob = ?"
    return row_of(connection, sql, chunk.location) is not None


def _header_of(connection: apsw.Connection, run_id: RunId, table: str) -> str:
    """Return the header of one chunk of a table: each was compared with one before it."""
    row = row_of(connection, _ONE_HEADER, run_id, table)
    return row[0] if row else ""


def chunk_facts(
    connection: apsw.Connection,
    run: Run,
    chunk: Chunk,
    known: tuple[SenderDecl, int | None] | None,
) -> ChunkFacts:
    """Return what a rule may look at before it accepts a chunk."""
    return ChunkFacts(
        run_id=run.run_id,
        state=run.state,
        declared=known is not None,
        announced=known[1] if known else None,
        stored=_stored_chunk(connection, run.run_id, chunk),
        condemned=_is_condemned(connection, chunk),
        header=_header_of(connection, run.run_id, chunk.table),
    )


def run_chunks_of(connection: apsw.Connection, run_id: RunId) -> int:
    """Return how many chunks of a run are bound."""
    sql = "SELECT COALESCE(SUM(received_count), 0) FROM sender WHERE run_id = ?"
    [(count,)] = rows_of(connection, sql, run_id)
    return int(count)


def stored_bytes_of(connection: apsw.Connection, client: str) -> int:
    """Return the bytes of a client's chunks in all of its runs that are not swept."""
    row = row_of(connection, "SELECT bytes FROM kept WHERE client = ?", client)
    return row[0] if row else 0


def _taken(connection: apsw.Connection, run: Run, config: Config) -> Taken | None:
    """Return what the client of a run takes. None: nobody made it known, so it has no quotas."""
    row = row_of(connection, "SELECT quotas FROM client WHERE client = ?", run.client)
    if row is None:
        return None
    quotas = Quotas(**json.loads(row[0]))
    return Taken(
        run_chunks=run_chunks_of(connection, run.run_id),
        run_chunks_max=quotas.run_chunks or config.client_run_chunks,
        stored_bytes=stored_bytes_of(connection, run.client),
        stored_bytes_max=quotas.stored_bytes or config.client_stored_bytes,
    )


def _bind(
    connection: apsw.Connection, run_id: RunId, bound: Sequence[tuple[Chunk, SenderDecl]]
) -> None:
    """Bind chunks in the order given: rows, then references, or applied at once (whole tables)."""
    insert_chunks(connection, run_id, [chunk for chunk, _ in bound])
    connection.executemany(
        "INSERT INTO applied VALUES (?, ?, ?, ?, ?, NULL)",
        (
            (run_id, declared.segment, chunk.table, chunk.sender, chunk.ordinal)
            for chunk, declared in bound
            if declared.whole
        ),
    )
    references: dict[int, list[Record]] = {}
    for chunk, declared in bound:
        if not declared.whole:
            references.setdefault(declared.segment, []).append(reference_to(run_id, chunk))
    for segment, records in references.items():
        append(connection, ingress_topic(run_id, segment), 0, records)


def _announce(connection: apsw.Connection, run_id: RunId, end: End) -> None:
    """Record an END, once: a second one would replace what a barrier may have been passed on."""
    connection.execute(
        """UPDATE sender SET announced = ? WHERE run_id = ? AND tbl = ? AND sender = ?
           AND announced IS NULL AND NOT produced""",
        (end.count, run_id, end.table, end.sender),
    )
    what = f"END of table {end.table}, sender {end.sender} is recorded already or not declared"
    invariant(connection.changes() == 1, what)


def _open_external(connection: apsw.Connection, run: NewRun) -> None:
    """Make a run external. Nobody plans its chunks: they are applied when they are bound.

    A run without inputs has passed its barrier before anything is sent.
    """
    what = f"table of the external run {run.run_id} that is not whole"
    invariant(all(declared.whole for declared in run.senders), what)
    connection.execute(
        "INSERT INTO external (run_id, producer) VALUES (?, ?)", (run.run_id, run.producer)
    )
    if not run.senders:
        opened = lock_run(connection, run.run_id)
        look_at_barrier(connection, opened, 1, lambda some: not some, now_ms=run.created_ms)


def insert_run(connection: apsw.Connection, run: NewRun) -> bool:
    """Insert a run in state OPEN, its senders and its ingress topics. False: it exists."""
    connection.execute(
        """INSERT INTO run (run_id, client, pipeline, fingerprint, segments, state,
                            created_ms, updated_ms)
           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) ON CONFLICT (run_id) DO NOTHING""",
        (
            run.run_id,
            run.client,
            run.pipeline,
            canonical(run.fingerprint),
            run.segments,
            RunState.OPEN,
            run.created_ms,
        ),
    )
    if connection.changes() == 0:
        return False
    for position, declared in enumerate(run.senders, start=1):
        invariant(
            declared.segment <= run.segments,
            f"table {declared.table} is of segment {declared.segment} of {run.segments}",
        )
        connection.execute(
            """INSERT INTO sender (run_id, tbl, sender, position, segment, whole, produced)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (
                run.run_id,
                declared.table,
                declared.sender,
                position,
                declared.segment,
                declared.whole,
                declared.produced,
            ),
        )
    for segment in range(1, run.segments + 1):
        topic = ingress_topic(run.run_id, segment)
        make_topic(connection, topic, 1)
        know_group(connection, topic, ENGINE_GROUP)
    if run.producer:
        _open_external(connection, run)
    return True


class IntakePart(Part):
    """Fills `holdfast.store.contract.IntakeStore`."""

    def create_run(self, run: NewRun) -> bool:
        """Create a run in state OPEN, its senders, and its ingress topics."""
        with self._database.transaction() as connection:
            return insert_run(connection, run)

    def bind_inputs(
        self,
        fence: Fence,
        run_id: RunId,
        chunks: Sequence[Chunk],
        ends: Sequence[End],
        barrier: BarrierRule,
    ) -> bool:
        """Bind a complete listing: all chunks, their references in the log, all ENDs."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            run = lock_run(connection, run_id)
            connection.execute(
                "UPDATE run SET inputs_bound = 1 WHERE run_id = ? AND inputs_bound = 0", (run_id,)
            )
            if connection.changes() == 0:
                return False
            require_state(run, RunState.OPEN)
            senders = {
                (table, sender): _declared(
                    sender_of(connection, run_id, table=table, sender=sender), table
                )
                for table, sender in {(chunk.table, chunk.sender) for chunk in chunks}
            }
            bound = [(chunk, senders[chunk.table, chunk.sender]) for chunk in chunks]
            _bind(connection, run_id, bound)
            for end in ends:
                _announce(connection, run_id, end)
            look_at_barrier(connection, run, 1, barrier, now_ms=self._clock.wall_ms())
        return True

    def bind_chunk(
        self, run_id: RunId, chunk: Chunk, rule: ChunkRule, barrier: BarrierRule | None = None
    ) -> bool:
        """Bind one chunk and append its reference to its segment's topic, if `rule` says so."""
        with self._database.transaction() as connection:
            run = lock_run(connection, run_id)
            known = sender_of(connection, run_id, table=chunk.table, sender=chunk.sender)
            facts = chunk_facts(connection, run, chunk, known)
            facts = replace(facts, taken=_taken(connection, run, self._config))
            if not rule(chunk, facts):
                return False
            require_state(run, RunState.OPEN)
            invariant(not facts.condemned, f"a rule bound the condemned blob {chunk.location}")
            declared = _declared(known, chunk.table)
            _bind(connection, run_id, [(chunk, declared)])
            if declared.whole and barrier is not None:
                now_ms = self._clock.wall_ms()
                look_at_barrier(connection, run, declared.segment, barrier, now_ms=now_ms)
        return True

    def record_end(
        self, run_id: RunId, end: End, rule: EndRule, barrier: BarrierRule, *, owed: bool = False
    ) -> bool:
        """Record a sender's END, if `rule` says so, and look at the barrier."""
        with self._database.transaction() as connection:
            run = lock_run(connection, run_id)
            known = sender_of(connection, run_id, table=end.table, sender=end.sender)
            facts = EndFacts(
                run_id=run_id,
                state=run.state,
                declared=known is not None,
                announced=known[1] if known else None,
                highest=highest_ordinal(connection, run_id, table=end.table, sender=end.sender),
            )
            is_new = rule(end, facts)
            if owed:
                owe(connection, run_id, end)
            if not is_new:
                return False
            require_state(run, RunState.OPEN)
            segment = _declared(known, end.table).segment
            _announce(connection, run_id, end)
            look_at_barrier(connection, run, segment, barrier, now_ms=self._clock.wall_ms())
        return True

    def condemn_blob(self, blob: str) -> bool:
        """Condemn a blob that no chunk row binds. False: a row binds it, it must stay."""
        with self._database.transaction() as connection:
            sql = "SELECT 1 FROM chunk WHERE location = ? AND kind = 'blob'"
            if row_of(connection, sql, blob) is not None:
                return False
            connection.execute("INSERT INTO condemned VALUES (?) ON CONFLICT DO NOTHING", (blob,))
        return True

    def list_unbound(self, blobs: Sequence[str]) -> list[str]:
        """Return those of these blobs that no chunk row binds, in their order."""
        with self._database.reading() as connection:
            rows = rows_of(connection, _UNBOUND, json.dumps(list(blobs)))
        return [name for (name,) in rows]

    def forget_condemned(self, blob: str) -> None:
        """Drop the mark of a condemned blob whose bytes are gone."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM condemned WHERE blob = ?", (blob,))
