"""The journal: durable on return, torn tail cut, damage named."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.disk_tape import Tape

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast.errors import Damaged, DiskFull, StateBusy, StateMismatch, StorageFailed, StoreNewer
from holdfast.worker.journal import KIND_HEADER, VERSION, Journal, Record

RECORDS: list[Record] = [(1, b"one"), (2, b""), (3, b"three" * 5)]


def written(directory: Path, records: list[Record]) -> bytes:
    journal = Journal(directory, "w")
    for kind, payload in records:
        journal.append([(kind, payload)])
    size = journal.size
    journal.close()
    data = (directory / "journal").read_bytes()
    assert len(data) == size
    return data


def reopened(directory: Path) -> list[Record]:
    journal = Journal(directory, "w")
    records = list(journal.records())
    journal.close()
    return records


def test_what_was_appended_is_there(tmp_path: Path) -> None:
    written(tmp_path / "deep" / "down", RECORDS)
    assert reopened(tmp_path / "deep" / "down") == RECORDS


def test_what_a_killed_process_left_is_durable_before_it_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died before an fsync; whoever knows a chunk from here acks it without another."""
    size = len(written(tmp_path / "w", RECORDS))
    tape = Tape(tmp_path, monkeypatch)
    reopened(tmp_path / "w")
    assert tape.calls == ["fsync .", f"fsync w/journal {size}", "fsync w"]


def test_the_last_record_cut_at_every_byte(tmp_path: Path) -> None:
    """A torn tail is ignored, and what is appended behind it is read again."""
    before = len(written(tmp_path, RECORDS[:2]))
    data = written(tmp_path, RECORDS[2:])
    for end in range(before, len(data)):
        (tmp_path / "journal").write_bytes(data[:end])
        assert reopened(tmp_path) == RECORDS[:2]
        written(tmp_path, [(9, b"after")])
        assert reopened(tmp_path) == [*RECORDS[:2], (9, b"after")]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    """Every bit of all but the last record: DAMAGED with the file's name, never other records."""
    data = written(tmp_path, [*RECORDS[:2], (9, b"last")])
    last = len(data) - frames.HEADER_BYTES - len(b"last")
    for bit in range(last * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "journal").write_bytes(flipped)
        with pytest.raises(Damaged) as damaged:
            Journal(tmp_path, "w")
        assert damaged.value.path == str(tmp_path / "journal")


def test_a_journal_without_a_header_is_damaged(tmp_path: Path) -> None:
    for data in (b"", frames.encode(Frame(1, 0, b"x"))):
        (tmp_path / "journal").write_bytes(data)
        with pytest.raises(Damaged):
            Journal(tmp_path, "w")


def test_another_workers_journal_or_one_of_another_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path, RECORDS)
    with pytest.raises(StateMismatch):
        Journal(tmp_path, "other")

    def write_header(version: int) -> None:
        header = {"version": version, "worker": "w"}
        frame = frames.encode(Frame(KIND_HEADER, 0, json.dumps(header).encode()))
        (tmp_path / "journal").write_bytes(frame)

    write_header(VERSION + 1)
    with pytest.raises(StoreNewer):
        Journal(tmp_path, "w")
    write_header(VERSION - 1)
    with pytest.raises(StateMismatch, match="format 1"):
        Journal(tmp_path, "w")


def test_a_rewritten_journal_holds_what_was_given_and_takes_more(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    for kind, payload in RECORDS:
        journal.append([(kind, payload)])
    journal.rewrite(RECORDS[1:])
    journal.append([(9, b"after")])
    assert journal.size == (tmp_path / "journal").stat().st_size
    journal.close()
    assert reopened(tmp_path) == [*RECORDS[1:], (9, b"after")]


def test_a_half_written_journal_is_removed(tmp_path: Path) -> None:
    written(tmp_path, RECORDS)
    (tmp_path / f".tmp-{'0' * 32}").write_bytes(b"half")
    assert reopened(tmp_path) == RECORDS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "lock"]


def test_a_second_process_is_refused_by_pid(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    code = (
        "import sys; from pathlib import Path; from holdfast.errors import StateBusy\n"
        "from holdfast.worker.journal import Journal\n"
        "try: Journal(Path(sys.argv[1]), 'w')\n"
        "except StateBusy as busy: print(busy.pid)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True)
    assert int(done.stdout) == os.getpid()
    with pytest.raises(StateBusy):
        Journal(tmp_path, "w")
    journal.close()
    assert reopened(tmp_path) == []


def test_after_a_failed_fsync_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second fsync would say that all is well about pages the kernel has dropped."""
    journal = Journal(tmp_path, "w")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull):
            journal.append([(1, b"lost")])
    with pytest.raises(StorageFailed):
        journal.append([(1, b"more")])
    with pytest.raises(StorageFailed):
        journal.rewrite([])
    journal.close()
