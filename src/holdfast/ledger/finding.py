"""Finding a step without registering it: for questions that must leave a ledger as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ledger.contract import MICROS
from holdfast.ledger.database import Database, rows_of
from holdfast.ledger.places import ledger_path
from holdfast.ledger.postgres.address import is_address
from holdfast.ledger.rules import fingerprint_decision

Registered = tuple[str, list[tuple[int, str, int, int, bool]]]
"""A ledger's id, and of each generation of a step, newest first: id, fingerprint, spent, bought,
and whether it has any slot."""


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A registered step, and what one of its answers has cost so far; None if nobody knows."""

    id: int
    ledger_id: str
    mean_usd: float | None


def find_step(
    url: str, name: str, fingerprint: Mapping[str, str] | None = None, on_change: str = "refuse"
) -> FoundStep | None:
    """Return the generation of a step that a run would use; None if it would be a new one.

    Without a fingerprint: the newest.

    Raises:
        StepChanged: the run itself would be refused.
    """
    if is_address(url):
        # Late: psycopg is an extra.
        from holdfast.ledger.postgres.books import registered

        found = registered(url, name)
    else:
        found = _registered(url, name)
    if found is None:
        return None
    ledger_id, rows = found
    for id_, recorded, spent, bought, asked in rows:
        mean = spent / bought / MICROS if bought and spent else None
        if fingerprint is None or json.loads(recorded) == dict(fingerprint):
            return FoundStep(id_, ledger_id, mean)
        if on_change != "new":
            known = json.loads(recorded)
            decision = fingerprint_decision(name, known, fingerprint, on_change, asked=asked)
            return None if decision == "new" else FoundStep(id_, ledger_id, mean)
    return None


def _registered(url: str, name: str) -> Registered | None:
    path = ledger_path(url) / "ledger.sqlite"
    if not path.exists():
        return None
    database = Database(path, create=False)
    try:
        with database.reading() as connection:
            rows = rows_of(
                connection,
                "SELECT id, fingerprint, spent, bought, bought + parked + failed > 0"
                " OR EXISTS(SELECT 1 FROM slot WHERE slot.step = step.id) FROM step WHERE name=?"
                " ORDER BY generation DESC",
                (name,),
            )
        return database.ledger_id, [(*row[:-1], bool(row[-1])) for row in rows]
    finally:
        database.close()
