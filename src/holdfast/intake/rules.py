"""What intake accepts, acknowledges again, or refuses. Pure; run inside the transaction.

| the chunk or END | then |
| --- | --- |
| is new, and fits what is known | accepted |
| is there already, the same | acknowledged again, also after completion |
| is there already, another checksum or count | refused, both values named, the run unchanged |
| lies beyond the announced count, or END below a received ordinal | refused likewise |
| has other columns than the table's first chunk, where none are declared | refused likewise |
| comes for a run that takes nothing more | refused: gone |
| is one too many of its run, or too large for what its client may keep | refused |
"""

from __future__ import annotations

from holdfast.errors import (
    ChunkConflict,
    DocumentRefused,
    EndConflict,
    RunGone,
    UploadSwept,
    UsageInvalid,
)
from holdfast.intake.limits import check_taken
from holdfast.store.rows import Chunk, ChunkFacts, End, EndFacts, RunState


def accept_chunk(chunk: Chunk, facts: ChunkFacts) -> bool:
    """Say whether to bind a chunk (True) or to acknowledge it again (False).

    Raises:
        ChunkConflict: it contradicts what is known.
        DocumentRefused: its columns are not those of the table's chunks that are there.
        QuotaReached: its client has as much as it may have, whatever was known before the upload.
        RunGone: the run is swept, or finished and the chunk is new.
        UploadSwept: the uploaded blob was condemned.
        UsageInvalid: the run declares no such sender.
    """
    if facts.state == RunState.SWEPT:
        raise RunGone(run=facts.run_id, state=facts.state)
    _check_declared(chunk.table, chunk.sender, facts.declared)
    if facts.stored is not None:
        if facts.stored.checksum != chunk.checksum:
            raise _conflict(chunk, "other bytes", facts.stored.checksum, chunk.checksum)
        return False
    if facts.state != RunState.OPEN:
        raise RunGone(run=facts.run_id, state=facts.state)
    if chunk.ordinal < 1:
        raise _conflict(chunk, "ordinals count from 1", "1", str(chunk.ordinal))
    if facts.announced is not None and chunk.ordinal > facts.announced:
        what = "beyond the announced count"
        raise _conflict(chunk, what, str(facts.announced), str(chunk.ordinal))
    if facts.condemned:
        raise UploadSwept(table=chunk.table, ordinal=chunk.ordinal)
    if chunk.header and facts.header and chunk.header != facts.header:
        raise DocumentRefused(
            table=chunk.table,
            ordinal=chunk.ordinal,
            what=f"its columns are {chunk.header}; those of the table's chunks are {facts.header}",
            remedy="Send the same columns and types in every chunk, or declare the table's schema.",
        )
    if facts.taken is not None:
        check_taken(facts.taken, chunk.size)
    return True


def accept_end(end: End, facts: EndFacts) -> bool:
    """Say whether to record an END (True) or to acknowledge it again (False).

    Raises:
        EndConflict: another count was announced, or a received ordinal is beyond this one.
        RunGone: the run is swept, or finished without this END.
        UsageInvalid: the run declares no such sender.
    """
    if facts.state == RunState.SWEPT:
        raise RunGone(run=facts.run_id, state=facts.state)
    _check_declared(end.table, end.sender, facts.declared)
    if facts.announced is not None:
        if facts.announced != end.count:
            raise _end_conflict(end, "another count was announced", facts.announced)
        return False
    if facts.state != RunState.OPEN:
        raise RunGone(run=facts.run_id, state=facts.state)
    if end.count < 0:
        raise _end_conflict(end, "a count cannot be negative", 0)
    if facts.highest > end.count:
        raise _end_conflict(end, "a chunk beyond this count was received", facts.highest)
    return True


def _check_declared(table: str, sender: str, declared: bool) -> None:
    if not declared:
        what = f"the run has no sender {sender!r} of a table {table!r}"
        raise UsageInvalid(what=what, remedy="Declare it when the run is created.")


def _conflict(chunk: Chunk, what: str, stored: str, sent: str) -> ChunkConflict:
    return ChunkConflict(
        table=chunk.table,
        sender=chunk.sender,
        ordinal=chunk.ordinal,
        what=what,
        stored=stored,
        sent=sent,
    )


def _end_conflict(end: End, what: str, known: int) -> EndConflict:
    return EndConflict(table=end.table, sender=end.sender, what=what, known=known, sent=end.count)
