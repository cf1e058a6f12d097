"""Kills `holdfast calls retry` at every step, and again in the recovery: all of it, or nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from tests.crash.shared_work import make_schema, use_server
from tests.crash.shared_work import url_of as shared_url_of
from tests.postgres_server import PostgresServer

from holdfast._base.crashpoint import POINTS
from holdfast.ledger.books import Choice, SlotState
from holdfast.ledger.contract import Outcome, Status
from holdfast.ledger.file_books import FileBooks
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.postgres.books import PostgresBooks
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.testing.crash import CrashLoop, Hit, Tally
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

BAD = frozenset({SlotState.PARKED, SlotState.FAILED})
ROUNDS = ({"a": Status.BOUGHT, "p": Status.PARKED}, {"b": Status.BOUGHT, "f": Status.FAILED})
LOST = {"p", "f"}
SHARED = {name for name in POINTS if name.startswith("calls.shared.")}
pa.array([""])  # loads pandas if it is there: once here, not in each child


def url_of(state: Path) -> str:
    return f"file://{state}/ledger"


def retry(state: Path) -> None:
    """Two settled files with good and bad outcomes; drop the bad ones; buy them."""
    state.mkdir(exist_ok=True)
    for number, statuses in enumerate(ROUNDS):
        if not (state / f"made{number}").exists():
            ask(state, statuses)
            (state / f"made{number}").touch()
    if not (state / "dropped").exists():
        books = FileBooks(url_of(state))
        books.drop(Choice(states=BAD))
        books.close()
        (state / "dropped").touch()
    ask(state, dict.fromkeys(LOST, Status.BOUGHT))


def ask(state: Path, statuses: dict[str, Status]) -> None:
    ledger = FileLedger(url_of(state))
    ledger.tidy()
    step = make_step(ledger)
    slots = {key: make_slot(step, key) for key in statuses}
    granted = claim(ledger, list(slots.values())).attempts
    for key, slot in slots.items():
        if slot.hash in granted:
            good = bought(slot, f"answer {key}".encode())
            bad = Outcome(slot, statuses[key], dead_letter=True, recorded_ms=1)
            ledger.settle([good if statuses[key] is Status.BOUGHT else bad])
    ledger.close()
    ledger = FileLedger(url_of(state))
    ledger.compact()
    ledger.close()


def found(state: Path) -> dict[str, tuple[SlotState, str | None]]:
    """Read a copy, because opening a ledger repairs it."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "state")
        shutil.copytree(state, copy)
        books = FileBooks(url_of(copy))
        views = list(books.slots(Choice()))
        books.close()
    slots = {view.key: (view.state, view.answer) for view in views}
    assert len(slots) == len(views), "duplicated: a slot has two outcomes"
    return slots


def right_after(state: Path) -> None:
    if not (state / "made1").exists():
        return
    slots = found(state)
    for key in ("a", "b"):
        assert slots.get(key) == (SlotState.BOUGHT, f"answer {key}"), f"lost: {key} {slots}"
    bad = {key for key in LOST if key in slots and slots[key][0] in BAD}
    assert bad in (set(), LOST), f"wrong: half of them were dropped: {slots}"
    if (state / "dropped").exists():
        assert not bad, f"wrong: what was dropped is back: {slots}"


def after_recovery(state: Path) -> None:
    right_after(state)
    ledger = FileLedger(url_of(state))
    ledger.verify()
    totals = ledger.totals(1)
    assert totals.settled == {Status.BOUGHT: 4, Status.PARKED: 0, Status.FAILED: 0}, (
        f"wrong: {totals}"
    )
    assert not list(ledger.dead_letters(1)), "wrong: a dead letter is left"
    ledger.compact()
    with ledger._database.reading() as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM settled")}
    ledger.close()
    there = {path.name for path in (state / "ledger" / "settled").iterdir()}
    assert there == names, f"wrong: files and rows differ: {there} {names}"


@pytest.mark.slow
def test_crash_while_outcomes_are_dropped(tallies: defaultdict[str, Tally]) -> None:
    loop = CrashLoop(retry, settle=right_after, final=after_recovery)
    ours = [name for name in POINTS if name.startswith("calls.") and name not in SHARED]
    passes = loop.passes()
    assert [name for name in ours if passes[name]] == ours
    for name in ours:
        for number in range(1, passes[name] + 1):
            loop.pairs(Hit(name, number), keep=lambda hit: hit.name.startswith("calls."))
    tallies["calls"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert loop.tally.points >= set(ours)
    assert loop.tally.pairs >= 8


def retry_shared(state: Path) -> None:
    """The same in PostgreSQL, where nothing is compacted."""
    state.mkdir(exist_ok=True)
    make_schema(state)
    if not (state / "made").exists():
        buy_shared(state, {key: status for keys in ROUNDS for key, status in keys.items()})
        (state / "made").touch()
    if not (state / "dropped").exists():
        books = PostgresBooks(shared_url_of(state))
        books.drop(Choice(states=BAD))
        books.close()
        (state / "dropped").touch()
    buy_shared(state, dict.fromkeys(LOST, Status.BOUGHT))


def buy_shared(state: Path, statuses: dict[str, Status]) -> None:
    ledger = PostgresLedger(shared_url_of(state))
    step = make_step(ledger)
    slots = {key: make_slot(step, key) for key in statuses}
    granted = claim(ledger, list(slots.values())).attempts
    asked = {key: slot for key, slot in slots.items() if slot.hash in granted}
    if asked:
        ledger.settle([Outcome(slot, statuses[key], b"answer") for key, slot in asked.items()])
    ledger.close()


def right_after_shared(state: Path) -> None:
    if not (state / "made").exists():
        return
    books = PostgresBooks(shared_url_of(state))
    slots = {view.key: view.state for view in books.slots(Choice())}
    (step,) = books.steps()
    books.close()
    assert [slots.get(key) for key in "ab"] == [SlotState.BOUGHT] * 2, f"lost: {slots}"
    bad = {key for key in LOST if slots.get(key) in BAD}
    assert bad in (set(), LOST), f"wrong: half of them were dropped: {slots}"
    assert not (bad and (state / "dropped").exists()), f"wrong: dropped ones are back: {slots}"
    counted = step.receipt.parked + step.receipt.failed
    assert counted == len(bad), f"wrong: counters and slots differ: {step} {slots}"


def after_recovery_shared(state: Path) -> None:
    right_after_shared(state)
    books = PostgresBooks(shared_url_of(state))
    (step,) = books.steps()
    books.close()
    assert (step.receipt.bought, step.open, step.receipt.in_doubt) == (4, 0, 0), f"wrong: {step}"


@pytest.mark.slow
def test_crash_while_outcomes_are_dropped_from_a_shared_ledger(
    postgres: PostgresServer, tallies: defaultdict[str, Tally]
) -> None:
    use_server(postgres)
    loop = CrashLoop(retry_shared, settle=right_after_shared, final=after_recovery_shared)
    for _ in loop.singles(keep=lambda hit: hit.name in SHARED):
        pass
    tallies["calls"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert loop.tally.points >= SHARED
