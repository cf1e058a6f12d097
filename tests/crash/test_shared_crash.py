"""Kills processes that work on a ledger in PostgreSQL, and stops one until it is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import psycopg
import pytest
from tests.crash import shared_work
from tests.crash.ledger_work import lines
from tests.postgres_server import PostgresServer

from holdfast._base.crashpoint import POINTS
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Limit
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.ledger.rules import Policy
from holdfast.testing.crash import CrashLoop, Tally
from holdfast.testing.ledgers import make_slot, make_step

SHARED_POINTS = {name for name in POINTS if name.startswith(("postgres.", "ledger.call."))}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crash_at_every_point_of_a_shared_ledger(
    postgres: PostgresServer, tallies: defaultdict[str, Tally]
) -> None:
    """The first two passes of every point: recover, compare with the provider's own log."""
    shared_work.use_server(postgres)
    loop = CrashLoop(
        shared_work.whole, settle=shared_work.right_after, final=shared_work.after_recovery
    )
    for _ in loop.singles(keep=lambda hit: hit.number <= 2):
        pass
    tallies["shared ledger"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert loop.tally.points == SHARED_POINTS


def test_a_stopped_owner_is_replaced_and_changes_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """SIGSTOP in the middle of a paid call, a successor, SIGCONT: the zombie is fenced."""
    url = postgres.new_url()
    log, gate = tmp_path / "calls.log", tmp_path / "gate"
    os.mkfifo(gate)
    zombie = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.shared_work", url, str(log), str(gate)],
        cwd=Path(__file__).parents[2],
    )
    try:
        writing = os.open(gate, os.O_WRONLY)  # returns when the zombie is in its second call
        os.kill(zombie.pid, signal.SIGSTOP)
        ledger = PostgresLedger(url, takeover_s=shared_work.TAKEOVER_S)
        step = make_step(ledger)
        asked: Counter[str] = Counter()

        def ask(key: str) -> str:
            asked[key] += 1
            return "successor"

        asker = Asker(ask, lambda v: str(v).encode(), "step", ledger.id, Policy())
        caller = Caller(ledger, asker, limits=Limits(), budget=Limit())
        slots = [make_slot(step, key) for key in "abcd"]
        assert ledger.lookup([slots[3].hash]).open, "the zombie has not claimed ahead"
        chunks = [[Pending(slot, slot.key) for slot in slots]]
        answers = [answer for taken in caller.answers(chunks) for answer in taken]
        assert [answer.outcome.answer for answer in answers] == [b"zombie"] + [b"successor"] * 3
        os.kill(zombie.pid, signal.SIGCONT)
        os.close(writing)  # its call returns
        assert zombie.wait(30) == 3, "the zombie was not fenced"
    finally:
        zombie.kill()
        zombie.wait()
    assert lines(log) == ["a", "b"], "the zombie called the provider after it was replaced"
    assert asked == {"b": 1, "c": 1, "d": 1}
    outcomes = ledger.lookup([slot.hash for slot in slots[1:]]).outcomes.values()
    assert {outcome.answer for outcome in outcomes} == {b"successor"}
    ledger.close()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_ledger_owner").fetchone() == (0,)
