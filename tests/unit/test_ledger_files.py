"""Segments, settled files, owners, and the file ledger that puts them together."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import Damaged, LedgerMismatch, StorageFailed, StoreNewer, UsageInvalid
from holdfast.ledger import compact, database, file_ledger, merging
from holdfast.ledger.columns import table_of
from holdfast.ledger.contract import HASH_BYTES, Claim, Limit, Outcome, Slot, SlotHash, Status
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.layout import Layout
from holdfast.ledger.owner import new_owner
from holdfast.ledger.places import ledger_path
from holdfast.ledger.segment import (
    Entry,
    SegmentWriter,
    decode_entry,
    encode_entry,
    read_entry,
    read_segment,
)
from holdfast.ledger.settled import SettledFile, SettledTable, write_settled
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

SLOT = Slot(SlotHash(b"h" * 16), 3, "key", b"i" * 16)


def entry(number: int, answer: bytes = b"answer") -> Entry:
    hash_ = SlotHash(number.to_bytes(16, "big"))
    return Entry(bought(Slot(hash_, 1, str(number), b"i" * 16), answer), number)


@pytest.mark.parametrize(
    "one",
    [
        Entry(Outcome(SLOT, Status.BOUGHT, b"", attempts=3, cost_micros=7, recorded_ms=9), 11),
        Entry(Outcome(SLOT, Status.PARKED, None, "why \u00fc"), 0),
        Entry(Outcome(SLOT, Status.FAILED, None, "no", dead_letter=True), 1 << 40),
        Entry(Outcome(SLOT, Status.BOUGHT), 1, "blobname"),
    ],
)
def test_entry_round_trip(one: Entry) -> None:
    assert decode_entry(encode_entry(one)) == one


def test_entry_golden_bytes() -> None:
    """The format of a released version never changes under the same number."""
    one = Entry(Outcome(SLOT, Status.PARKED, b"a", "r", 2, 3, 4, True), 5)
    assert encode_entry(one).hex() == (
        "68686868686868686868686868686868"
        "69696969696969696969696969696969"
        "03000000"
        "01"
        "03"
        "02000000"
        "0300000000000000"
        "0400000000000000"
        "0500000000000000"
        "03000000"
        "01000000"
        "6b6579"
        "72"
        "61"
    )


def segment(tmp_path: Path, count: int) -> tuple[Path, list[int]]:
    path = tmp_path / "o-1.seg"
    writer = SegmentWriter(path, ledger_id="L", owner="o", number=1)
    ends = [writer.end]
    for number in range(count):
        writer.append([entry(number)])
        ends.append(writer.end)
    writer.close()
    return path, ends


def test_segment_torn_at_every_byte(tmp_path: Path) -> None:
    """Whatever is left of the last frame, all frames before it are read, and nothing else."""
    path, ends = segment(tmp_path, 3)
    data = path.read_bytes()
    for length in range(ends[0], len(data) + 1):
        path.write_bytes(data[:length])
        found = [placed.entry for placed in read_segment(path, ledger_id="L")]
        assert found == [entry(n) for n in range(sum(end <= length for end in ends[1:]))]
        if length < ends[3]:
            with pytest.raises(Damaged):
                list(read_segment(path, ledger_id="L", at_least=ends[3]))


def test_segment_every_bit_flip(tmp_path: Path) -> None:
    """A flip is an error, or cuts off the last frame, which is then in doubt."""
    path, ends = segment(tmp_path, 3)
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(Damaged):
            list(read_segment(path, ledger_id="L", at_least=ends[3]))
        if bit // 8 >= ends[2]:
            found = [placed.entry for placed in read_segment(path, ledger_id="L")]
            assert found == [entry(0), entry(1)]


def test_segment_of_another_ledger_or_a_newer_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = segment(tmp_path, 1)
    with pytest.raises(Damaged):
        list(read_segment(path, ledger_id="other"))
    monkeypatch.setattr("holdfast.ledger.segment.FORMAT", 0)
    with pytest.raises(StoreNewer):
        list(read_segment(path, ledger_id="L"))


def test_read_entry_checks_its_frame(tmp_path: Path) -> None:
    path, _ = segment(tmp_path, 2)
    placed = list(read_segment(path, ledger_id="L"))
    assert read_entry(path, placed[1].place) == entry(1)
    data = bytearray(path.read_bytes())
    data[placed[1].place.position + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        read_entry(path, placed[1].place)


def test_writer_stops_after_a_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fsync is never tried again."""
    writer = SegmentWriter(tmp_path / "o-1.seg", ledger_id="L", owner="o", number=1)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageFailed):
        writer.append([entry(1)])
    monkeypatch.undo()
    with pytest.raises(StorageFailed):
        writer.append([entry(2)])


