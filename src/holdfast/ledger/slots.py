"""Slots in SQLite: open ones, those in doubt, and the index of recorded outcomes.

Format: docs/internals/ledger.md#sqlite. A slot's row is open (no segment), in doubt (no segment,
no owner) or recorded (a segment and a place in it). It leaves this table when its outcome is in a
settled file. Invariants:

* A row becomes recorded only after its outcome's frame is durable.
* A dead owner's open slots lose their owner in the transaction that records what it had written.

Claims are in claims.py. Crash points: `ledger.index.*`, `ledger.release.*`, `ledger.reap.*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import apsw

from holdfast._base.crashpoint import crashpoint
from holdfast.errors import Damaged
from holdfast.ledger import steps
from holdfast.ledger.budget import Sums
from holdfast.ledger.contract import (
    DeadLetter,
    OpenSlot,
    Slot,
    SlotHash,
)
from holdfast.ledger.database import COLUMNS, Database, crc_of, row_crc, rows_of
from holdfast.ledger.segment import Place, Placed

_COLUMNS = ", ".join(COLUMNS["slot"])
# S608 below: every name comes from constants.
_READ = f"SELECT {_COLUMNS}, crc FROM slot WHERE hash"  # noqa: S608
_MARKS = f"({','.join('?' * (len(COLUMNS['slot']) + 1))})"
STATEMENT_ROWS = 500
"""Rows of one statement. Each statement lets go of Python's lock and has to get it back, which
with several busy threads costs more than the statement; SQLite takes 32,766 values at most."""
_INSERT = "INSERT OR IGNORE INTO slot VALUES"
_WRITE = f"INSERT OR REPLACE INTO slot VALUES{_MARKS}"


@dataclass(frozen=True, slots=True)
class RecordedAt:
    """Where a recorded outcome stands: the segment's id and the place in it."""

    segment: int
    place: Place


