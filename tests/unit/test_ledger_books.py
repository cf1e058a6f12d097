"""A ledger read as a whole, and outcomes taken out of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.errors import LedgerInUse, UsageInvalid
from holdfast.ledger import compact, file_ledger
from holdfast.ledger.books import Choice, FileBooks, HashRange, SlotState, open_books, ranges_of
from holdfast.ledger.contract import Outcome, Reused, Slot, Status, Step
from holdfast.ledger.drop import drop, sweep_blobs
from holdfast.ledger.file_ledger import FileLedger
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

PARKED = frozenset({SlotState.PARKED})
FAILED = frozenset({SlotState.FAILED})


def url_of(tmp_path: Path) -> str:
    return f"file://{tmp_path}/ledger"


def settle(ledger: FileLedger, step: Step, statuses: dict[str, Status]) -> dict[str, Slot]:
    slots = {key: make_slot(step, key) for key in statuses}
    claim(ledger, list(slots.values()))
    ledger.settle([outcome(slots[key], status) for key, status in statuses.items()])
    return slots


def outcome(slot: Slot, status: Status) -> Outcome:
    if status is Status.BOUGHT:
        return bought(slot, b'["yes"]', cost_micros=7)
    return Outcome(slot, status, reason="why", recorded_ms=5, dead_letter=status is Status.FAILED)


def mixed(tmp_path: Path) -> dict[str, Slot]:
    """A ledger with settled files, one sealed segment, a slot in doubt and none open."""
    ledger = FileLedger(url_of(tmp_path))
    step = make_step(ledger)
    slots = settle(ledger, step, {"a": Status.BOUGHT, "p": Status.PARKED, "f": Status.FAILED})
    ledger.close()
    ledger = FileLedger(url_of(tmp_path))
    ledger.compact()
    slots |= settle(ledger, step, {"b": Status.BOUGHT, "q": Status.PARKED})
    slots["lost"] = make_slot(step, "lost")
    claim(ledger, [slots["lost"]])
    ledger.close()
    return slots


def states(books: FileBooks, choice: Choice | None = None) -> dict[str, str]:
    found = [(view.key, view.state.value) for view in books.slots(choice or Choice())]
    assert len(found) == len(dict(found)), "a slot was listed twice"
    return dict(found)


def test_every_slot_is_listed_once_wherever_it_stands(tmp_path: Path) -> None:
    mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    assert states(books) == {
        "a": "bought", "b": "bought", "p": "parked", "q": "parked", "f": "failed",
        "lost": "in doubt",
    }  # fmt: skip
    assert states(books, Choice(states=PARKED)) == {"p": "parked", "q": "parked"}
    assert states(books, Choice(key="a")) == {"a": "bought"}
    assert states(books, Choice(states=frozenset({SlotState.IN_DOUBT}))) == {"lost": "in doubt"}
    (view,) = books.slots(Choice(key="a"))
    assert (view.step, view.answer, view.cost_micros) == ("step", '["yes"]', 7)
    (letter,) = books.slots(Choice(key="f"))
    assert (letter.reason, letter.dead_letter) == ("why", True)
    assert books.rows() == 6
    books.close()


def test_parts_hold_each_slot_once(tmp_path: Path) -> None:
    mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    parts = ranges_of(5)
    found = Counter(view.key for part in parts for view in books.slots(Choice(), part))
    assert found == Counter(["a", "b", "p", "q", "f", "lost"])
    assert parts[0].low == bytes(16)
    assert parts[-1].high is None
    assert HashRange(b"b", b"c").holds(b"b")
    assert not HashRange(b"b", b"c").holds(b"c")
    books.close()


def test_a_dead_owner_is_read_out_before_anything_is_said(tmp_path: Path) -> None:
    ledger = FileLedger(url_of(tmp_path))
    step = make_step(ledger)
    settle(ledger, step, {"a": Status.BOUGHT})
    claim(ledger, [make_slot(step, "lost")])
    ledger.abandon()
    books = open_books(url_of(tmp_path))
    assert states(books) == {"a": "bought", "lost": "in doubt"}
    (one,) = books.steps()
    assert (one.receipt.bought, one.receipt.in_doubt, one.open) == (1, 1, 0)
    books.close()


def test_no_ledger_and_no_step(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid):
        open_books(url_of(tmp_path))
    assert not (tmp_path / "ledger").exists(), "a question must not make a ledger"
    mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    with pytest.raises(UsageInvalid, match="Its steps: step"):
        list(books.slots(Choice(step="other")))
    books.close()


def test_dropped_outcomes_are_asked_again_and_others_stay(tmp_path: Path) -> None:
    slots = mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    assert drop(books, Choice(states=PARKED | FAILED)) == 3
    assert states(books) == {"a": "bought", "b": "bought", "lost": "in doubt"}
    (one,) = books.steps()
    assert (one.receipt.parked, one.receipt.failed, one.receipt.bought) == (0, 0, 2)
    assert drop(books, Choice(states=PARKED | FAILED)) == 0
    books.close()
    ledger = FileLedger(url_of(tmp_path))
    ledger.verify()
    assert list(ledger.dead_letters(1)) == []
    again = [slots["p"], slots["q"], slots["f"]]
    view = ledger.lookup([slot.hash for slot in slots.values()])
    assert set(view.outcomes) == {slots["a"].hash, slots["b"].hash}
    assert claim(ledger, again).attempts == {slot.hash: 1 for slot in again}
    ledger.settle([bought(slot, b'["now"]') for slot in again])
    ledger.close()
    books = open_books(url_of(tmp_path))
    assert states(books)["p"] == "bought"
    books.close()


def test_a_claim_made_on_the_old_files_is_not_granted(tmp_path: Path) -> None:
    """Somebody looked up before the drop: what they saw is out of date."""
    slots = mixed(tmp_path)
    ledger = FileLedger(url_of(tmp_path))
    before = ledger.lookup([slots["p"].hash]).generation
    books = open_books(url_of(tmp_path))
    drop(books, Choice(key="p"))
    some = ledger.lookup([slots["p"].hash]).generation
    assert some > before
    drop(books, Choice(step="step"))
    assert not states(books), "every file is gone, and none came in its place"
    assert ledger.lookup([slots["p"].hash]).generation > some
    books.close()
    ledger.close()


def test_outcomes_of_the_living_are_refused(tmp_path: Path) -> None:
    ledger = FileLedger(url_of(tmp_path))
    settle(ledger, make_step(ledger), {"p": Status.PARKED, "a": Status.BOUGHT})
    ledger.flush()
    books = open_books(url_of(tmp_path))
    with pytest.raises(LedgerInUse) as caught:
        drop(books, Choice(states=PARKED))
    assert caught.value.count == 1
    ledger.close()
    assert drop(books, Choice(states=PARKED)) == 1
    books.close()


def test_forgotten_answers_leave_no_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "BLOB_BYTES", 10)
    ledger = FileLedger(url_of(tmp_path))
    step = make_step(ledger)
    slots = [make_slot(step, key) for key in ("a", "b")]
    claim(ledger, slots)
    ledger.settle([bought(slots[0], b"x" * 50), bought(slots[1], b"y" * 50)])
    books = open_books(url_of(tmp_path))
    assert not sweep_blobs(books), "a job lives that may write one"
    ledger.close()
    assert drop(books, Choice(key="a")) == 1
    assert sweep_blobs(books)
    assert len(list((tmp_path / "ledger" / "blobs").iterdir())) == 1
    assert [view.answer for view in books.slots(Choice())] == ["y" * 50]
    books.close()


def test_slots_in_doubt_are_forgotten_and_their_money_is_free(tmp_path: Path) -> None:
    mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    assert drop(books, Choice(key="lost")) == 1
    assert "lost" not in states(books)
    assert books.ledger.totals(1).in_doubt == 0
    books.close()


def test_listing_waits_for_nobody_and_stops_compaction(tmp_path: Path) -> None:
    """While a listing is under way no outcome moves, so none is missed or doubled."""
    mixed(tmp_path)
    books = open_books(url_of(tmp_path))
    listing = books.slots(Choice())
    next(listing)
    other = FileLedger(url_of(tmp_path))
    other.compact()
    with other._database.reading() as connection:
        left = connection.execute("SELECT count(*) FROM segment").get
    assert left == 1
    assert len(list(listing)) == 5
    other.compact()
    assert not compact.waiting(other._database)
    other.close()
    books.close()


def test_reused_answers_add_up_over_handles(tmp_path: Path) -> None:
    first, second = FileLedger(url_of(tmp_path)), FileLedger(url_of(tmp_path))
    first.count_reused(3, Reused(2, 20))
    second.count_reused(3, Reused(5, 50))
    assert first.reused(3) == Reused(7, 70)
    assert first.reused(4) == Reused()
    (tmp_path / "ledger" / "reuse" / "3").write_bytes(b"torn")
    assert first.reused(3) == Reused()
    first.close()
    second.close()