def read_hashes(path: Path, layout: Layout) -> None:
    file = SettledFile(path, layout)
    try:
        file.hashes(0)
    finally:
        file.close()


@pytest.mark.slow
def test_settled_every_bit_flip(tmp_path: Path) -> None:
    """Every flip of a settled file is found when the file is opened or the group is read."""
    path = tmp_path / "s.parquet"
    layout = write_settled(path, [table_of([encode_entry(entry(n)) for n in range(3)])])
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(Damaged):
            read_hashes(path, layout)


def test_settled_cut_at_every_byte(tmp_path: Path) -> None:
    """A settled file that is shorter than its layout says is damage, wherever it ends."""
    path = tmp_path / "s.parquet"
    layout = write_settled(path, [table_of([encode_entry(entry(n)) for n in range(3)])])
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged):
            read_hashes(path, layout)


def test_every_kind_of_outcome_comes_back_from_a_settled_file(tmp_path: Path) -> None:
    """Nulls, blobs, dead letters and texts of any length stand in the columns where they belong."""
    slots = [
        Slot(SlotHash(bytes([15 - n] * 16)), n, "\u00fc" * n, bytes([n] * 16)) for n in range(9)
    ]
    outcomes = [
        Entry(Outcome(slots[0], Status.BOUGHT, b"", attempts=3, cost_micros=-7, recorded_ms=9), 0),
        Entry(Outcome(slots[1], Status.BOUGHT, b"answer"), 0),
        Entry(Outcome(slots[2], Status.PARKED, None, "why \u00fc"), 0),
        Entry(Outcome(slots[3], Status.FAILED, None, "no", dead_letter=True), 0),
        Entry(Outcome(slots[4], Status.BOUGHT), 0, "blobname"),
        *(Entry(Outcome(slot, Status.BOUGHT, b"x" * 99), 0) for slot in slots[5:]),
    ]
    path = tmp_path / "s.parquet"
    layout = write_settled(path, [table_of(map(encode_entry, outcomes))])
    file = SettledFile(path, layout)
    file.table(0).validate(full=True)
    assert file.entries(0, list(range(9))) == list(reversed(outcomes))
    file.close()


def test_settled_layout_and_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ledger.settled.GROUP_ROWS", 10)
    path = tmp_path / "s.parquet"
    layout = write_settled(path, [table_of([encode_entry(entry(n * 2)) for n in range(95)])])
    assert Layout.from_text(layout.to_text()) == layout
    assert [group.rows for group in layout.groups] == [10] * 9 + [5]
    file = SettledFile(path, layout)
    assert file.group_of(entry(20).outcome.slot.hash) == 1
    assert file.entries(1, [0])[0].outcome == entry(20).outcome
    file.close()


def test_settled_hashes_are_found_whatever_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First halves repeat, and so do second ones: both must be equal."""
    monkeypatch.setattr("holdfast.ledger.settled.GROUP_ROWS", 10)
    there = [first << 64 | second for first in (0, 1, 1 << 63) for second in (0, 5, 7, 1 << 63)]
    path = tmp_path / "s.parquet"
    layout = write_settled(
        path, [table_of([encode_entry(replace(entry(n), change=0)) for n in there])]
    )
    table = SettledTable()
    table.show(1, {path.name: layout}, tmp_path)
    asked = [*there, *(number + 1 for number in there), 2 << 64 | 5]
    found = table.find([entry(number).outcome.slot.hash for number in asked])
    assert {int.from_bytes(hash_, "big") for hash_ in found} == set(there)
    assert all(hash_ == one.outcome.slot.hash for hash_, one in found.items())
    table.close()


def test_settled_hashes_of_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Else every merge would leave the hashes of what it merged in memory."""
    paths = [tmp_path / "old.parquet", tmp_path / "new.parquet"]
    layouts = [write_settled(path, [table_of([encode_entry(entry(1))])]) for path in paths]
    table = SettledTable()
    sizes: list[int] = []
    for path, layout in zip(paths, layouts, strict=True):
        table.show(len(sizes), {path.name: layout}, tmp_path)
        assert table.find([entry(1).outcome.slot.hash])
        sizes.append(table.cached_bytes)
    assert sizes == [HASH_BYTES, HASH_BYTES]
    table.close()


