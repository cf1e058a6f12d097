"""Slots in PostgreSQL: the statements of lookups, claims and settlements.

Format: docs/internals/ledger-postgres.md. A slot's row is open (no status, an owner), in doubt (no
status, no owner) or recorded (a status). It is never deleted, except by a release before its call
and by a person (`books.py`).

Locks are taken in one order: the owner's row, the step's (with a budget only), slots that are there
by hash, new slots by hash, tallies by step. So two transactions never wait for each other in a
circle. An owner's open slots need the order too: a claim that found them in doubt, and whose turn
came when they were taken, keeps their rows locked until it ends.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast._base.invariant import invariant
from holdfast.errors import Damaged
from holdfast.ledger.budget import Room, Sums
from holdfast.ledger.contract import (
    Claim,
    Grant,
    Limit,
    OpenSlot,
    Outcome,
    Slot,
    SlotHash,
    Status,
    View,
)
from holdfast.ledger.postgres import tallies
from holdfast.ledger.postgres.connection import Sql
from holdfast.ledger.segment import Entry, encode_entry

BLOB_BYTES = 1 << 20
"""Larger answers go to the table of blobs, by their SHA-256: equal ones are kept once."""

GENERATION = 0
"""Rows of settled slots stay where they are, so a claim never meets a slot that moved away."""

_READ = """SELECT s.hash, s.step, s.key, s.inputs, s.owner, s.attempts, s.status, s.answer, s.blob,
  s.reason, s.cost, s.recorded_ms, s.dead_letter, s.crc, b.data
  FROM holdfast_ledger_slot s LEFT JOIN holdfast_ledger_blob b ON b.name = s.blob
  WHERE s.hash = ANY(%s)"""

_LOCK_IN_DOUBT = """SELECT hash, attempts, held FROM holdfast_ledger_slot
  WHERE hash = ANY(%s) AND status IS NULL AND owner IS NULL ORDER BY hash FOR UPDATE"""

_TAKE_OVER = """UPDATE holdfast_ledger_slot s
  SET owner = %s, attempts = g.attempts, held = g.held, inputs = g.inputs
  FROM unnest(%s::bytea[], %s::int[], %s::bigint[], %s::bytea[]) g(hash, attempts, held, inputs)
  WHERE s.hash = g.hash"""

_INSERT = """INSERT INTO holdfast_ledger_slot(hash, step, key, inputs, owner, attempts, held)
  SELECT g.hash, g.step, g.key, g.inputs, %s, 1, %s
  FROM unnest(%s::bytea[], %s::int[], %s::text[], %s::bytea[]) g(hash, step, key, inputs)
  ON CONFLICT (hash) DO NOTHING RETURNING hash"""

_BLOBS = """INSERT INTO holdfast_ledger_blob(name, data)
  SELECT * FROM unnest(%s::bytea[], %s::bytea[]) ON CONFLICT (name) DO NOTHING"""

_MINE = """WITH mine AS (SELECT hash, step, held FROM holdfast_ledger_slot
  WHERE hash = ANY(%s) AND owner = %s AND status IS NULL ORDER BY hash FOR UPDATE)"""

# S608, here and below: only the constant above becomes part of a statement.
_SETTLE = f"""{_MINE} UPDATE holdfast_ledger_slot s
  SET status = g.status, answer = g.answer, blob = g.blob, reason = g.reason,
    attempts = g.attempts, cost = g.cost, recorded_ms = g.recorded_ms,
    dead_letter = g.dead_letter, crc = g.crc
  FROM unnest(%s::bytea[], %s::text[], %s::bytea[], %s::bytea[], %s::text[], %s::int[],
    %s::bigint[], %s::bigint[], %s::boolean[], %s::bigint[])
    g(hash, status, answer, blob, reason, attempts, cost, recorded_ms, dead_letter, crc)
  JOIN mine USING (hash) WHERE s.hash = mine.hash RETURNING s.hash, mine.held"""  # noqa: S608

_FREE = f"""{_MINE} DELETE FROM holdfast_ledger_slot s USING mine
  WHERE s.hash = mine.hash RETURNING mine.step, mine.held"""  # noqa: S608

_DOUBT = f"""{_MINE} UPDATE holdfast_ledger_slot s SET owner = NULL FROM mine
  WHERE s.hash = mine.hash"""  # noqa: S608

_END = """WITH its AS (SELECT hash FROM holdfast_ledger_slot
    WHERE owner = %s AND status IS NULL ORDER BY hash FOR UPDATE)
  UPDATE holdfast_ledger_slot s SET owner = NULL FROM its WHERE s.hash = its.hash"""


def to_text(text: str) -> str:
    """Return a text that PostgreSQL can hold: it has no place for U+0000."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def from_text(text: str) -> str:
    """Return the text that `to_text` was given."""
    return re.sub(r"\\(.)", lambda found: "\0" if found[1] == "0" else found[1], text)


