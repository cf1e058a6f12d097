"""Slots in SQLite: claims, the index of recorded outcomes, owners, segments.

Format: docs/internals/ledger.md#sqlite. A slot's row is open (no segment), in doubt (no segment,
no owner) or recorded (a segment and a place in it). It leaves this table when its outcome is in a
settled file. Invariants:

* A row is inserted or taken over by one transaction: of two askers one gets it.
* A row becomes recorded only after its outcome's frame is durable.
* A claim names the generation of settled files its asker searched. Another generation grants
  nothing: the slot may have been settled and compacted in between.

Crash points: `ledger.claim.*`, `ledger.index.*`, `ledger.release.*`, `ledger.reap.*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import apsw

from holdfast._base.crashpoint import crashpoint
from holdfast.errors import Damaged
from holdfast.ledger import steps
from holdfast.ledger.contract import Claim, DeadLetter, Grant, Limit, OpenSlot, Slot, SlotHash
from holdfast.ledger.database import COLUMNS, Database, crc_of, row_crc, rows_of
from holdfast.ledger.segment import Place, Placed

_COLUMNS = ", ".join(COLUMNS["slot"])
# S608 below: every name comes from constants.
_READ = f"SELECT {_COLUMNS}, crc FROM slot WHERE hash=?"  # noqa: S608
_WRITE = f"INSERT OR REPLACE INTO slot VALUES({','.join('?' * len(COLUMNS['slot']))},?)"


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
class _Row:
    """One row of the table, checked."""

    slot: Slot
    owner: int | None
    attempts: int
    held: int
    at: RecordedAt | None

    def open(self) -> OpenSlot:
        return OpenSlot(self.owner, self.attempts, self.slot.inputs)


def _read_row(connection: apsw.Connection, hash_: SlotHash, label: str) -> _Row | None:
    row = connection.execute(_READ, (hash_,)).fetchone()
    if row is None:
        return None
    if row[-1] != row_crc(*row[:-1]):
        raise Damaged(path=label, what=f"the row of slot {hash_.hex()} is altered")
    (_, step, key, inputs, owner, attempts, held, segment, sequence, position, length, _) = row
    at = None if segment is None else RecordedAt(segment, Place(sequence, position, length))
    return _Row(Slot(hash_, step, key, inputs), owner, attempts, held, at)


def _write_row(connection: apsw.Connection, row: _Row) -> None:
    slot, at = row.slot, row.at
    place = (None,) * 4 if at is None else (
        at.segment, at.place.sequence, at.place.position, at.place.length,
    )  # fmt: skip
    values = (
        slot.hash, slot.step, slot.key, slot.inputs, row.owner, row.attempts, row.held, *place,
    )  # fmt: skip
    connection.execute(_WRITE, (*values, row_crc(*values)))


def read(database: Database, hashes: Iterable[SlotHash]) -> SlotRows:
    """Return what is known of slots, on one view."""
    open_: dict[SlotHash, OpenSlot] = {}
    recorded: dict[SlotHash, RecordedAt] = {}
    with database.reading() as connection:
        generation = database.meta("generation")
        for hash_ in hashes:
            row = _read_row(connection, hash_, database.label)
            if row is None:
                continue
            if row.at is None:
                open_[hash_] = row.open()
            else:
                recorded[hash_] = row.at
    return SlotRows(generation, open_, recorded)


def claim(
    database: Database,
    owner: int,
    claims: Sequence[Claim],
    generation: int,
    limit: Limit,
    recorded: Sequence[tuple[int, Placed]] = (),
) -> tuple[Grant, int]:
    """Take slots for `owner` in one transaction. Returns the grant and the change number.

    `recorded` are durable outcomes that become visible on the way, to save a transaction.

    1. Settled files that the asker has not searched: nothing is granted.
    2. Each slot that is as the asker saw it (absent, or in doubt with as many attempts) is taken
       and its attempt counted. A call that kills its process is so counted before it is made.
    3. COMMIT. Crash before: nothing was claimed. Crash after: in doubt, though nobody was called.
    """
    granted: dict[SlotHash, int] = {}
    refused: list[SlotHash] = []
    with database.transaction() as connection:
        _record(database, connection, owner, recorded)
        change = database.meta("change")
        if database.meta("generation") == generation:
            rooms = {
                step: steps.room(database, connection, step, limit)
                for step in {wish.slot.step for wish in claims}
            }
            for wish in claims:
                row = _read_row(connection, wish.slot.hash, database.label)
                if not _as_seen(row, wish):
                    continue
                room = rooms[wish.slot.step]
                if wish.call and not room.take(lost=row.held if row is not None else 0):
                    refused.append(wish.slot.hash)
                    continue
                attempts = (row.attempts if row is not None else 0) + wish.call
                held = room.each if wish.call or row is None else row.held
                _write_row(connection, _Row(wish.slot, owner, attempts, held, None))
                granted[wish.slot.hash] = attempts
            for room in rooms.values():
                room.store(connection)
            change += 1
            database.set_meta("change", change)
        crashpoint("ledger.claim.before")
    crashpoint("ledger.claim.after")
    return Grant(granted, tuple(refused)), change


def _as_seen(row: _Row | None, wish: Claim) -> bool:
    if row is None or wish.after is None:
        return row is None and wish.after is None
    return row.at is None and row.owner is None and row.attempts == wish.after.attempts


def index(database: Database, owner: int, recorded: Sequence[tuple[int, Placed]]) -> None:
    """Let others see durable outcomes of `owner`, given with the id of their segment."""
    if not recorded:
        return
    with database.transaction() as connection:
        _record(database, connection, owner, recorded)
        crashpoint("ledger.index.before")
    crashpoint("ledger.index.after")


def _record(
    database: Database,
    connection: apsw.Connection,
    owner: int,
    recorded: Sequence[tuple[int, Placed]],
) -> None:
    sums: dict[int, steps.Sums] = {}
    for segment, placed in recorded:
        outcome = placed.entry.outcome
        row = _read_row(connection, outcome.slot.hash, database.label)
        if row is None or row.at is not None or row.owner != owner:
            # Seen before, by an earlier reading of the same segment.
            continue
        at = RecordedAt(segment, placed.place)
        _write_row(connection, _Row(outcome.slot, owner, outcome.attempts, 0, at))
        sums.setdefault(outcome.slot.step, steps.Sums()).add(outcome, row.held)
        if outcome.dead_letter:
            _add_dead_letter(connection, placed)
    for step, added in sums.items():
        steps.add(connection, step, added)


def _add_dead_letter(connection: apsw.Connection, placed: Placed) -> None:
    outcome = placed.entry.outcome
    values = (
        outcome.slot.hash, outcome.slot.step, outcome.slot.key, outcome.reason, outcome.recorded_ms,
    )  # fmt: skip
    statement = "INSERT OR REPLACE INTO dead_letter VALUES(?,?,?,?,?,?)"
    connection.execute(statement, (*values, row_crc(*values)))


def release(database: Database, owner: int, hashes: Iterable[SlotHash], *, in_doubt: bool) -> None:
    """Forget open slots of `owner`, or leave them in doubt."""
    with database.transaction() as connection:
        given: Counter[int] = Counter()
        for hash_ in hashes:
            row = _read_row(connection, hash_, database.label)
            if row is None or row.at is not None or row.owner != owner:
                continue
            if in_doubt:
                _write_row(connection, replace(row, owner=None))
            else:
                connection.execute("DELETE FROM slot WHERE hash=?", (hash_,))
                given[row.slot.step] += row.held
        for step, held in given.items():
            steps.add(connection, step, steps.Sums(held=held))
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
        _record(database, connection, owner, recorded)
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
