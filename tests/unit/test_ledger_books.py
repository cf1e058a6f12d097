"""A ledger in files read as a whole: what only files can get wrong. See contract/test_books."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import LedgerInUse
from holdfast.ledger import compact
from holdfast.ledger.books import WHOLE, Books, Choice, HashRange, SlotState, ranges_of
from holdfast.ledger.contract import Reused, Slot, Status
from holdfast.ledger.file_books import FileBooks
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.opening import open_books
from holdfast.ledger.slots import SlotRow
from holdfast.testing.ledgers import bought, claim, make_slot, make_step, settle_as

PARKED = frozenset({SlotState.PARKED})


def url_of(tmp_path: Path) -> str:
    return f"file://{tmp_path}/ledger"


def mixed(tmp_path: Path) -> dict[str, Slot]:
    """A ledger with settled files, one sealed segment, a slot in doubt and none open."""
    ledger = FileLedger(url_of(tmp_path))
    step = make_step(ledger)
    slots = settle_as(ledger, step, {"a": Status.BOUGHT, "p": Status.PARKED, "f": Status.FAILED})
    ledger.close()
    ledger = FileLedger(url_of(tmp_path))
    ledger.compact()
    slots |= settle_as(ledger, step, {"b": Status.BOUGHT, "q": Status.PARKED})
    slots["lost"] = make_slot(step, "lost")
    claim(ledger, [slots["lost"]])
    ledger.close()
    return slots


def states(books: Books, choice: Choice | None = None) -> dict[str, str]:
    found = [(view.key, view.state.value) for view in books.slots(choice or Choice())]
    assert len(found) == len(dict(found)), "a slot was listed twice"
    return dict(found)


def test_a_slot_that_is_settled_while_slots_are_listed_is_listed_once(tmp_path: Path) -> None:
    """The owner settles it between two looks, and another step comes."""
    mixed(tmp_path)
    owner = FileLedger(url_of(tmp_path))
    slot = make_slot(make_step(owner), "now")
    claim(owner, [slot])

    class Slow(FileBooks):
        """Is overtaken by the owner whenever it has looked."""

        def unsettled(self, choice: Choice, within: HashRange = WHOLE) -> list[SlotRow]:
            found = super().unsettled(choice, within)
            owner.settle([bought(slot)])
            owner.flush()
            settle_as(owner, make_step(owner, "later"), {"x": Status.BOUGHT})
            return found

    books = Slow(url_of(tmp_path))
    assert states(books)["now"] == "open"
    books.close()
    owner.close()


def test_a_claim_made_on_the_old_files_is_not_granted(tmp_path: Path) -> None:
    """Somebody looked up before the drop: what they saw is out of date."""
    slots = mixed(tmp_path)
    ledger = FileLedger(url_of(tmp_path))
    before = ledger.lookup([slots["p"].hash]).generation
    books = open_books(url_of(tmp_path))
    books.drop(Choice(key="p"))
    some = ledger.lookup([slots["p"].hash]).generation
    assert some > before
    books.drop(Choice(step="step"))
    assert not states(books), "every file is gone, and none came in its place"
    assert ledger.lookup([slots["p"].hash]).generation > some
    books.close()
    ledger.close()


def test_outcomes_of_the_living_are_refused(tmp_path: Path) -> None:
    ledger = FileLedger(url_of(tmp_path))
    settle_as(ledger, make_step(ledger), {"p": Status.PARKED, "a": Status.BOUGHT})
    ledger.flush()
    books = open_books(url_of(tmp_path))
    with pytest.raises(LedgerInUse) as caught:
        books.drop(Choice(states=PARKED))
    assert caught.value.count == 1
    ledger.close()
    assert books.drop(Choice(states=PARKED)) == 1
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


def test_a_torn_count_of_reused_answers_is_zero(tmp_path: Path) -> None:
    ledger = FileLedger(url_of(tmp_path))
    ledger.count_reused(3, Reused(2, 20))
    (tmp_path / "ledger" / "reuse" / "3").write_bytes(b"torn")
    assert ledger.reused(3) == Reused()
    ledger.close()


def test_blobs_are_not_swept_while_a_job_may_write_one(tmp_path: Path) -> None:
    ledger = FileLedger(url_of(tmp_path))
    claim(ledger, [make_slot(make_step(ledger), "a")])
    books = open_books(url_of(tmp_path))
    assert not books.sweep_blobs()
    ledger.close()
    assert books.sweep_blobs()
    books.close()


def test_ranges() -> None:
    parts = ranges_of(5)
    assert parts[0].low == bytes(16)
    assert parts[-1].high is None
    assert HashRange(b"b", b"c").holds(b"b")
    assert not HashRange(b"b", b"c").holds(b"c")