def _crc(outcome: Outcome, blob: bytes | None) -> int:
    """Return the checksum of all that is recorded of an outcome."""
    return zlib.crc32(encode_entry(Entry(outcome, 0, None if blob is None else blob.hex())))


def read(sql: Sql, hashes: Sequence[SlotHash], label: str) -> View:
    """Return what is known of slots, every outcome checked."""
    open_: dict[SlotHash, OpenSlot] = {}
    outcomes: dict[SlotHash, Outcome] = {}
    for slot, known in read_rows(sql, hashes, label):
        if isinstance(known, Outcome):
            outcomes[slot.hash] = known
        else:
            open_[slot.hash] = known
    return View(GENERATION, outcomes, open_)


def read_rows(
    sql: Sql, hashes: Sequence[SlotHash], label: str
) -> Iterator[tuple[Slot, OpenSlot | Outcome]]:
    """Yield the slots that have a row, with what is known of them, every outcome checked."""
    for row in sql.rows(_READ, (list(hashes),)):
        (hash_, step, key, inputs, owner, attempts, status, answer, blob, *rest) = row
        slot = Slot(SlotHash(bytes(hash_)), step, from_text(key), bytes(inputs))
        if status is None:
            yield slot, OpenSlot(owner, attempts, slot.inputs)
            continue
        (reason, cost, recorded_ms, dead_letter, crc, data) = rest
        whole = data if blob is not None else answer
        outcome = Outcome(
            slot, Status(status), whole, from_text(reason), attempts, cost, recorded_ms, dead_letter
        )
        if crc != _crc(outcome, blob):
            raise Damaged(path=label, what=f"the recorded answer of slot {hash_.hex()} is altered")
        if blob is not None and hashlib.sha256(data).digest() != blob:
            raise Damaged(path=label, what=f"the large answer of slot {hash_.hex()} is altered")
        yield slot, outcome


def claim(sql: Sql, owner: int, claims: Sequence[Claim], limit: Limit) -> Grant:
    """Take slots that are as their asker saw them, as many as the budget allows."""
    granted: dict[SlotHash, int] = {}
    refused: list[SlotHash] = []
    rooms = {
        step: tallies.room(sql, step, limit) for step in sorted({wish.slot.step for wish in claims})
    }
    began = {step: (room.calls, room.spent, room.reserved) for step, room in rooms.items()}
    _take_over(sql, owner, claims, rooms, granted, refused)
    for step, room in rooms.items():
        fresh = [wish.slot for wish in claims if wish.after is None and wish.slot.step == step]
        _take_fresh(sql, owner, fresh, room, granted, refused)
    for step, room in rooms.items():
        calls, spent, reserved = began[step]
        added = (room.calls - calls, room.spent - spent, room.reserved - reserved)
        if any(added):
            tallies.add_claims(sql, step, owner, *added)
    return Grant(granted, tuple(refused))


def _take_over(
    sql: Sql,
    owner: int,
    claims: Sequence[Claim],
    rooms: dict[int, Room],
    granted: dict[SlotHash, int],
    refused: list[SlotHash],
) -> None:
    """Take slots in doubt that are still as their asker saw them."""
    wishes = {wish.slot.hash: wish for wish in claims if wish.after is not None}
    if not wishes:
        return
    taken: list[tuple[bytes, int, int, bytes]] = []
    for hash_, attempts, held in sql.rows(_LOCK_IN_DOUBT, (sorted(wishes),)):
        wish = wishes[SlotHash(bytes(hash_))]
        room = rooms[wish.slot.step]
        if wish.after is None or attempts != wish.after.attempts:
            continue
        if wish.call and room.most(1) == 0:
            refused.append(wish.slot.hash)
            continue
        if wish.call:
            room.take(lost=held)
        now = attempts + wish.call
        taken.append((wish.slot.hash, now, room.each if wish.call else held, wish.slot.inputs))
        granted[wish.slot.hash] = now
    if taken:
        sql.run(_TAKE_OVER, (owner, *_columns(taken)))


