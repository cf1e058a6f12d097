"""Durable files: what reaches the disk before the caller hears of it, and named refusals."""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.disk_tape import Tape

from holdfast._base import files
from holdfast.errors import DiskFull, StorageFailed


def test_a_temporary_file_is_durable_when_it_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its bytes are fsynced: the fsync comes after the last write and its flush."""
    tape = Tape(tmp_path, monkeypatch)
    path, checksum = files.write_temporary(tmp_path, [b"abc", b"", b"d"])
    assert tape.calls == ["fsync .tmp 4"]
    assert path.read_bytes() == b"abcd"
    assert checksum == hashlib.sha256(b"abcd").hexdigest()
    assert path.stat().st_mode & 0o777 == 0o600


def test_replacing_is_fsync_then_rename_then_fsync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    tape = Tape(tmp_path, monkeypatch)
    files.write_replace(target, [b"newer"])
    assert tape.calls == ["fsync .tmp 5", "replace f", "fsync ."]
    assert target.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["f"]


def test_each_new_directory_is_entered_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape(tmp_path, monkeypatch)
    files.make_directories(tmp_path / "a" / "b")
    assert tape.calls == ["fsync ..", "mkdir a", "fsync .", "mkdir a/b", "fsync a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("made", "entered"), [("a/b", "fsync a"), ("a", "fsync .")])
def test_what_a_killed_process_made_is_entered_durably_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, entered: str
) -> None:
    (tmp_path / made).mkdir(parents=True)
    tape = Tape(tmp_path, monkeypatch)
    files.make_directories(tmp_path / "a" / "b")
    assert tape.calls[0] == entered


def test_a_directory_below_one_that_we_may_not_read_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be root, who may read all: so the refusal is made."""

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(files, "fsync_file", refuse)
    files.make_directories(tmp_path)


def test_a_tree_is_fsynced_with_all_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, every directory, and the entry of the root itself."""
    (tmp_path / "r" / "d").mkdir(parents=True)
    for name in ("r/x", "r/d/y"):
        (tmp_path / name).write_bytes(b"12")
    tape = Tape(tmp_path, monkeypatch)
    assert files.fsync_tree(tmp_path / "r") == [tmp_path / "r/d/y", tmp_path / "r/x"]
    assert sorted(tape.calls) == ["fsync .", "fsync r", "fsync r/d", "fsync r/d/y 2", "fsync r/x 2"]


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has forgotten the dirty pages: a second fsync would lie."""
    tries = []

    def fail(descriptor: int) -> None:
        tries.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    target = tmp_path / "f"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write_replace(target, [b"new"])
    assert len(tries) == 1
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise EOFError

    with pytest.raises(EOFError):
        files.write_temporary(tmp_path, pieces())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_name(number: int) -> None:
    with pytest.raises(DiskFull) as caught, files.os_errors("/some/file"):
        raise OSError(number, "full")
    assert caught.value.path == "/some/file"


def test_other_refusals_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed) as caught, files.os_errors("/outer"):
        (tmp_path / "missing").read_bytes()
    assert caught.value.path == str(tmp_path / "missing")
    with pytest.raises(StorageFailed) as caught, files.os_errors("/outer"):
        raise OSError(errno.EIO, "Input/output error")
    assert (caught.value.path, caught.value.error) == ("/outer", "Input/output error")


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, b"0123456789"), (3, None, b"3456789"), (2, 5, b"234"), (4, 4, b""), (8, 99, b"89")],
)
def test_ranges_are_read(tmp_path: Path, start: int, stop: int | None, expected: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert b"".join(files.read_pieces(path, start, stop)) == expected


def test_checksums_do_not_depend_on_the_pieces(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * ((1 << 20) + 1))
    assert files.sha256_of(files.read_pieces(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
