"""The paid workload of the crash loop on a ledger in PostgreSQL. Checkers as in `ledger_work`.

Every state has a schema of its own, named after its directory. The server's URL comes from
`use_server`, before the loop forks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import psycopg
from tests.crash.ledger_work import AHEAD, IN_FLIGHT, LARGE, answer_of, append_line, lines
from tests.postgres_server import PostgresServer

from holdfast.errors import CallFailed, FailureRecorded, Fenced
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Claim, Limit, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.postgres import slots
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.ledger.rules import OnError, Policy
from holdfast.testing.ledgers import make_slot, make_step

TAKEOVER_S = 0.4
_servers: list[PostgresServer] = []


def use_server(server: PostgresServer) -> None:
    _servers[:] = [server]


def url_of(state: Path) -> str:
    return _servers[0].url(f"c_{hashlib.sha256(str(state).encode()).hexdigest()[:16]}")


def make_schema(state: Path) -> None:
    schema = url_of(state).rpartition("%3D")[2]
    with psycopg.connect(_servers[0].url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")


def leave_a_corpse(state: Path) -> None:
    """Claim a slot and never beat again, so that whoever comes must take it over."""
    if (state / "corpse").exists():
        return
    ledger = PostgresLedger(url_of(state), takeover_s=1e6)
    slot = make_slot(make_step(ledger), "a", b"a")
    ledger.claim([Claim(slot)], generation=slots.GENERATION, limit=Limit())
    append_line(state / "corpse", "left")


def run(state: Path, keys: list[str], on_error: OnError) -> None:
    """Buy the answers of keys: take over what a crash left, ask, read, close."""
    slots.BLOB_BYTES = 60
    ledger = PostgresLedger(url_of(state), takeover_s=TAKEOVER_S)
    step = make_step(ledger)

    def ask(key: str) -> str:
        append_line(state / "calls.log", key)
        if key == "bad":
            raise ValueError("refused")
        return answer_of(key)

    asker = Asker(
        ask, lambda v: str(v).encode(), "step", ledger.id, Policy(error=on_error, attempts=9)
    )
    limits = Limits(max_in_flight=IN_FLIGHT, intent_ahead=AHEAD)
    caller = Caller(ledger, asker, limits=limits, budget=Limit())
    asked = [
        Pending(Slot(slot_hash(step.id, key), step.id, key, inputs_hash(key.encode())), key)
        for key in keys
    ]
    try:
        position = 0
        for taken in caller.answers([asked]):
            for answer in taken:
                key = keys[position]
                text = answer.outcome.answer.decode() if answer.outcome.answer else "-"
                assert text == ("-" if key == "bad" else answer_of(key)), f"wrong: {key} {text}"
                append_line(state / "seen.log", key)
                position += 1
    except (CallFailed, FailureRecorded) as error:
        if (error.key, on_error) != ("bad", "raise"):
            raise
    ledger.close()


def whole(state: Path) -> None:
    """A corpse; a refused row that is released, then kept as a dead letter; a large answer."""
    state.mkdir(exist_ok=True)
    make_schema(state)
    leave_a_corpse(state)
    run(state, ["a", "bad"], "raise")
    run(state, ["b", "a", LARGE, "bad"], "dead_letter")


def recorded_keys(state: Path) -> set[str]:
    """Read from the tables which keys have an outcome, by statements of our own."""
    with psycopg.connect(url_of(state)) as connection:
        if connection.execute("SELECT to_regclass('holdfast_ledger_slot')").fetchone() == (None,):
            return set()
        query = "SELECT key FROM holdfast_ledger_slot WHERE status IS NOT NULL"
        return {key for (key,) in connection.execute(query)}


def right_after(state: Path) -> None:
    """Whatever was seen is recorded; remember what was recorded and how often it was bought."""
    recorded = recorded_keys(state)
    seen = set(lines(state / "seen.log"))
    assert seen <= recorded, f"early: {seen - recorded} seen, not durable"
    moment = {"recorded": sorted(recorded), "calls": Counter(lines(state / "calls.log"))}
    append_line(state / "moments.log", json.dumps(moment, separators=(",", ":")))


def after_recovery(state: Path) -> None:
    """No recorded slot was bought again; nothing is lost, nothing is left behind."""
    calls = Counter(lines(state / "calls.log"))
    moments = [json.loads(line) for line in lines(state / "moments.log")]
    for moment in moments:
        for key in moment["recorded"]:
            bought = (moment["calls"].get(key, 0), calls[key])
            assert bought[0] == bought[1], f"duplicated: recorded {key} was bought again {bought}"
    keys = ["a", "b", LARGE, "bad"]
    assert set(keys) == set(lines(state / "seen.log")), "lost: an answer was never given"
    ledger = PostgresLedger(url_of(state), create=False)
    step = make_step(ledger)
    view = ledger.lookup([slot_hash(step.id, key) for key in keys])
    for key in keys:
        outcome = view.outcomes.get(slot_hash(step.id, key))
        assert outcome is not None, f"lost: no outcome of {key}"
        wanted = None if key == "bad" else answer_of(key).encode()
        assert outcome.answer == wanted, f"wrong: {key} {outcome}"
        assert (outcome.status is Status.FAILED) == (key == "bad"), f"wrong: {key} {outcome}"
        if key != "bad":
            assert 1 <= calls[key] <= outcome.attempts, f"duplicated: {key} {calls[key]}"
    totals = ledger.totals(step.id)
    assert totals.settled == {Status.BOUGHT: 3, Status.PARKED: 0, Status.FAILED: 1}, "wrong: counts"
    assert (totals.open, totals.reserved_micros) == (0, 0), "wrong: something is left open"
    ledger.close()


def zombie(url: str, log: Path, gate: Path) -> None:
    """Buy a, b, c, d one by one; the second call waits for the gate. Exit 3: fenced."""
    ledger = PostgresLedger(url, takeover_s=TAKEOVER_S)

    def ask(key: str) -> str:
        append_line(log, key)
        if key == "b":
            with gate.open() as opened:
                opened.read()
        return "zombie"

    step = make_step(ledger)
    asker = Asker(ask, lambda v: str(v).encode(), "step", ledger.id, Policy())
    caller = Caller(ledger, asker, limits=Limits(max_in_flight=1, intent_ahead=4), budget=Limit())
    asked = [Pending(make_slot(step, key), key) for key in "abcd"]
    try:
        list(caller.answers([asked]))
    except Fenced:
        os._exit(3)


if __name__ == "__main__":
    zombie(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