def test_a_lock_given_up_by_two_threads_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread comes while the first closes: the number may be another file's then."""
    lock = new_owner(tmp_path)
    close, closed = os.close, list[int]()

    def closing(descriptor: int) -> None:
        closed.append(descriptor)
        lock.release()
        close(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closing)
        lock.release()
    assert len(closed) == 1


def open_at(path: Path) -> FileLedger:
    return FileLedger(f"file://{path}/ledger")


def buy(ledger: FileLedger, keys: list[str]) -> list[Slot]:
    step = make_step(ledger)
    slots = [make_slot(step, key) for key in keys]
    claim(ledger, slots)
    ledger.settle([bought(slot, f"answer {slot.key}".encode()) for slot in slots])
    return slots


def test_relative_and_foreign_urls_are_refused(tmp_path: Path) -> None:
    for url in ("ledger", "file:ledger", "./x", "s3://bucket/x", "file://host/x"):
        with pytest.raises(UsageInvalid):
            ledger_path(url)
    assert ledger_path(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert ledger_path(str(tmp_path)) == tmp_path


def test_compaction_moves_merges_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small segments, compacted and merged: every answer is found once, wherever it is."""
    monkeypatch.setattr(file_ledger, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(compact, "MERGE_FILES", 3)
    monkeypatch.setattr(merging, "MERGE_ROWS", 7)
    ledger = open_at(tmp_path)
    slots: list[Slot] = []
    for round_ in range(12):
        slots += buy(ledger, [f"{round_}-{n}" for n in range(5)])
        ledger.flush()
        ledger.compact()
        view = ledger.lookup([slot.hash for slot in slots])
        assert {view.outcomes[s.hash].answer for s in slots} == {
            f"answer {s.key}".encode() for s in slots
        }
    ledger.close()
    assert 1 <= len(list((tmp_path / "ledger/settled").iterdir())) < 5
    assert not list((tmp_path / "ledger/owners").iterdir())


def test_a_claim_from_before_a_compaction_is_refused(tmp_path: Path) -> None:
    """Looked up, bought by another, compacted, then claimed: that would buy it twice."""
    slow, quick = open_at(tmp_path), open_at(tmp_path)
    slot = make_slot(make_step(slow), "k")
    seen = slow.lookup([slot.hash])
    buy(quick, ["k"])
    quick.close()
    slow.compact()
    assert not slow.claim([Claim(slot)], generation=seen.generation, limit=Limit()).attempts
    assert slow.lookup([slot.hash]).outcomes[slot.hash].answer == b"answer k"
    slow.close()


def test_large_answers_go_to_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "BLOB_BYTES", 4)
    ledger = open_at(tmp_path)
    (slot,) = buy(ledger, ["k"])
    ledger.flush()
    assert ledger.lookup([slot.hash]).outcomes[slot.hash].answer == b"answer k"
    (blob,) = (tmp_path / "ledger/blobs").iterdir()
    blob.write_bytes(b"other")
    with pytest.raises(Damaged):
        ledger.lookup([slot.hash])
    blob.unlink()
    with pytest.raises(Damaged):
        ledger.lookup([slot.hash])
    ledger.close()


def test_another_ledger_is_refused(tmp_path: Path) -> None:
    ledger = open_at(tmp_path)
    with pytest.raises(LedgerMismatch):
        FileLedger(f"file://{tmp_path}/ledger", create=False, expected_id="x")
    with pytest.raises(LedgerMismatch):
        FileLedger(f"file://{tmp_path}/nowhere", create=False, expected_id=ledger.id)
    ledger.close()


def test_lost_pieces_are_damage(tmp_path: Path) -> None:
    """A missing database, segment or lock file is an error, never a fresh start."""
    ledger = open_at(tmp_path)
    (slot,) = buy(ledger, ["k"])
    ledger.flush()
    (segment_file,) = (tmp_path / "ledger/segments").iterdir()
    kept = segment_file.read_bytes()
    segment_file.unlink()
    with pytest.raises(Damaged):
        ledger.lookup([slot.hash])
    segment_file.write_bytes(kept)
    ledger.abandon()
    other = open_at(tmp_path)
    (lock,) = (tmp_path / "ledger/owners").iterdir()
    lock.rename(tmp_path / "away")
    with pytest.raises(Damaged):
        other.tidy()
    (tmp_path / "away").rename(lock)
    other.tidy()
    other.close()
    (tmp_path / "ledger/ledger.sqlite").unlink()
    with pytest.raises(Damaged):
        open_at(tmp_path)


def test_a_store_that_lost_transactions_is_damage(tmp_path: Path) -> None:
    """An older copy of the database beside a newer segment is seen."""
    ledger = open_at(tmp_path)
    buy(ledger, ["a"])
    with ledger._database.transaction():
        ledger._database.set_meta("change", 0)
    ledger.abandon()
    other = open_at(tmp_path)
    with pytest.raises(Damaged):
        other.tidy()
    other.close()


def test_an_unknown_segment_with_answers_is_damage(tmp_path: Path) -> None:
    ledger = open_at(tmp_path)
    buy(ledger, ["a"])
    ledger.flush()
    (segment_file,) = (tmp_path / "ledger/segments").iterdir()
    (tmp_path / f"ledger/segments/{'0' * 32}-1.seg").write_bytes(segment_file.read_bytes())
    with pytest.raises(Damaged):
        ledger.compact()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    ledger = open_at(tmp_path)
    ledger._database._connection.pragma("user_version", database.FORMAT + 1)
    ledger.close()
    with pytest.raises(StoreNewer):
        open_at(tmp_path)


def test_an_altered_row_is_found(tmp_path: Path) -> None:
    ledger = open_at(tmp_path)
    (slot,) = buy(ledger, ["k"])
    ledger.flush()
    ledger.verify()
    ledger._database._connection.execute("UPDATE slot SET position = position + 1")
    with pytest.raises(Damaged):
        ledger.verify()
    with pytest.raises(Damaged):
        ledger.lookup([slot.hash])


def test_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.errors import DependencyMissing

    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(DependencyMissing, match=r"3\.51\.3"):
        FileLedger(f"file://{tmp_path}/ledger")


def test_a_forked_child_does_not_keep_a_dead_owner_alive(tmp_path: Path) -> None:
    """The child has a copy of the lock's descriptor; it must not count."""
    ledger = open_at(tmp_path)
    buy(ledger, ["k"])
    read, write = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.write(say, b"x")
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.read(said, 1)  # it runs, so it has closed its copy
    ledger.abandon()
    other = open_at(tmp_path)
    assert other.reap([1])
    for descriptor in (write, said, say):
        os.close(descriptor)
    os.waitpid(child, 0)
    other.close()


def test_lookups_compaction_and_merges_load_no_pandas(tmp_path: Path) -> None:
    """Its import takes a second or two of a worker's time, and 40 MiB of its memory for good."""
    program = """
import sys
from holdfast.ledger import compact
from holdfast.ledger.contract import Claim, Limit, Outcome, Slot, SlotHash, Status
from holdfast.ledger.file_ledger import FileLedger
compact.MERGE_FILES = 2
for name in b"ab":
    ledger = FileLedger(sys.argv[1])
    step = ledger.step("s", {}, on_change="refuse").id
    slot = Slot(SlotHash(bytes([name] * 16)), step, "key", b"i" * 16)
    ledger.claim([Claim(slot)], generation=ledger.lookup([slot.hash]).generation, limit=Limit())
    ledger.settle([Outcome(slot, Status.BOUGHT, b"1")])
    ledger.close()
    ledger = FileLedger(sys.argv[1])
    ledger.compact()
    assert ledger.lookup([slot.hash]).outcomes[slot.hash].answer == b"1"
    assert len(compact.settled_rows(ledger._database)[1]) == 1
    ledger.close()
sys.exit("pandas is loaded" if "pandas" in sys.modules else 0)
"""
    url = f"file://{tmp_path}/ledger"
    command = [sys.executable, "-c", program, url]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
