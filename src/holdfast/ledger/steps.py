"""Steps in SQLite: fingerprints, budgets, counters. Format: docs/internals/ledger.md#sqlite.

Counters change in the transaction that changes the slots they count, so they never disagree with
them. Money is in integer millionths of a dollar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import apsw

from holdfast._base.invariant import invariant
from holdfast.ledger.budget import Room, Sums
from holdfast.ledger.contract import Limit, Status, Step, Totals
from holdfast.ledger.database import Database, crc_of, rows_of
from holdfast.ledger.rules import fingerprint_decision


def store_room(connection: apsw.Connection, room: Room) -> None:
    """Write a step's counters back, inside the transaction of the claims."""
    connection.execute(
        "UPDATE step SET calls=?, spent=?, reserved=? WHERE id=?",
        (room.calls, room.spent, room.reserved, room.step),
    )
    _seal(connection, room.step)


def room(database: Database, connection: apsw.Connection, step: int, limit: Limit) -> Room:
    """Return what a step may still ask, inside a transaction."""
    found = rows_of(
        connection, "SELECT calls, spent, reserved, dearest FROM step WHERE id=?", (step,)
    )
    invariant(len(found) == 1, f"{database.label}: a claim for the unknown step {step}")
    calls, spent, reserved, dearest = found[0]
    return Room(step, limit, calls, spent, reserved, max(limit.each_micros, dearest))


def add(connection: apsw.Connection, step: int, sums: Sums) -> None:
    """Add to a step's counters, inside the transaction of the slots they count."""
    connection.execute(
        "UPDATE step SET bought=bought+?, parked=parked+?, failed=failed+?, spent=spent+?,"
        " dearest=max(dearest,?), reserved=reserved-? WHERE id=?",
        (sums.bought, sums.parked, sums.failed, sums.spent, sums.dearest, sums.held, step),
    )
    _seal(connection, step)


def _seal(connection: apsw.Connection, step: int) -> None:
    # S608: the expression comes from a constant table.
    connection.execute(f"UPDATE step SET crc={crc_of('step')} WHERE id=?", (step,))  # noqa: S608


def register(database: Database, name: str, fingerprint: Mapping[str, str], on_change: str) -> Step:
    """Find the newest generation of a step or make one, as the change guard decides."""
    with database.transaction() as connection:
        found = connection.execute(
            "SELECT id, generation, fingerprint FROM step WHERE name=?"
            " ORDER BY generation DESC LIMIT 1",
            (name,),
        ).fetchone()
        if found is None:
            return _insert(connection, name, 0, fingerprint)
        step, generation, recorded = found
        known = _same_before(connection, name, fingerprint, on_change)
        if known is not None:
            return known
        asked = _was_asked(connection, step)
        decision = fingerprint_decision(
            name, json.loads(recorded), fingerprint, on_change, asked=asked
        )
        if decision == "new":
            made = _insert(connection, name, generation + 1, fingerprint)
            if on_change != "new":
                _inherit(connection, made.id, step)
            return made
        connection.execute("UPDATE step SET fingerprint=? WHERE id=?", (_text(fingerprint), step))
        _seal(connection, step)
        return Step(step, name, generation)


def _was_asked(connection: apsw.Connection, step: int) -> bool:
    """Tell whether a step has any slot."""
    settled = "SELECT 1 FROM step WHERE id=? AND bought + parked + failed > 0"
    there = connection.execute(settled, (step,)).get
    return bool(there or connection.execute("SELECT 1 FROM slot WHERE step=?", (step,)).get)


def _inherit(connection: apsw.Connection, step: int, former: int) -> None:
    """Let a budget count what failed calls of a step without answers have cost."""
    connection.execute(
        "UPDATE step SET (calls, spent) = (SELECT calls, spent FROM step WHERE id=?) WHERE id=?",
        (former, step),
    )
    _seal(connection, step)


def _same_before(
    connection: apsw.Connection, name: str, fingerprint: Mapping[str, str], on_change: str
) -> Step | None:
    """Under "new", an older generation with the very same fingerprint is the one to use."""
    if on_change != "new":
        return None
    row = connection.execute(
        "SELECT id, generation FROM step WHERE name=? AND fingerprint=? ORDER BY generation DESC",
        (name, _text(fingerprint)),
    ).fetchone()
    return None if row is None else Step(row[0], name, row[1])


def _text(fingerprint: Mapping[str, str]) -> str:
    return json.dumps(dict(fingerprint), sort_keys=True)


def _insert(
    connection: apsw.Connection, name: str, generation: int, fingerprint: Mapping[str, str]
) -> Step:
    connection.execute(
        "INSERT INTO step VALUES(NULL,?,?,?,0,0,0,0,0,0,0,0)",
        (name, generation, _text(fingerprint)),
    )
    step = connection.last_insert_rowid()
    _seal(connection, step)
    return Step(step, name, generation)


def totals(database: Database, step: int) -> Totals:
    """Return what a step has asked and spent."""
    with database.reading() as connection:
        found = rows_of(
            connection,
            "SELECT calls, spent, reserved, dearest, bought, parked, failed FROM step WHERE id=?",
            (step,),
        )
        invariant(len(found) == 1, f"{database.label}: step {step} is unknown")
        counts = rows_of(
            connection,
            "SELECT count(*), count(*) - count(owner) FROM slot WHERE step=? AND segment IS NULL",
            (step,),
        )[0]
    calls, spent, reserved, dearest, bought, parked, failed = found[0]
    settled = {Status.BOUGHT: bought, Status.PARKED: parked, Status.FAILED: failed}
    return Totals(calls, spent, reserved, dearest, settled, counts[0], counts[1])
