"""Every kind of ledger read as a whole, and outcomes taken out of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.postgres_server import PASSWORD, PostgresServer

from holdfast.cli.main import main
from holdfast.errors import StepChanged, UsageInvalid
from holdfast.ledger import file_ledger
from holdfast.ledger.books import Books, Choice, SlotState, ranges_of
from holdfast.ledger.contract import Ledger, Limit, Reused, Slot, Status
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.finding import find_step
from holdfast.ledger.opening import open_books, open_ledger
from holdfast.ledger.postgres import slots as shared_slots
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.testing.ledgers import bought, claim, make_slot, make_step, settle_as

PARKED = frozenset({SlotState.PARKED})
FAILED = frozenset({SlotState.FAILED})
IN_DOUBT = frozenset({SlotState.IN_DOUBT})
MONEY = Limit(cost_micros=1000, each_micros=10)


@dataclass(frozen=True)
class Place:
    """Where a ledger is, or may be."""

    url: str

    def open(self) -> Ledger:
        return open_ledger(self.url)

    def exists(self) -> bool:
        return find_step(self.url, "step") is not None


@pytest.fixture(params=["file", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Place(f"file://{tmp_path}/ledger")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Place(server.new_url())


def mixed(place: Place) -> dict[str, Slot]:
    """A ledger of two jobs that ended: compacted outcomes, others, a slot in doubt, none open."""
    ledger = place.open()
    step = make_step(ledger)
    slots = settle_as(
        ledger, step, {"a": Status.BOUGHT, "p": Status.PARKED, "f": Status.FAILED}, MONEY
    )
    ledger.close()
    ledger = place.open()
    if isinstance(ledger, FileLedger):
        ledger.compact()
    slots |= settle_as(ledger, step, {"b": Status.BOUGHT, "q": Status.PARKED}, MONEY)
    slots["lost"] = make_slot(step, "lost")
    claim(ledger, [slots["lost"]], MONEY)
    ledger.close()
    return slots


def states(books: Books, choice: Choice | None = None) -> dict[str, str]:
    found = [(view.key, view.state.value) for view in books.slots(choice or Choice())]
    assert len(found) == len(dict(found)), "a slot was listed twice"
    return dict(found)


def test_every_slot_is_listed_once_wherever_it_stands(place: Place) -> None:
    slots = mixed(place)
    books = open_books(place.url)
    assert states(books) == {
        "a": "bought", "b": "bought", "p": "parked", "q": "parked", "f": "failed",
        "lost": "in doubt",
    }  # fmt: skip
    assert states(books, Choice(states=PARKED)) == {"p": "parked", "q": "parked"}
    assert states(books, Choice(key="a")) == {"a": "bought"}
    assert states(books, Choice(states=IN_DOUBT)) == {"lost": "in doubt"}
    (view,) = books.slots(Choice(key="a"))
    assert (view.step, view.generation, view.answer, view.cost_micros) == ("step", 0, '["yes"]', 7)
    assert (view.slot, view.attempts, view.recorded_ms) == (slots["a"].hash.hex(), 1, 1)
    (letter,) = books.slots(Choice(key="f"))
    assert (letter.reason, letter.dead_letter, letter.answer) == ("why", True, None)
    (lost,) = books.slots(Choice(key="lost"))
    assert (lost.attempts, lost.slot) == (1, slots["lost"].hash.hex())
    assert books.rows() == 6
    books.close()


def test_parts_hold_each_slot_once(place: Place) -> None:
    mixed(place)
    books = open_books(place.url)
    found = Counter(view.key for part in ranges_of(5) for view in books.slots(Choice(), part))
    assert found == Counter(["a", "b", "p", "q", "f", "lost"])
    some = [view for part in ranges_of(5)[1:3] for view in books.slots(Choice(), part)]
    assert all(0x33 <= int(view.slot[:2], 16) <= 0x99 for view in some)
    books.close()


def test_steps_are_apart(place: Place) -> None:
    ledger = place.open()
    for name in ("one", "two"):
        settle_as(ledger, make_step(ledger, name), {"k": Status.PARKED}, MONEY)
    ledger.close()
    books = open_books(place.url)
    assert [(view.step, view.key) for view in books.slots(Choice(step="two"))] == [("two", "k")]
    assert books.drop(Choice(step="one")) == 1
    assert [(v.name, v.receipt.parked, v.calls) for v in books.steps()] == [
        ("one", 0, 1), ("two", 1, 1),
    ]  # fmt: skip
    books.close()


def test_a_dead_owner_is_read_out_before_anything_is_said(place: Place) -> None:
    ledger = place.open()
    step = make_step(ledger)
    settle_as(ledger, step, {"a": Status.BOUGHT}, MONEY)
    claim(ledger, [make_slot(step, "lost")])
    ledger.abandon()
    books = open_books(place.url)
    assert states(books) == {"a": "bought", "lost": "in doubt"}
    (one,) = books.steps()
    assert (one.receipt.bought, one.receipt.in_doubt, one.open) == (1, 1, 0)
    books.close()


def test_no_ledger_and_no_step(place: Place) -> None:
    for _ in range(2):
        with pytest.raises(UsageInvalid, match="there is no ledger at"):
            open_books(place.url)
    assert not place.exists(), "a question must not make a ledger"
    mixed(place)
    books = open_books(place.url)
    with pytest.raises(UsageInvalid, match="Its steps: step") as caught:
        list(books.slots(Choice(step="other")))
    assert PASSWORD not in str(caught.value)
    books.close()


def test_dropped_outcomes_are_asked_again_and_others_stay(place: Place) -> None:
    slots = mixed(place)
    books = open_books(place.url)
    (before,) = books.steps()
    assert books.drop(Choice(states=PARKED | FAILED)) == 3
    assert states(books) == {"a": "bought", "b": "bought", "lost": "in doubt"}
    (one,) = books.steps()
    assert (one.receipt.parked, one.receipt.failed, one.receipt.bought) == (0, 0, 2)
    assert (one.calls, one.receipt.spent_usd) == (before.calls, before.receipt.spent_usd)
    assert books.rows() == 3
    assert books.drop(Choice(states=PARKED | FAILED)) == 0
    books.close()
    ledger = place.open()
    ledger.verify()
    assert list(ledger.dead_letters(1)) == []
    again = [slots["p"], slots["q"], slots["f"]]
    view = ledger.lookup([slot.hash for slot in slots.values()])
    assert set(view.outcomes) == {slots["a"].hash, slots["b"].hash}
    assert claim(ledger, again).attempts == {slot.hash: 1 for slot in again}
    ledger.settle([bought(slot, b'["now"]') for slot in again])
    ledger.close()
    books = open_books(place.url)
    assert states(books)["p"] == "bought"
    books.close()


def test_slots_in_doubt_are_forgotten_and_their_money_is_free(place: Place) -> None:
    mixed(place)
    ledger = place.open()
    assert ledger.totals(1).reserved_micros == 10
    books = open_books(place.url)
    assert books.drop(Choice(key="a")) == 1
    assert ledger.totals(1).reserved_micros == 10, "an outcome has given it back before"
    assert books.drop(Choice(key="lost")) == 1
    assert "lost" not in states(books)
    totals = ledger.totals(1)
    assert (totals.in_doubt, totals.reserved_micros) == (0, 0)
    books.close()
    ledger.close()


def test_an_open_slot_is_its_owners(place: Place) -> None:
    """Forget everything while a process is at work: what it asks it settles, counted as ever."""
    mixed(place)
    owner = place.open()
    slot = make_slot(make_step(owner), "mine")
    claim(owner, [slot], MONEY)
    books = open_books(place.url)
    everything = frozenset(SlotState)
    assert books.drop(Choice(states=everything)) == 6
    assert states(books) == {"mine": "open"}
    (one,) = books.steps()
    assert (one.open, one.receipt.in_doubt) == (1, 0)
    owner.settle([bought(slot, cost_micros=3)])
    owner.flush()
    totals = owner.totals(slot.step)
    assert (totals.settled[Status.BOUGHT], totals.open, totals.reserved_micros) == (1, 0, 0)
    owner.close()
    books.close()


def test_forgotten_answers_leave_no_blob(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "BLOB_BYTES", 10)
    monkeypatch.setattr(shared_slots, "BLOB_BYTES", 10)
    ledger = place.open()
    step = make_step(ledger)
    slots = [make_slot(step, key) for key in ("a", "b", "c")]
    claim(ledger, slots)
    texts = (b"x" * 50, b"y" * 50, b"y" * 50)
    ledger.settle([bought(slot, text) for slot, text in zip(slots, texts, strict=True)])
    ledger.close()
    books = open_books(place.url)
    assert blobs(place) == 2
    assert books.drop(Choice(key="a")) == 1
    assert books.drop(Choice(key="b")) == 1
    assert books.sweep_blobs()
    assert blobs(place) == 1
    assert [view.answer for view in books.slots(Choice())] == ["y" * 50]
    books.close()


def blobs(place: Place) -> int:
    ledger = place.open()
    try:
        if isinstance(ledger, PostgresLedger):
            query = "SELECT count(*) FROM holdfast_ledger_blob"
            return int((ledger._server.ask(lambda sql: sql.one(query)) or (0,))[0])
        return len(list(Path(place.url.removeprefix("file://"), "blobs").iterdir()))
    finally:
        ledger.close()


def test_reused_answers_add_up_over_handles(place: Place) -> None:
    first, second = place.open(), place.open()
    step = make_step(first).id
    first.count_reused(step, Reused(2, 20))
    second.count_reused(step, Reused(5, 50))
    assert first.reused(step) == Reused(7, 70)
    assert first.reused(step + 1) == Reused()
    first.close()
    second.close()
    books = open_books(place.url)
    (one,) = books.steps()
    assert (one.receipt.reused, one.receipt.saved_usd) == (7, 0.00007)
    books.close()


def test_a_step_is_found_and_not_made(place: Place) -> None:
    prints = {"model": "1"}
    assert find_step(place.url, "step", prints) is None
    mixed(place)
    found = find_step(place.url, "step", prints)
    assert found is not None
    ledger = place.open()
    assert found.ledger_id == ledger.id
    assert found.id == make_step(ledger).id
    ledger.close()
    assert found.mean_usd == 7e-6
    other = {"model": "2"}
    with pytest.raises(StepChanged):
        find_step(place.url, "step", other)
    assert find_step(place.url, "step", other, "new") is None
    assert find_step(place.url, "none", prints) is None


Calls = Callable[..., tuple[int, str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Calls:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "calls", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert PASSWORD not in out + err
        return int(ended.value.code or 0), out, err

    return run


def test_the_command_line(calls: Calls, place: Place, tmp_path: Path) -> None:
    code, _, err = calls(place.url)
    assert (code, err.count("\n")) == (2, 1), err
    mixed(place)
    code, out, _ = calls(place.url, "--parked")
    assert code == 0
    assert "step: bought 2, reused 0, in doubt 1, parked 2, failed 1, spent 0.0000 USD" in out
    assert "next: holdfast calls retry " in out
    assert sorted(line.split(":")[0] for line in out.splitlines() if "attempt" in line) == [
        "  step p", "  step q",
    ]  # fmt: skip
    table = tmp_path / "calls.parquet"
    assert "wrote 6 slot(s)" in calls("export", place.url, "--out", str(table))[1]
    assert sorted(pq.read_table(table)["key"].to_pylist()) == ["a", "b", "f", "lost", "p", "q"]
    assert "2 outcome(s) taken back" in calls("retry", place.url, "--parked")[1]
    code, _, err = calls("forget", place.url, "--key", "a")
    assert (code, "would delete 1 recorded" in err) == (2, True)
    assert "1 outcome(s) deleted" in calls("forget", place.url, "--key", "a", "--yes")[1]
    (step,) = json.loads(calls(place.url, "--json")[1])["steps"]
    assert (step["bought"], step["parked"], step["failed"], step["in_doubt"]) == (1, 0, 1, 1)
    code, _, err = calls(place.url, "--step", "other")
    assert (code, err.count("\n")) == (2, 1), err