@dataclass(frozen=True, slots=True)
class SlotRows:
    """What the table says of some slots, and under which generation of settled files."""

    generation: int
    open: dict[SlotHash, OpenSlot]
    recorded: dict[SlotHash, RecordedAt]


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One row of the table, checked."""

    slot: Slot
    owner: int | None
    attempts: int
    held: int
    at: RecordedAt | None

    def open(self) -> OpenSlot:
        """Return what is said of it while it has no outcome."""
        return OpenSlot(self.owner, self.attempts, self.slot.inputs)


def read_rows(
    connection: apsw.Connection, hashes: Sequence[SlotHash], label: str
) -> dict[SlotHash, SlotRow]:
    """Return the rows of slots that have one, checked."""
    found: dict[SlotHash, SlotRow] = {}
    for start in range(0, len(hashes), STATEMENT_ROWS):
        some = hashes[start : start + STATEMENT_ROWS]
        for row in rows_of(connection, f"{_READ} IN ({','.join('?' * len(some))})", some):
            if row[-1] != row_crc(*row[:-1]):
                raise Damaged(path=label, what=f"the row of slot {row[0].hex()} is altered")
            (hash_, step, key, inputs, owner, attempts, held, segment, *place, _) = row
            at = None if segment is None else RecordedAt(segment, Place(*place))
            slot = Slot(SlotHash(hash_), step, key, inputs)
            found[slot.hash] = SlotRow(slot, owner, attempts, held, at)
    return found


def insert_rows(connection: apsw.Connection, slots: Sequence[Slot], owner: int, held: int) -> bool:
    """Insert slots that are claimed for the first time, those that have no row. All of them?"""
    values: list[Any] = []
    for slot in slots:
        row = (slot.hash, slot.step, slot.key, slot.inputs, owner, 1, held, None, None, None, None)
        values += row
        values.append(row_crc(*row))
    connection.execute(_INSERT + ",".join([_MARKS] * len(slots)), values)
    return bool(connection.changes() == len(slots))


def write_row(connection: apsw.Connection, row: SlotRow) -> None:
    """Insert or replace one row."""
    slot, at = row.slot, row.at
    place = (None,) * 4 if at is None else (
        at.segment, at.place.sequence, at.place.position, at.place.length,
    )  # fmt: skip
    values = (
        slot.hash, slot.step, slot.key, slot.inputs, row.owner, row.attempts, row.held, *place,
    )  # fmt: skip
    connection.execute(_WRITE, (*values, row_crc(*values)))


def read(database: Database, hashes: Sequence[SlotHash]) -> SlotRows:
    """Return what is known of slots, on one view."""
    open_: dict[SlotHash, OpenSlot] = {}
    recorded: dict[SlotHash, RecordedAt] = {}
    with database.reading() as connection:
        generation = database.meta("generation")
        for hash_, row in read_rows(connection, hashes, database.label).items():
            if row.at is None:
                open_[hash_] = row.open()
            else:
                recorded[hash_] = row.at
    return SlotRows(generation, open_, recorded)


def index(database: Database, owner: int, recorded: Sequence[tuple[int, Placed]]) -> None:
    """Let others see durable outcomes of `owner`, given with the id of their segment."""
    if not recorded:
        return
    with database.transaction() as connection:
        record(connection, owner, recorded)
        crashpoint("ledger.index.before")
    crashpoint("ledger.index.after")


def record(connection: apsw.Connection, owner: int, recorded: Sequence[tuple[int, Placed]]) -> None:
    """Give open slots of `owner` their places.

    What is not open was recorded before, by an earlier reading of the same segment.
    """
    sums: dict[int, Sums] = {}
    for start in range(0, len(recorded), STATEMENT_ROWS):
        some = recorded[start : start + STATEMENT_ROWS]
        held = _held(connection, owner, some)
        fresh = [one for one in some if one[1].entry.outcome.slot.hash in held]
        if fresh:
            _record_rows(connection, owner, fresh)
        for _, placed in fresh:
            outcome = placed.entry.outcome
            reserved = held[outcome.slot.hash]
            sums.setdefault(outcome.slot.step, Sums()).add(outcome, reserved)
            if outcome.dead_letter:
                _add_dead_letter(connection, placed)
    for step, added in sums.items():
        steps.add(connection, step, added)


def _held(
    connection: apsw.Connection, owner: int, recorded: Sequence[tuple[int, Placed]]
) -> dict[bytes, int]:
    """Return what open slots of `owner` have reserved."""
    hashes = [placed.entry.outcome.slot.hash for _, placed in recorded]
    # S608: only question marks are put in.
    marks = ",".join("?" * len(hashes))
    query = f"SELECT hash, held FROM slot WHERE owner=? AND segment IS NULL AND hash IN ({marks})"  # noqa: S608
    return dict(rows_of(connection, query, [owner, *hashes]))


def _record_rows(
    connection: apsw.Connection, owner: int, recorded: Sequence[tuple[int, Placed]]
) -> None:
    values: list[Any] = []
    for segment, placed in recorded:
        outcome, place = placed.entry.outcome, placed.place
        slot = outcome.slot
        row = (
            *(slot.hash, slot.step, slot.key, slot.inputs, owner, outcome.attempts, 0),
            *(segment, place.sequence, place.position, place.length),
        )
        values += row
        values.append(row_crc(*row))
    marks = ",".join([_MARKS] * len(recorded))
    connection.execute(f"INSERT OR REPLACE INTO slot VALUES{marks}", values)


def _add_dead_letter(connection: apsw.Connection, placed: Placed) -> None:
    outcome = placed.entry.outcome
    values = (
        outcome.slot.hash, outcome.slot.step, outcome.slot.key, outcome.reason, outcome.recorded_ms,
    )  # fmt: skip
    statement = "INSERT OR REPLACE INTO dead_letter VALUES(?,?,?,?,?,?)"
    connection.execute(statement, (*values, row_crc(*values)))


def release(database: Database, owner: int, hashes: Sequence[SlotHash], *, in_doubt: bool) -> None:
    """Forget open slots of `owner`, or leave them in doubt."""
    with database.transaction() as connection:
        given: Counter[int] = Counter()
        for hash_, row in read_rows(connection, hashes, database.label).items():
            if row.at is not None or row.owner != owner:
                continue
            if in_doubt:
                write_row(connection, replace(row, owner=None))
            else:
                connection.execute("DELETE FROM slot WHERE hash=?", (hash_,))
                given[row.slot.step] += row.held
        for step, held in given.items():
            steps.add(connection, step, Sums(held=held))
        crashpoint("ledger.release.before")
    crashpoint("ledger.release.after")


def reap(database: Database, owner: int, recorded: Sequence[tuple[int, Placed]]) -> None:
    """Take in what a dead owner recorded; its other open slots are in doubt from here on.

    One transaction: outcomes found in its segments are recorded, the rest lose their owner, its
    segments are sealed at their last valid frame and its row goes. Crash before: all again.
    """
    with database.transaction() as connection:
        if not connection.execute("SELECT 1 FROM owner WHERE id=?", (owner,)).fetchall():
            return
        record(connection, owner, recorded)
        connection.execute("UPDATE slot SET owner=NULL WHERE owner=? AND segment IS NULL", (owner,))
        # S608: the expression comes from a constant table.
        doubt = f"UPDATE slot SET crc={crc_of('slot')} WHERE owner IS NULL"  # noqa: S608
        connection.execute(doubt)
        seal_all(connection, owner, recorded)
        connection.execute("DELETE FROM owner WHERE id=?", (owner,))
        crashpoint("ledger.reap.before")
    crashpoint("ledger.reap.after")


def seal_all(
    connection: apsw.Connection, owner: int, recorded: Sequence[tuple[int, Placed]]
) -> None:
    """Close a dead owner's unsealed segments at their last valid frame."""
    ends: dict[int, int] = {}
    for segment, placed in recorded:
        ends[segment] = max(ends.get(segment, 0), placed.place.position + placed.place.length)
    rows = rows_of(connection, "SELECT id, sealed FROM segment WHERE owner=?", (owner,))
    for segment, sealed in rows:
        if sealed is None:
            seal(connection, segment, ends.get(segment, 0))


def seal(connection: apsw.Connection, segment: int, end: int) -> None:
    """Say how long a segment is; nothing is appended to it any more."""
    connection.execute("UPDATE segment SET sealed=? WHERE id=?", (end, segment))
    # S608: the expression comes from a constant table.
    connection.execute(
        f"UPDATE segment SET crc={crc_of('segment')} WHERE id=?",  # noqa: S608
        (segment,),
    )


def segment_name(database: Database, segment: int) -> str | None:
    """Return the file of a segment, or None when it was compacted."""
    with database.reading() as connection:
        row = connection.execute("SELECT name FROM segment WHERE id=?", (segment,)).fetchone()
    return None if row is None else str(row[0])


def dead_letters(database: Database, step: int) -> list[DeadLetter]:
    """Return the rows refused for good, oldest first."""
    with database.reading() as connection:
        rows = rows_of(
            connection,
            "SELECT step, key, reason, recorded_ms FROM dead_letter WHERE step=?"
            " ORDER BY recorded_ms, key",
            (step,),
        )
    return [DeadLetter(*row) for row in rows]
