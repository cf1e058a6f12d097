"""Blobs in a directory: the order on the disk, killed creators, links that lead elsewhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.disk_tape import Tape

from holdfast.blobs.local import LocalBlobs
from holdfast.errors import Damaged, StorageFailed


def test_a_blob_is_durable_before_anybody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories, bytes, name, entry: each fsync before the next step depends on it."""
    tape = Tape(tmp_path, monkeypatch)
    blobs = LocalBlobs(tmp_path / "r")
    assert tape.calls == ["fsync ..", "mkdir r", "fsync ."]
    tape.calls.clear()
    blobs.create("a/b/c", [b"12345"])
    assert tape.calls == [
        "mkdir r/a",
        "fsync r",
        "mkdir r/a/b",
        "fsync r/a",
        "fsync r/.tmp 5",
        "link r/a/b/c",
        "fsync r/a/b",
        "unlink r/.tmp",
    ]
    tape.calls.clear()
    blobs.create("a/b/d", [b"1"])
    assert tape.calls == ["fsync r/.tmp 1", "link r/a/b/d", "fsync r/a/b", "unlink r/.tmp"]


def test_what_another_process_left_is_made_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory or a name that is found may be that of a process killed before its fsync."""
    LocalBlobs(tmp_path / "r").create("a/b/c", [b"12345"])
    tape = Tape(tmp_path, monkeypatch)
    LocalBlobs(tmp_path / "r").create("a/b/c", [b"12345"])
    assert tape.calls == [
        "fsync .",
        "fsync r",
        "fsync r/a",
        "fsync r/.tmp 5",
        "fsync r/a/b",
        "unlink r/.tmp",
    ]


def test_a_deleted_blob_stays_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.create("a/b", [b"x"])
    tape = Tape(tmp_path, monkeypatch)
    blobs.delete("a/b")
    blobs.delete("a/b")
    assert tape.calls == ["unlink a/b", "fsync a"]
    blobs.create("a/c", [b"x"])
    tape.calls.clear()
    blobs.delete("a/c", durable=False)
    assert tape.calls == ["unlink a/c"]


@pytest.mark.parametrize(
    ("point", "there"), [("blobs.create.written", False), ("blobs.create.linked", True)]
)
def test_a_killed_creator_leaves_all_or_nothing(tmp_path: Path, point: str, there: bool) -> None:
    code = (
        "import sys; from holdfast._base.crashpoint import arm; arm(sys.argv[2], 1)\n"
        "from holdfast.blobs.local import LocalBlobs\n"
        "LocalBlobs(sys.argv[1]).create('a/b', [b'whole'])"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), point], timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    blobs = LocalBlobs(tmp_path)
    assert list(blobs.names()) == (["a/b"] if there else [])
    assert blobs.sweep_temporary() == 1
    assert blobs.sweep_temporary() == 0
    blobs.create("a/b", [b"whole"])
    assert b"".join(blobs.read("a/b")) == b"whole"
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither a directory nor a file that is a symbolic link leads out of the root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    blobs = LocalBlobs(tmp_path / "r")
    blobs.create("a/b", [b"x"])
    os.symlink(outside, tmp_path / "r" / "away")
    os.symlink(outside / "secret", tmp_path / "r" / "a" / "secret")
    for name in ("away/secret", "a/secret"):
        with pytest.raises((StorageFailed, Damaged)):
            list(blobs.read(name))
        assert not blobs.exists(name)
    with pytest.raises(StorageFailed):
        blobs.create("away/new", [b"x"])
    with pytest.raises(StorageFailed):
        blobs.create("a/secret", [b"secret"])
    assert list(blobs.names()) == ["a/b"]
    assert sorted(os.listdir(outside)) == ["secret"]


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "r")
    blobs.create("a/b", [b"x"])
    modes = [os.stat(tmp_path / name).st_mode & 0o777 for name in ("r", "r/a", "r/a/b")]
    assert modes == [0o700, 0o700, 0o600]


def test_a_location_is_the_file(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.create("a/b", [b"x"])
    assert Path(blobs.location("a/b")).read_bytes() == b"x"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        blobs.create(f"a/{number}", [b"x"])
        blobs.create(f"a/{number}", [b"x"])
        next(blobs.read(f"a/{number}"))
        blobs.exists(f"b/{number}")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """By the same process, which remembers to have made it."""
    blobs = LocalBlobs(tmp_path)
    blobs.create("a/b/1", [b"1"])
    blobs.delete("a/b/1")
    (tmp_path / "a" / "b").rmdir()
    (tmp_path / "a").rmdir()
    blobs.create("a/b/2", [b"2"])
    assert list(blobs.names()) == ["a/b/2"]


def test_directories_that_are_forgotten_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.blobs.local._SETTLED_MAX", 4)
    blobs = LocalBlobs(tmp_path)
    for number in range(10):
        blobs.create(f"runs/{number}/x", [b"1"])
    assert len(list(blobs.names())) == 10


def test_names_below_a_prefix_are_found_without_a_look_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ask for one run after the other, of very many that lie in one directory."""
    blobs = LocalBlobs(tmp_path)
    for run in range(5):
        blobs.create(f"chunks/r{run}/t/1", [b"x"])
    looked: list[str] = []
    scandir = os.scandir

    def noting(path: Path) -> object:
        looked.append(str(path.relative_to(tmp_path)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noting)
    assert list(blobs.names("chunks/r3/")) == ["chunks/r3/t/1"]
    assert looked == ["chunks/r3", "chunks/r3/t"]
    looked.clear()
    assert list(blobs.names("chunks/r3/t")) == ["chunks/r3/t/1"]
    assert list(blobs.names("chunks/r9/")) == []
    assert list(blobs.names("chunks/r3/t/1/")) == []
    assert looked == ["chunks/r3", "chunks/r3/t"]
