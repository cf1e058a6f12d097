"""The power fails at every moment at which the file ledger makes something durable."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.power_cut import VARIANTS, Disk, Moment, restore

from holdfast._base import crashpoint
from holdfast.ledger import compact, file_ledger
from holdfast.ledger.contract import Slot
from holdfast.ledger.file_ledger import FileLedger
from holdfast.testing.ledgers import bought, claim, make_slot, make_step


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory: what counts as durable is decided by the test, not by the device."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-power-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def answer_of(slot: Slot) -> bytes:
    return f"answer {slot.key} ".encode() * (30 if slot.key.startswith("large") else 1)


class Killed(BaseException):
    """The process ends here."""


def die() -> None:
    raise Killed


def settle_half(ledger: FileLedger, slot: Slot) -> None:
    """Write an outcome, and be killed before its fsync: the kernel has it, the disk has not."""
    crashpoint.arm("ledger.outcome.before", 1, die=die)
    with pytest.raises(Killed):
        ledger.settle([bought(slot, answer_of(slot))])
    crashpoint.disarm()


def work(root: Path, disk: Disk) -> None:
    """Claim, call, settle, over several segments; die and be read out; compact; merge.

    The first owner dies between the write of an outcome and its fsync. The second one reads that
    outcome, and hands it out.
    """
    groups = [["a", "b"], ["large", "c"], ["d"], ["e", "large2"]]
    for number in range(2):
        ledger = FileLedger(f"file://{root}")
        ledger.tidy()
        step = make_step(ledger)
        if number == 1:
            left = make_slot(step, "unsettled 0")
            outcome = ledger.lookup([left.hash]).outcomes[left.hash]
            assert outcome.answer == answer_of(left)
            disk.notes.append(f"seen {left.key}")
        for keys in groups[2 * number : 2 * number + 2]:
            slots = [make_slot(step, key) for key in keys]
            claim(ledger, slots)
            disk.notes += [f"called {slot.key}" for slot in slots]
            ledger.settle([bought(slot, answer_of(slot)) for slot in slots])
            disk.notes += [f"seen {slot.key}" for slot in slots]
        last = make_slot(step, f"unsettled {number}")
        claim(ledger, [last])
        disk.notes.append(f"called {last.key}")
        if number == 0:
            settle_half(ledger, last)
            ledger.abandon()
            ledger._database.close()
        else:
            ledger.compact()
            ledger.close()
    ledger = FileLedger(f"file://{root}")
    ledger.compact()
    ledger.close()


def check(moment: Moment, root: Path) -> None:
    """Start again after the power cut, as the next job does."""
    called = {note.removeprefix("called ") for note in moment.notes if note.startswith("called ")}
    seen = {note.removeprefix("seen ") for note in moment.notes if note.startswith("seen ")}
    ledger = FileLedger(f"file://{root}")
    ledger.verify()
    ledger.tidy()
    ledger.compact()
    step = make_step(ledger)
    slots = {key: make_slot(step, key) for key in called | seen}
    view = ledger.lookup([slot.hash for slot in slots.values()])
    for key in seen:
        outcome = view.outcomes.get(slots[key].hash)
        assert outcome is not None, f"lost: {key} was seen and is not recorded"
        assert outcome.answer == answer_of(slots[key]), f"wrong: {key}"
    for key in called - seen:
        known = slots[key].hash in view.outcomes or slots[key].hash in view.open
        assert known, f"early: {key} was called, its intent is gone"
    ledger.close()


@pytest.mark.slow
def test_power_cut_at_every_moment(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen is recorded and what was called is known, whatever was not yet fsynced."""
    monkeypatch.setattr(file_ledger, "SEGMENT_BYTES", 300)
    monkeypatch.setattr(file_ledger, "BLOB_BYTES", 200)
    monkeypatch.setattr(compact, "MERGE_FILES", 2)
    monkeypatch.setattr(FileLedger, "_start_housekeeper", lambda _: None)
    with monkeypatch.context() as watched:
        disk = Disk(scratch / "ledger", watched)
        work(scratch / "ledger", disk)
    kinds = Counter(moment.what for moment in disk.moments)
    assert kinds["after fdatasync"] >= 4
    assert kinds["after unlink"] >= 4, "nothing was compacted"
    assert {f"seen {key}" for key in ("a", "large", "e", "large2")} <= set(disk.notes)
    problems = []
    for number, moment in enumerate(disk.moments):
        for variant in VARIANTS:
            root = scratch / "cut" / "ledger"
            shutil.rmtree(root.parent, ignore_errors=True)
            root.parent.mkdir()
            restore(moment, variant, root)
            try:
                check(moment, root)
            except Exception as error:  # collected: one run names every weak spot
                problems.append(
                    f"{number} {moment.what} {variant}: {type(error).__name__}: {error}"
                )
    print(f"{len(disk.moments)} moments, {len(VARIANTS)} power cuts each: {len(problems)} problems")
    assert not problems, "\n".join(problems[:40])
