"""Claims: the one transaction that takes slots, and with them the right to call.

Invariants:

* A row is inserted or taken over by one transaction: of two askers one gets it.
* A claim names the generation of settled files its asker searched. Another generation grants
  nothing: the slot may have been settled and compacted in between.
* The budget is asked in the same transaction, before the intent exists.

Crash points: `ledger.claim.before`, `ledger.claim.after`.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast._base.crashpoint import crashpoint
from holdfast._base.invariant import invariant
from holdfast.ledger import steps
from holdfast.ledger.budget import Room
from holdfast.ledger.contract import Claim, Grant, Limit, Slot, SlotHash
from holdfast.ledger.database import Database, rows_of
from holdfast.ledger.segment import Placed
from holdfast.ledger.slots import (
    STATEMENT_ROWS,
    SlotRow,
    insert_rows,
    read_rows,
    record,
    write_row,
)


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
        record(connection, owner, recorded)
        change = database.meta("change")
        if database.meta("generation") == generation:
            rooms = {
                step: steps.room(database, connection, step, limit)
                for step in {wish.slot.step for wish in claims}
            }
            for step, room in rooms.items():
                wishes = [wish for wish in claims if wish.slot.step == step]
                fresh = [wish for wish in wishes if wish.after is None]
                granted.update(_take_fresh(connection, owner, fresh, room, refused))
                lost = [wish for wish in wishes if wish.after is not None]
                granted.update(_take_over(database, connection, owner, lost, room, refused))
            for room in rooms.values():
                steps.store_room(connection, room)
            change += 1
            database.set_meta("change", change)
        crashpoint("ledger.claim.before")
    crashpoint("ledger.claim.after")
    return Grant(granted, tuple(refused)), change


def _take_fresh(
    connection: apsw.Connection,
    owner: int,
    wishes: Sequence[Claim],
    room: Room,
    refused: list[SlotHash],
) -> dict[SlotHash, int]:
    """Take slots that nobody has asked for yet, as many as the budget allows."""
    granted: dict[SlotHash, int] = {}
    for start in range(0, len(wishes), STATEMENT_ROWS):
        slots = [wish.slot for wish in wishes[start : start + STATEMENT_ROWS]]
        allowed = slots[: room.most(len(slots))]
        refused += [slot.hash for slot in slots[len(allowed) :]]
        if not allowed:
            continue
        there = _hashes_there(connection, allowed)
        # Two askers of one task may want the same new slot: the second looks it up again.
        absent = list({slot.hash: slot for slot in allowed if slot.hash not in there}.values())
        if absent:
            invariant(insert_rows(connection, absent, owner, room.each), "a slot came between")
        for slot in absent:
            room.take(lost=0)
            granted[slot.hash] = 1
    return granted


def _hashes_there(connection: apsw.Connection, slots: Sequence[Slot]) -> set[bytes]:
    # S608: only question marks are put in.
    marks = ",".join("?" * len(slots))
    query = f"SELECT hash FROM slot WHERE hash IN ({marks})"  # noqa: S608
    return {hash_ for (hash_,) in rows_of(connection, query, [slot.hash for slot in slots])}


def _take_over(
    database: Database,
    connection: apsw.Connection,
    owner: int,
    wishes: Sequence[Claim],
    room: Room,
    refused: list[SlotHash],
) -> dict[SlotHash, int]:
    """Take slots in doubt that are still as their asker saw them."""
    granted: dict[SlotHash, int] = {}
    rows = read_rows(connection, [wish.slot.hash for wish in wishes], database.label)
    for wish in wishes:
        row = rows.get(wish.slot.hash)
        if row is None or row.at is not None or row.owner is not None:
            continue
        if wish.after is None or row.attempts != wish.after.attempts:
            continue
        if wish.call and room.most(1) == 0:
            refused.append(wish.slot.hash)
            continue
        if wish.call:
            room.take(lost=row.held)
        held = room.each if wish.call else row.held
        taken = SlotRow(wish.slot, owner, row.attempts + wish.call, held, None)
        write_row(connection, taken)
        granted[wish.slot.hash] = taken.attempts
    return granted