def _take_fresh(
    sql: Sql,
    owner: int,
    slots: Sequence[Slot],
    room: Room,
    granted: dict[SlotHash, int],
    refused: list[SlotHash],
) -> None:
    """Take slots that nobody has asked for yet, as many as the budget allows."""
    allowed = slots[: room.most(len(slots))]
    refused += [slot.hash for slot in slots[len(allowed) :]]
    if not allowed:
        return
    # Two askers of one task may want the same new slot: the second looks it up again.
    distinct = sorted({slot.hash: slot for slot in allowed}.values(), key=lambda slot: slot.hash)
    columns = _columns((slot.hash, slot.step, to_text(slot.key), slot.inputs) for slot in distinct)
    for (hash_,) in sql.rows(_INSERT, (owner, room.each, *columns)):
        room.take(lost=0)
        granted[SlotHash(bytes(hash_))] = 1


def settle(sql: Sql, owner: int, outcomes: Sequence[Outcome]) -> None:
    """Record outcomes of this owner's open slots, and count them.

    What is not open was recorded before: the same outcome was handed over twice.
    """
    by_hash = {outcome.slot.hash: outcome for outcome in outcomes}
    blobs = {
        hashlib.sha256(outcome.answer).digest(): outcome.answer
        for outcome in by_hash.values()
        if outcome.answer is not None and len(outcome.answer) > BLOB_BYTES
    }
    if blobs:
        sql.run(_BLOBS, _columns(sorted(blobs.items())))
    columns = _columns(_recorded(outcome) for outcome in by_hash.values())
    rows = sql.rows(_SETTLE, (list(by_hash), owner, *columns))
    held = {SlotHash(bytes(hash_)): reserved for hash_, reserved in rows}
    sums: dict[int, Sums] = {}
    for hash_, reserved in held.items():
        outcome = by_hash[hash_]
        sums.setdefault(outcome.slot.step, Sums()).add(outcome, reserved)
    for step in sorted(sums):
        tallies.add_outcomes(sql, step, owner, sums[step])
    if missing := [hash_ for hash_ in by_hash if hash_ not in held]:
        query = "SELECT count(status) FROM holdfast_ledger_slot WHERE hash = ANY(%s)"
        known = sql.one(query, (missing,))
        invariant(known == (len(missing),), "an outcome came for a slot that is not its owner's")


def _recorded(outcome: Outcome) -> tuple[Any, ...]:
    """Return what is recorded of an outcome, in the order of `_SETTLE`."""
    answer, blob = outcome.answer, None
    if answer is not None and len(answer) > BLOB_BYTES:
        blob, answer = hashlib.sha256(answer).digest(), None
    return (
        *(outcome.slot.hash, outcome.status.value, answer, blob, to_text(outcome.reason)),
        *(outcome.attempts, outcome.cost_micros, outcome.recorded_ms, outcome.dead_letter),
        _crc(outcome, blob),
    )


def release(sql: Sql, owner: int, hashes: Sequence[SlotHash], *, in_doubt: bool) -> None:
    """Forget open slots of this owner, or leave them in doubt."""
    if in_doubt:
        sql.run(_DOUBT, (list(hashes), owner))
        return
    given: dict[int, Sums] = {}
    for step, held in sql.rows(_FREE, (list(hashes), owner)):
        given.setdefault(step, Sums()).held += held
    for step in sorted(given):
        tallies.add_outcomes(sql, step, owner, given[step])


def end_owner(sql: Sql, owner: int) -> None:
    """Leave an owner's open slots in doubt, keep its sums, and remove its row.

    The row is what its writes begin with: from here on each of them is refused. It is locked first,
    as every writer does: a claim on its way is waited for, and its slots are seen.
    """
    sql.rows("SELECT 1 FROM holdfast_ledger_owner WHERE id = %s FOR UPDATE", (owner,))
    sql.run(_END, (owner,))
    tallies.fold(sql, owner)
    sql.run("DELETE FROM holdfast_ledger_owner WHERE id = %s", (owner,))


def _columns(rows: Iterable[Sequence[Any]]) -> tuple[list[Any], ...]:
    """Turn rows into one list per column, for `unnest`."""
    return tuple(list(column) for column in zip(*rows, strict=True))
