"""Steps in PostgreSQL: fingerprints, budgets, counters.

Each owner counts in a row of its own, so that settlements of many tasks do not queue for one row.
What an owner counted is added to the row of owner 0 when the owner ends. A step's counters are the
sum of its rows. Only claims under a budget lock the step: they must see each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast._base.invariant import invariant
from holdfast.ledger.budget import Room, Sums
from holdfast.ledger.contract import Limit, Reused, Status, Step, Totals
from holdfast.ledger.postgres.connection import Sql
from holdfast.ledger.rules import fingerprint_decision

_SUMS = """SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(spent), 0)::bigint,
  coalesce(sum(reserved), 0)::bigint, coalesce(max(dearest), 0)::bigint,
  coalesce(sum(bought), 0)::bigint, coalesce(sum(parked), 0)::bigint,
  coalesce(sum(failed), 0)::bigint FROM holdfast_ledger_tally WHERE step = %s"""

_LOCK_STEP = "SELECT 1 FROM holdfast_ledger_step WHERE id = %s FOR NO KEY UPDATE"
"""NO KEY: a full lock would also stop claims without a budget, at the check of their foreign key,
when they already hold new slots that the locker may want."""

_ADD = """INSERT INTO holdfast_ledger_tally AS t
  (step, owner, calls, spent, reserved, dearest, bought, parked, failed)
  VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (step, owner) DO UPDATE SET
  calls = t.calls + excluded.calls, spent = t.spent + excluded.spent,
  reserved = t.reserved + excluded.reserved, dearest = greatest(t.dearest, excluded.dearest),
  bought = t.bought + excluded.bought, parked = t.parked + excluded.parked,
  failed = t.failed + excluded.failed"""


def room(sql: Sql, step: int, limit: Limit) -> Room:
    """Return what a step may still ask. With a cap, other claims under it wait from here on."""
    if limit.calls is not None or limit.cost_micros is not None:
        invariant(sql.one(_LOCK_STEP, (step,)) is not None, f"step {step} is unknown")
    calls, spent, reserved, dearest, *_ = _sums(sql, step)
    return Room(step, limit, calls, spent, reserved, max(limit.each_micros, dearest))


def _sums(sql: Sql, step: int) -> tuple[Any, ...]:
    found = sql.one(_SUMS, (step,))
    invariant(found is not None, "a sum without a row")
    return found or ()


def add_claims(sql: Sql, step: int, owner: int, calls: int, spent: int, reserved: int) -> None:
    """Count what claims have reserved, in their transaction."""
    sql.run(_ADD, (step, owner, calls, spent, reserved, 0, 0, 0, 0))


def add_outcomes(sql: Sql, step: int, owner: int, sums: Sums) -> None:
    """Count outcomes, in the transaction that records them."""
    values = (sums.spent, -sums.held, sums.dearest, sums.bought, sums.parked, sums.failed)
    sql.run(_ADD, (step, owner, 0, *values))


def fold(sql: Sql, owner: int) -> None:
    """Add what an owner counted to what ended owners counted."""
    found = sql.rows(
        "DELETE FROM holdfast_ledger_tally WHERE owner = %s RETURNING"
        " step, calls, spent, reserved, dearest, bought, parked, failed",
        (owner,),
    )
    for step, *counted in sorted(found):
        sql.run(_ADD, (step, 0, *counted))


def register(sql: Sql, name: str, fingerprint: Mapping[str, str], on_change: str) -> Step:
    """Find the newest generation of a step or make one, as the change guard decides."""
    # Registrations are rare; one at a time is simple and cannot make a generation twice.
    sql.rows("SELECT 1 FROM holdfast_ledger_meta FOR UPDATE")
    text = json.dumps(dict(fingerprint), sort_keys=True)
    known = sql.rows(
        "SELECT id, generation, fingerprint FROM holdfast_ledger_step WHERE name = %s"
        " ORDER BY generation DESC",
        (name,),
    )
    if not known:
        return _insert(sql, name, 0, text)
    if on_change == "new":
        # An older generation with the very same fingerprint is the one to use.
        for step, generation, recorded in known:
            if recorded == text:
                return Step(step, name, generation)
    step, generation, recorded = known[0]
    calls, spent, _, _, *settled = _sums(sql, step)
    there = sql.one("SELECT 1 FROM holdfast_ledger_slot WHERE step = %s LIMIT 1", (step,))
    asked = any(settled) or there is not None
    decision = fingerprint_decision(name, json.loads(recorded), fingerprint, on_change, asked=asked)
    if decision == "new":
        made = _insert(sql, name, generation + 1, text)
        if on_change != "new":
            # A budget counts what failed calls of a step without answers have cost.
            add_claims(sql, made.id, 0, calls, spent, 0)
        return made
    if decision == "keep":
        sql.run("UPDATE holdfast_ledger_step SET fingerprint = %s WHERE id = %s", (text, step))
    return Step(step, name, generation)


def _insert(sql: Sql, name: str, generation: int, fingerprint: str) -> Step:
    row = sql.one(
        "INSERT INTO holdfast_ledger_step(name, generation, fingerprint) VALUES (%s, %s, %s)"
        " RETURNING id",
        (name, generation, fingerprint),
    )
    invariant(row is not None, "a step without an id")
    return Step((row or (0,))[0], name, generation)


def totals(sql: Sql, step: int) -> Totals:
    """Return what a step has asked and spent."""
    calls, spent, reserved, dearest, bought, parked, failed = _sums(sql, step)
    counts = sql.one(
        "SELECT count(*), count(*) - count(owner) FROM holdfast_ledger_slot"
        " WHERE step = %s AND status IS NULL",
        (step,),
    )
    settled = {Status.BOUGHT: bought, Status.PARKED: parked, Status.FAILED: failed}
    open_, in_doubt = counts or (0, 0)
    return Totals(calls, spent, reserved, dearest, settled, open_, in_doubt)


def add_reused(sql: Sql, step: int, added: Reused) -> None:
    """Count answers that were given again. No part of the tallies: no decision depends on it."""
    sql.run(
        "INSERT INTO holdfast_ledger_reuse AS r VALUES (%s, %s, %s) ON CONFLICT (step) DO UPDATE"
        " SET answers = r.answers + excluded.answers, saved = r.saved + excluded.saved",
        (step, added.answers, added.saved_micros),
    )


def reused(sql: Sql, step: int) -> Reused:
    """Return how often recorded answers were given again."""
    row = sql.one("SELECT answers, saved FROM holdfast_ledger_reuse WHERE step = %s", (step,))
    return Reused(*(row or ()))


def dead_letters(sql: Sql, step: int) -> list[tuple[str, str, int]]:
    """Return key, reason and time of the rows refused for good, oldest first."""
    rows = sql.rows(
        "SELECT key, reason, recorded_ms FROM holdfast_ledger_slot"
        " WHERE step = %s AND dead_letter ORDER BY recorded_ms, key",
        (step,),
    )
    return [(key, reason, recorded_ms) for key, reason, recorded_ms in rows]
