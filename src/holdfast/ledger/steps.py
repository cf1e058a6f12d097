"""Steps in SQLite: fingerprints, budgets, counters. Format: docs/internals/ledger.md#sqlite.

Counters change in the transaction that changes the slots they count, so they never disagree with
them. Money is in integer millionths of a dollar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import apsw

from holdfast._base.invariant import invariant
from holdfast.ledger.contract import Limit, Outcome, Status, Step, Totals
from holdfast.ledger.database import Database, crc_of, rows_of
from holdfast.ledger.rules import fingerprint_decision


@dataclass(slots=True)
class Sums:
    """What a transaction adds to a step's counters."""

    bought: int = 0
    parked: int = 0
    failed: int = 0
    spent: int = 0
    dearest: int = 0
    held: int = 0

    def add(self, outcome: Outcome, held: int) -> None:
        """Count one outcome whose claim had reserved `held`."""
        self.bought += outcome.status is Status.BOUGHT
        self.parked += outcome.status is Status.PARKED
        self.failed += outcome.status is Status.FAILED
        self.spent += outcome.cost_micros
        self.dearest = max(self.dearest, outcome.cost_micros)
        self.held += held


@dataclass(slots=True)
class Room:
    """What a step may still ask, while claims are granted one by one."""

    step: int
    limit: Limit
    calls: int
    spent: int
    reserved: int
    each: int

    def most(self, wanted: int) -> int:
        """Return how many of `wanted` calls the budget allows."""
        if self.limit.calls is not None:
            wanted = min(wanted, self.limit.calls - self.calls)
        if self.limit.cost_micros is not None:
            left = self.limit.cost_micros - self.spent - self.reserved
            # A call of unknown price is allowed as long as anything is left.
            wanted = min(wanted, left // self.each if self.each else wanted * (left > 0))
        return max(0, wanted)

    def take(self, *, lost: int) -> None:
        """Reserve one call.

        `lost` was reserved by an attempt whose outcome is unknown: it counts as charged.
        """
        self.calls += 1
        self.spent += lost
        self.reserved += self.each - lost

    def store(self, connection: apsw.Connection) -> None:
        """Write the counters back, inside the transaction of the claims."""
        # S608: the expression comes from a constant table.
        connection.execute(
            "UPDATE step SET calls=?, spent=?, reserved=? WHERE id=?",
            (self.calls, self.spent, self.reserved, self.step),
        )
        _seal(connection, self.step)


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
        if fingerprint_decision(name, json.loads(recorded), fingerprint, on_change) == "new":
            return _insert(connection, name, generation + 1, fingerprint)
        connection.execute("UPDATE step SET fingerprint=? WHERE id=?", (_text(fingerprint), step))
        _seal(connection, step)
        return Step(step, name, generation)


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
